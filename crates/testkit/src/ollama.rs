//! Script of a fake LLM server that implements Ollama's own API.

use serde_json::{Value, json};

use crate::fake_llm::FakeLlm;
use crate::wire;

/// Starts an Ollama server with this model. Every completion has four words.
#[track_caller]
pub fn ollama(model: &'static str) -> FakeLlm {
    FakeLlm::handling_all(move |request, stream| {
        let params: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let text = |word: &str| match request.path() {
            "/api/chat" => {
                json!({ "model": model, "message": { "role": "assistant", "content": word } })
            }
            _ => json!({ "model": model, "response": word }),
        };
        let counts = json!({ "done": true, "done_reason": "stop", "prompt_eval_count": 26, "eval_count": 4 });
        match request.path() {
            "/v1/models" => {
                let about = json!({ "id": model, "created": 1_700_000_000, "owned_by": "library" });
                wire::json(stream, 200, &json!({ "data": [about] }).to_string());
            }
            "/api/chat" | "/api/generate" if params["stream"] == false => {
                let mut whole = text("four words it says");
                merge(&mut whole, &counts);
                wire::json(stream, 200, &whole.to_string());
            }
            "/api/chat" | "/api/generate" => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\
                            transfer-encoding: chunked\r\n\r\n";
                let _ = std::io::Write::write_all(stream, head.as_bytes());
                for word in ["four", " words", " it", " says"] {
                    let mut line = text(word);
                    line["done"] = false.into();
                    wire::chunk(stream, &format!("{line}\n"));
                }
                if request.text().contains("cut") {
                    return drop(stream.shutdown(std::net::Shutdown::Both));
                }
                let mut last = text("");
                merge(&mut last, &counts);
                wire::chunk(stream, &format!("{last}\n"));
                wire::end_stream(stream);
            }
            "/api/embed" => {
                let answer =
                    json!({ "model": model, "embeddings": [[0.1]], "prompt_eval_count": 8 });
                wire::json(stream, 200, &answer.to_string());
            }
            "/api/version" => wire::json(stream, 200, r#"{"version":"0.12.0"}"#),
            "/api/show" => wire::json(
                stream,
                200,
                r#"{"capabilities":["completion"],"model_info":{},"details":{}}"#,
            ),
            _ => wire::json(stream, 500, "unexpected request"),
        }
    })
}

fn merge(object: &mut Value, more: &Value) {
    let (Value::Object(object), Value::Object(more)) = (object, more) else {
        panic!("two objects");
    };
    object.extend(more.clone());
}
