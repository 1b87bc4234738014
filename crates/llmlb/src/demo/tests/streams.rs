//! Streamed responses, compared with the same responses as a whole.

use serde_json::{Value, json};

use super::support::{AT_ONCE, Demo, chat};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Returns the texts of a stream's chunks, without empty texts.
fn contents(events: &[Value]) -> Vec<&str> {
    let choices = events.iter().map(|event| &event["choices"][0]);
    choices
        .filter_map(|choice| {
            choice["delta"]["content"]
                .as_str()
                .or(choice["text"].as_str())
        })
        .filter(|content| !content.is_empty())
        .collect()
}

#[tokio::test]
async fn chat_stream_starts_with_the_role_and_ends_with_the_reason() {
    let demo = Demo::start(AT_ONCE).await;
    let response = demo.post(CHAT, &chat(&json!({"stream": true}))).await;
    assert_eq!(response.status, 200);
    assert_eq!(
        response.headers["content-type"],
        "text/event-stream; charset=utf-8"
    );
    assert_eq!(response.headers["x-demo-backend"], "demo-fast");

    let events = response.events();
    let [first, pieces @ .., last] = events.as_slice() else {
        panic!("{events:?}");
    };
    let delta = &first["choices"][0]["delta"];
    assert_eq!(delta["role"], "assistant");
    assert_eq!(delta["content"], "");
    for piece in pieces {
        let choice = &piece["choices"][0];
        assert_eq!(choice["delta"].as_object().unwrap().len(), 1);
        assert_ne!(choice["delta"]["content"], "");
        assert_eq!(choice["finish_reason"], Value::Null);
    }
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    for event in &events {
        assert_eq!(event["id"], first["id"]);
        assert_eq!(event["created"], first["created"]);
        assert_eq!(event["object"], "chat.completion.chunk");
        assert_eq!(event["model"], "demo");
        assert_eq!(event["choices"].as_array().unwrap().len(), 1);
        assert_eq!(event.get("usage"), None);
    }
}

#[tokio::test]
async fn completion_stream_has_no_opening_chunk_and_no_role() {
    let demo = Demo::start(AT_ONCE).await;
    let body = json!({"model": "demo", "prompt": "Once upon a time", "stream": true});
    let events = demo.post(TEXT, &body).await.events();
    let (last, pieces) = events.split_last().unwrap();
    for piece in pieces {
        assert_eq!(piece["object"], "text_completion");
        assert_ne!(piece["choices"][0]["text"], "");
        assert_eq!(piece["choices"][0]["finish_reason"], Value::Null);
    }
    assert_eq!(last["choices"][0]["text"], "");
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn streamed_and_whole_responses_are_equal() {
    let demo = Demo::start(AT_ONCE).await;
    for backend in &demo.backends {
        for (path, mut body) in [
            (CHAT, chat(&json!({}))),
            (CHAT, chat(&json!({"max_tokens": 9}))),
            (TEXT, json!({"model": "demo", "prompt": "Once upon a time"})),
        ] {
            let whole = backend.post(path, &body).await.json();
            body["stream"] = json!(true);
            body["stream_options"] = json!({"include_usage": true});
            let events = backend.post(path, &body).await.events();

            let choice = &whole["choices"][0];
            let text = choice["message"]["content"]
                .as_str()
                .or(choice["text"].as_str());
            let text = text.unwrap();
            let streamed = contents(&events);
            assert_eq!(streamed.concat(), text);
            assert!(text.contains(backend.name), "{text}");

            let usage = &whole["usage"];
            assert_eq!(usage["completion_tokens"], streamed.len());
            assert_eq!(events.last().unwrap()["usage"], *usage);
            assert_eq!(
                events[events.len() - 2]["choices"][0]["finish_reason"],
                choice["finish_reason"],
            );
        }
    }
}

#[tokio::test]
async fn stream_ends_with_usage_if_requested() {
    let demo = Demo::start(AT_ONCE).await;
    for path in [CHAT, TEXT] {
        let mut body = chat(&json!({"prompt": "Once", "stream": true}));
        body["stream_options"] = json!({"include_usage": true});
        let events = demo.post(path, &body).await.events();
        let (last, others) = events.split_last().unwrap();
        for event in others {
            assert_eq!(event.get("usage"), Some(&Value::Null));
        }
        assert_eq!(last["choices"], json!([]));
        let pieces = contents(others).len();
        let prompt = if path == CHAT { 3 + 4 + 6 } else { 1 };
        assert_eq!(
            last["usage"],
            json!({
                "prompt_tokens": prompt,
                "completion_tokens": pieces,
                "total_tokens": prompt + pieces,
                "prompt_tokens_details": {"cached_tokens": 0},
            })
        );

        for not_asked in [json!({"include_usage": false}), json!({}), Value::Null] {
            body["stream_options"] = not_asked;
            let events = demo.post(path, &body).await.events();
            assert!(events.iter().all(|event| event.get("usage").is_none()));
            assert!(events.iter().all(|event| event["choices"] != json!([])));
        }
    }
}

#[tokio::test]
async fn response_has_at_most_the_requested_tokens() {
    let demo = Demo::start(AT_ONCE).await;
    for limit in ["max_tokens", "max_completion_tokens"] {
        let events = demo
            .post(CHAT, &chat(&json!({"stream": true, limit: 5})))
            .await
            .events();
        assert_eq!(contents(&events).len(), 5);
        let choice = &events.last().unwrap()["choices"][0];
        assert_eq!(choice["finish_reason"], "length");

        let whole = demo.post(CHAT, &chat(&json!({limit: 5}))).await.json();
        assert_eq!(whole["usage"]["completion_tokens"], 5);
        assert_eq!(whole["choices"][0]["finish_reason"], "length");
    }
    // `max_completion_tokens` takes precedence over `max_tokens`.
    let both = chat(&json!({"max_tokens": 5, "max_completion_tokens": 3}));
    let whole = demo.post(CHAT, &both).await.json();
    assert_eq!(whole["usage"]["completion_tokens"], 3);
    // A maximum above the length of the response does not lengthen the response.
    let plenty = demo
        .post(CHAT, &chat(&json!({"max_tokens": 100_000})))
        .await
        .json();
    assert_eq!(plenty["choices"][0]["finish_reason"], "stop");
}
