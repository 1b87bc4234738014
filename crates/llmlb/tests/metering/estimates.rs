//! Estimates count the fields that the endpoint reads, and complete partial or invalid usage reports.

use serde_json::{Value, json};

use crate::records;
use crate::requests::{CHAT, chat, post, send};
use crate::stream::{DONE, STOP, Scripted, WORD, send as send_bytes};
use testkit::{
    Connection,
    backends::{UNPROBED, backend, serve},
    wire,
};

const EMBEDDINGS: &str = "/v1/embeddings";

/// Returns the prompt tokens recorded for each of these bodies if the backend reports no usage.
fn estimated(bodies: &[(&str, String)]) -> Vec<u64> {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| wire::json(stream, 200, r#"{"choices":[]}"#));
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let estimate = |(number, (path, body)): (usize, &(&str, String))| {
        let id = format!("r-{number}");
        let mut client = Connection::open(server.address);
        send(&mut client, &id, path, body);
        assert_eq!(client.answer().status(), 200, "{path}");
        let record = records::one(&sandbox, &id);
        assert_eq!(record["tokens_from"], "estimated", "{record:#}");
        record["prompt_tokens"].as_u64().unwrap()
    };
    bodies.iter().enumerate().map(estimate).collect()
}

#[test]
fn fields_that_the_endpoint_ignores_do_not_change_an_estimate() {
    let long = "word ".repeat(20_000);
    let messages = json!([{ "role": "user", "content": long }]).to_string();
    let with = |more: &str| {
        (
            CHAT,
            format!(r#"{{"model":"m","messages":{messages}{more}}}"#),
        )
    };
    let bodies = [
        with(""),
        with(r#","prompt":"x""#),
        with(r#","input":"""#),
        with(r#","system":"""#),
        with(r#","query":"more words","text_1":"more words""#),
        with(r#","metadata":{"messages":"more words"}"#),
        (
            CHAT,
            format!(r#"{{"prompt":"x","model":"m","messages":{messages},"input":[]}}"#),
        ),
    ];
    let found = estimated(&bodies);
    assert!(found[0] > 25_000, "{found:?}");
    assert!(found.iter().all(|tokens| *tokens == found[0]), "{found:?}");
}

#[test]
fn repeated_fields_and_case_variants_never_lower_an_estimate() {
    let long = json!([{ "role": "user", "content": "word ".repeat(20_000) }]).to_string();
    let bodies = [
        (CHAT, format!(r#"{{"model":"m","messages":{long}}}"#)),
        (
            CHAT,
            format!(r#"{{"model":"m","messages":{long},"messages":[]}}"#),
        ),
        (
            CHAT,
            format!(r#"{{"model":"m","messages":[],"messages":{long}}}"#),
        ),
        (
            CHAT,
            format!(r#"{{"model":"m","Messages":{long},"messages":[]}}"#),
        ),
        (
            CHAT,
            format!(r#"{{"model":"m","messages":[],"MESSAGES":{long}}}"#),
        ),
        (
            CHAT,
            format!(r#"{{"model":"m","messages":[],"meſſages":{long}}}"#),
        ),
        (
            CHAT,
            format!(r#"{{"model":"m","messages":[],"m\u0065ssages":{long}}}"#),
        ),
    ];
    let found = estimated(&bodies);
    assert!(found[0] > 25_000, "{found:?}");
    assert!(found.iter().all(|tokens| *tokens == found[0]), "{found:?}");
}

#[test]
fn text_that_looks_encoded_is_estimated_as_text() {
    let text = "words-without-a-space/".repeat(2000);
    let piece = format!("{}{}", r"\u0061".repeat(100), "😀".repeat(10_000));
    let sampled = piece.repeat(8);
    let content = |value: &str| format!(r#"{{"model":"m","messages":[{{"content":"{value}"}}]}}"#);
    let found = estimated(&[
        (CHAT, content(&text)),
        (CHAT, content(&format!("data:image/png;base64,{text}"))),
        (EMBEDDINGS, format!(r#"{{"model":"m","input":"{text}"}}"#)),
        (CHAT, content(&sampled)),
    ]);
    let characters = text.len() as u64;
    for tokens in &found[..3] {
        assert!(
            (characters / 4..characters / 3).contains(tokens),
            "{found:?}"
        );
    }
    assert!((160_000..165_000).contains(&found[3]), "{found:?}");
}

fn tokens(record: &Value) -> (u64, u64, &str) {
    (
        record["prompt_tokens"].as_u64().unwrap(),
        record["completion_tokens"].as_u64().unwrap(),
        record["tokens_from"].as_str().unwrap(),
    )
}

#[test]
fn partial_or_invalid_usage_report_is_completed_by_the_estimate() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    let request_body = "word ".repeat(80);
    for (number, (usage, expected)) in [
        (r#"{"prompt_tokens":90}"#, (90, 3, "estimated")),
        (r#"{"completion_tokens":7}"#, (104, 7, "estimated")),
        (
            r#"{"prompt_tokens":90,"completion_tokens":null}"#,
            (90, 3, "estimated"),
        ),
        (
            r#"{"prompt_tokens":90.5,"completion_tokens":7}"#,
            (104, 7, "estimated"),
        ),
        (
            r#"{"prompt_tokens":"90","completion_tokens":7}"#,
            (104, 7, "estimated"),
        ),
        (
            r#"{"prompt_tokens":-1,"completion_tokens":1e99}"#,
            (104, 3, "estimated"),
        ),
        (
            r#"{"prompt_tokens":90,"completion_tokens":7,"total_tokens":12}"#,
            (90, 7, "estimated"),
        ),
        (
            r#"{"prompt_tokens":90.0,"completion_tokens":7.0}"#,
            (90, 7, "reported"),
        ),
        (
            r#"{"prompt_tokens":90,"completion_tokens":7}"#,
            (90, 7, "reported"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let last = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n");
        let stream = [WORD, WORD, WORD, STOP, &last, DONE].concat();
        scripted.next(move |_, socket| {
            send_bytes(
                socket,
                "content-type: text/event-stream\r\n",
                stream.as_bytes(),
            );
        });
        let id = format!("r-{number}");
        assert_eq!(
            post(&server, &id, CHAT, &chat(&request_body, true)).status(),
            200
        );
        let record = records::one(&sandbox, &id);
        assert_eq!(tokens(&record), expected, "{usage} {record:#}");
        let sum = record["prompt_tokens"].as_u64().unwrap()
            + record["completion_tokens"].as_u64().unwrap();
        assert_eq!(record["tokens"], sum, "{record:#}");
    }
}

#[test]
fn partial_usage_report_of_a_plain_response_is_completed_by_the_estimate() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    let answer = "word ".repeat(320);
    for (number, (path, usage, expected)) in [
        (CHAT, r#"{"prompt_tokens":90}"#, (90, 325, "estimated")),
        (CHAT, r#"{"completion_tokens":7}"#, (104, 7, "estimated")),
        (EMBEDDINGS, r#"{"prompt_tokens":90}"#, (90, 0, "reported")),
        (EMBEDDINGS, r#"{"total_tokens":90}"#, (90, 0, "reported")),
        (
            EMBEDDINGS,
            r#"{"completion_tokens":0}"#,
            (104, 0, "estimated"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let body = format!(r#"{{"choices":[{{"text":"{answer}"}}],"usage":{usage}}}"#);
        scripted.next(move |_, socket| wire::json(socket, 200, &body));
        let id = format!("r-{number}");
        let mut request_body = chat(&"word ".repeat(80), false);
        request_body["input"] = json!("word ".repeat(80));
        assert_eq!(post(&server, &id, path, &request_body).status(), 200);
        let record = records::one(&sandbox, &id);
        let (prompt, completion, from) = tokens(&record);
        assert_eq!(
            (prompt, from),
            (expected.0, expected.2),
            "{usage} {record:#}"
        );
        assert!(completion.abs_diff(expected.1) <= 20, "{usage} {record:#}");
    }
}

#[test]
fn unknown_endpoint_is_metered_from_the_usage_of_its_response() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    let json = "content-type: application/json\r\n";
    let events = "content-type: text/event-stream\r\n";
    for (number, (fields, response, expected)) in [
        (
            json,
            r#"{"usage":{"prompt_tokens":9,"completion_tokens":4}}"#,
            (9, 4, "reported"),
        ),
        (
            json,
            r#"{"usage":{"input_tokens":9,"output_tokens":4}}"#,
            (9, 4, "reported"),
        ),
        (json, r#"{"usage":{"total_tokens":9}}"#, (9, 0, "reported")),
        (
            json,
            r#"{"usage":{"completion_tokens":9}}"#,
            (0, 9, "estimated"),
        ),
        (json, r#"{"usage":{"prompt_tokens":null}}"#, (0, 0, "none")),
        (json, r#"{"text":"no usage"}"#, (0, 0, "none")),
        (
            events,
            "data: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n",
            (9, 4, "reported"),
        ),
        (events, "data: {\"text\":\"no usage\"}\n\n", (0, 0, "none")),
    ]
    .into_iter()
    .enumerate()
    {
        scripted.next(move |_, socket| send_bytes(socket, fields, response.as_bytes()));
        let id = format!("r-{number}");
        let answer = post(&server, &id, "/v1/pooling", &chat("Hello", false));
        assert_eq!(answer.text(), response);
        let record = records::one(&sandbox, &id);
        assert_eq!(tokens(&record), expected, "{response} {record:#}");
        assert_eq!(record["api"], "unknown", "{record:#}");
        assert_eq!(record["outcome"], "complete", "{record:#}");
    }
}
