//! A backend that speaks Ollama's own API.

use serde_json::{Value, json};

use crate::mock::{self, Mock};

/// An Ollama with this model, which says four words.
pub(crate) fn ollama(model: &'static str) -> Mock {
    Mock::raw("127.0.0.1:0".parse().unwrap(), move |request, stream| {
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or_default();
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
                mock::json(stream, 200, &json!({ "data": [about] }).to_string());
            }
            "/api/chat" | "/api/generate" if asked["stream"] == false => {
                let mut whole = text("four words it says");
                merge(&mut whole, &counts);
                mock::json(stream, 200, &whole.to_string());
            }
            "/api/chat" | "/api/generate" => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\n\
                            transfer-encoding: chunked\r\n\r\n";
                let _ = std::io::Write::write_all(stream, head.as_bytes());
                for word in ["four", " words", " it", " says"] {
                    let mut line = text(word);
                    line["done"] = false.into();
                    mock::chunk(stream, &format!("{line}\n"));
                }
                if request.text().contains("cut") {
                    return drop(stream.shutdown(std::net::Shutdown::Both));
                }
                let mut last = text("");
                merge(&mut last, &counts);
                mock::chunk(stream, &format!("{last}\n"));
                mock::end_stream(stream);
            }
            "/api/embed" => {
                let answer =
                    json!({ "model": model, "embeddings": [[0.1]], "prompt_eval_count": 8 });
                mock::json(stream, 200, &answer.to_string());
            }
            "/api/version" => mock::json(stream, 200, r#"{"version":"0.12.0"}"#),
            "/api/show" => mock::json(
                stream,
                200,
                r#"{"capabilities":["completion"],"model_info":{},"details":{}}"#,
            ),
            _ => mock::json(stream, 500, "this must not be asked"),
        }
    })
}

fn merge(object: &mut Value, more: &Value) {
    let (Value::Object(object), Value::Object(more)) = (object, more) else {
        panic!("two objects");
    };
    object.extend(more.clone());
}
