//! Requests without streaming.

use http::Method;
use serde_json::{Value, json};

use super::support::{AT_ONCE, Demo, chat};

fn floats(embedding: &Value) -> Vec<f32> {
    serde_json::from_value(embedding.clone()).unwrap()
}

/// Decodes Base64 independently of the encoder, so that the test does not repeat its errors.
fn decoded(embedding: &Value) -> Vec<f32> {
    let mut bits = Vec::new();
    for digit in embedding.as_str().unwrap().trim_end_matches('=').bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => panic!("{digit} is no digit"),
        };
        bits.extend((0..6).rev().map(|at| value >> at & 1));
    }
    let bytes: Vec<_> = bits
        .chunks_exact(8)
        .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | bit))
        .collect();
    let values = bytes.chunks_exact(4);
    values
        .map(|value| f32::from_le_bytes(value.try_into().unwrap()))
        .collect()
}

#[tokio::test]
async fn each_backend_lists_its_models() {
    let demo = Demo::start(AT_ONCE).await;
    for (name, models) in [
        ("demo-fast", vec!["demo", "demo-embed"]),
        ("demo-medium", vec!["demo", "demo-large", "demo-embed"]),
        ("demo-slow", vec!["demo", "demo-large"]),
    ] {
        let backend = demo.backend(name);
        let response = backend.send(Method::GET, "/v1/models", "").await;
        assert_eq!(response.headers["x-demo-backend"], name);
        assert_eq!(response.headers["content-type"], "application/json");
        let list = response.json();
        assert_eq!(list["object"], "list");
        let data = list["data"].as_array().unwrap();
        let ids: Vec<_> = data
            .iter()
            .map(|model| model["id"].as_str().unwrap())
            .collect();
        assert_eq!(ids, models);
        for model in data {
            assert_eq!(model["object"], "model");
            assert_eq!(model["owned_by"], "llmlb-demo");
            assert!(model["created"].is_u64());
            let path = format!("/v1/models/{}", model["id"].as_str().unwrap());
            assert_eq!(backend.send(Method::GET, &path, "").await.json(), *model);
        }
    }
}

#[tokio::test]
async fn whole_response_has_openais_form() {
    let demo = Demo::start(AT_ONCE).await;
    let whole = demo
        .post("/v1/chat/completions", &chat(&json!({"n": 1})))
        .await
        .json();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["model"], "demo");
    assert!(whole["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(whole["created"].is_u64());
    let [choice] = whole["choices"].as_array().unwrap().as_slice() else {
        panic!("{whole}");
    };
    assert_eq!(choice["index"], 0);
    assert_eq!(choice["message"]["role"], "assistant");
    assert_eq!(choice["finish_reason"], "stop");
    let usage = &whole["usage"];
    assert_eq!(usage["prompt_tokens"], 3 + 4 + 6);
    let sum =
        usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);

    let again = demo
        .post("/v1/chat/completions", &chat(&json!({})))
        .await
        .json();
    assert_ne!(again["id"], whole["id"]);
    assert_eq!(again["choices"], whole["choices"]);
}

#[tokio::test]
async fn embeddings_are_the_same_in_either_encoding() {
    let demo = Demo::start(AT_ONCE).await;
    let ask = async |format: Value, dimensions: Value| {
        let body = json!({
            "model": "demo-embed",
            "input": ["The first text", "and the second"],
            "encoding_format": format,
            "dimensions": dimensions,
        });
        demo.post("/v1/embeddings", &body).await.json()
    };
    for (dimensions, length) in [(Value::Null, 64), (json!(64), 64), (json!(1023), 1023)] {
        let float = ask(json!("float"), dimensions.clone()).await;
        let base64 = ask(json!("base64"), dimensions.clone()).await;
        assert_eq!(float, ask(Value::Null, dimensions).await);
        assert_eq!(float["object"], "list");
        assert_eq!(float["model"], "demo-embed");
        assert_eq!(
            float["usage"],
            json!({"prompt_tokens": 6, "total_tokens": 6})
        );
        assert_eq!(float["usage"], base64["usage"]);
        for index in 0..2 {
            let (float, base64) = (&float["data"][index], &base64["data"][index]);
            assert_eq!(float["index"], index);
            assert_eq!(float["object"], "embedding");
            let vector = floats(&float["embedding"]);
            assert_eq!(vector.len(), length);
            assert_eq!(vector, decoded(&base64["embedding"]));
        }
        assert_ne!(float["data"][0]["embedding"], float["data"][1]["embedding"]);
    }
}

#[tokio::test]
async fn embeddings_accept_tokens() {
    let demo = Demo::start(AT_ONCE).await;
    let body = json!({"model": "demo-embed", "input": [[1, 2, 3], [4, 5]]});
    let list = demo.post("/v1/embeddings", &body).await.json();
    assert_eq!(list["data"].as_array().unwrap().len(), 2);
    assert_eq!(list["usage"]["prompt_tokens"], 5);
}
