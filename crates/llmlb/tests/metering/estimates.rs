//! Estimates count what the endpoint reads.

use serde_json::json;

use crate::ask::{CHAT, send};
use crate::backends::{UNPROBED, backend, serve};
use crate::http::Connection;
use crate::mock;
use crate::records;
use crate::support::Place;

const EMBEDDINGS: &str = "/v1/embeddings";

/// The prompt tokens that are recorded for each of these bodies, if the backend reports no usage.
fn estimated(bodies: &[(&str, String)]) -> Vec<u64> {
    let place = Place::new();
    let mock = backend(|_, stream| mock::json(stream, 200, r#"{"choices":[]}"#));
    let server = serve(&place, &[&mock], UNPROBED);
    let estimate = |(number, (path, body)): (usize, &(&str, String))| {
        let id = format!("r-{number}");
        let mut client = Connection::open(server.address);
        send(&mut client, &id, path, body);
        assert_eq!(client.answer().status(), 200, "{path}");
        let record = records::one(&place, &id);
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
fn text_is_counted_whatever_it_looks_like() {
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
