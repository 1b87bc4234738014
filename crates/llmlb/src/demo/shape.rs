//! JSON of the demo's responses, in the form of chats and in the older form of plain completions.

use serde_json::{Value, json};

/// Form of a response.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    Chat,
    Text,
}

/// Fields that all JSON objects of one response have in common, such as its id.
#[derive(Debug)]
pub(super) struct Shape {
    pub(super) form: Form,
    pub(super) id: String,
    pub(super) created: i64,
    pub(super) model: &'static str,
}

impl Shape {
    /// Returns a response that is not streamed, as one object.
    pub(super) fn whole(&self, text: &str, finish_reason: &str, usage: &Value) -> Value {
        let choice = match self.form {
            Form::Chat => json!({
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": null},
                "logprobs": null,
                "finish_reason": finish_reason,
            }),
            Form::Text => text_choice(text, Some(finish_reason)),
        };
        let object = match self.form {
            Form::Chat => "chat.completion",
            Form::Text => "text_completion",
        };
        let mut whole = self.object(object, &json!([choice]));
        whole["usage"] = usage.clone();
        whole
    }

    /// Returns the first chunk of a streamed chat, which contains the role and no text. `None` for
    /// plain completions, whose streams begin with the first token.
    pub(super) fn opening(&self) -> Option<Value> {
        match self.form {
            Form::Chat => Some(self.chat_chunk(
                &json!({"role": "assistant", "content": "", "refusal": null}),
                None,
            )),
            Form::Text => None,
        }
    }

    /// Returns the chunk of a stream for one token.
    pub(super) fn piece(&self, piece: &str) -> Value {
        match self.form {
            Form::Chat => self.chat_chunk(&json!({"content": piece}), None),
            Form::Text => self.chunk(&json!([text_choice(piece, None)])),
        }
    }

    /// Returns the chunk of a stream after the last token, which contains the finish reason and no
    /// text.
    pub(super) fn closing(&self, finish_reason: &str) -> Value {
        match self.form {
            Form::Chat => self.chat_chunk(&json!({}), Some(finish_reason)),
            Form::Text => self.chunk(&json!([text_choice("", Some(finish_reason))])),
        }
    }

    /// Returns the final chunk of a stream with `include_usage`, which contains the token counts.
    pub(super) fn usage(&self, usage: &Value) -> Value {
        let mut chunk = self.chunk(&json!([]));
        chunk["usage"] = usage.clone();
        chunk
    }

    fn chat_chunk(&self, delta: &Value, finish_reason: Option<&str>) -> Value {
        self.chunk(&json!([{
            "index": 0,
            "delta": delta,
            "logprobs": null,
            "finish_reason": finish_reason,
        }]))
    }

    fn chunk(&self, choices: &Value) -> Value {
        let object = match self.form {
            Form::Chat => "chat.completion.chunk",
            Form::Text => "text_completion",
        };
        self.object(object, choices)
    }

    fn object(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

fn text_choice(text: &str, finish_reason: Option<&str>) -> Value {
    json!({"text": text, "index": 0, "logprobs": null, "finish_reason": finish_reason})
}
