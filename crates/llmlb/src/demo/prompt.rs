//! Prompt of a request to a demo backend, and its number of tokens.

use serde_json::Value;

use super::error::DemoError;
use super::fields::RequestFields;
use super::{hash, pieces};

/// Number of tokens that a message counts in addition to its text, as with OpenAI.
const TOKENS_PER_MESSAGE: usize = 4;
/// Number of tokens that every chat prompt counts once for the start of the response, as with
/// OpenAI.
const TOKENS_TO_START: usize = 3;

/// Number of tokens that a part of a message counts if it is not text: 85, as OpenAI counts an
/// image of low detail.
const TOKENS_PER_OTHER_PART: usize = 85;

/// The properties of a prompt that determine the demo's response.
#[derive(Debug, Default)]
pub(super) struct Prompt {
    /// Last text of the user, which the response quotes.
    pub(super) question: String,
    pub(super) tokens: usize,
    /// Hash of the whole prompt, which determines the text and the timing of the response.
    pub(super) seed: u64,
}

impl Prompt {
    /// Parses the `messages` of a chat. The response quotes the last message of the user.
    pub(super) fn from_chat(fields: &RequestFields) -> Result<Self, DemoError> {
        let refused = |message: String| DemoError::bad_field("messages", message);
        let messages = match fields.required("messages")? {
            Value::Array(messages) if !messages.is_empty() => messages,
            _ => return Err(refused("'messages' must be an array of messages.".into())),
        };
        let mut prompt = Self {
            tokens: TOKENS_TO_START,
            ..Self::default()
        };
        for (index, message) in messages.iter().enumerate() {
            let role = message
                .get("role")
                .and_then(Value::as_str)
                .ok_or_else(|| refused(format!("'messages[{index}]' has no role.")))?;
            let text = prompt.add_content(message.get("content")).ok_or_else(|| {
                refused(format!(
                    "'messages[{index}].content' must be a text or an array of content parts."
                ))
            })?;
            prompt.tokens += TOKENS_PER_MESSAGE;
            prompt.mix(role.as_bytes());
            if role == "user" {
                prompt.question = text;
            }
        }
        Ok(prompt)
    }

    /// Parses the `prompt` of a completion: text, or token numbers, which the demo cannot decode.
    pub(super) fn from_text(fields: &RequestFields) -> Result<Self, DemoError> {
        let mut value = fields.required("prompt")?;
        if let Value::Array(several) = value
            && let [one] = several.as_slice()
            && !one.is_number()
        {
            value = one;
        }
        let mut prompt = Self::default();
        match value {
            Value::String(text) => {
                prompt.add_text(text);
                prompt.question.clone_from(text);
            }
            Value::Array(tokens) if !tokens.is_empty() && tokens.iter().all(Value::is_u64) => {
                prompt.tokens = tokens.len();
                prompt.mix(value.to_string().as_bytes());
            }
            _ => {
                return Err(DemoError::bad_field(
                    "prompt",
                    "'prompt' must be one text, or the tokens of one.",
                ));
            }
        }
        Ok(prompt)
    }

    /// Counts the tokens of a message's content and returns its text; `None` if it is invalid.
    fn add_content(&mut self, content: Option<&Value>) -> Option<String> {
        match content {
            // Accept a missing content: a message with tool calls may have none.
            None | Some(Value::Null) => Some(String::new()),
            Some(Value::String(text)) => {
                self.add_text(text);
                Some(text.clone())
            }
            Some(Value::Array(parts)) => {
                let mut texts = Vec::new();
                for part in parts {
                    part.get("type")?.as_str()?;
                    if let Some(text) = part.get("text").and_then(Value::as_str) {
                        self.add_text(text);
                        texts.push(text);
                    } else {
                        self.tokens += TOKENS_PER_OTHER_PART;
                    }
                }
                Some(texts.join(" "))
            }
            Some(_) => None,
        }
    }

    fn add_text(&mut self, text: &str) {
        self.tokens += pieces::count(text);
        self.mix(text.as_bytes());
    }

    fn mix(&mut self, bytes: &[u8]) {
        self.seed = hash::mixed(self.seed ^ hash::fnv(bytes));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: &Value) -> RequestFields {
        RequestFields::parse(value.to_string().as_bytes()).unwrap()
    }

    fn chat(messages: &Value) -> Result<Prompt, DemoError> {
        Prompt::from_chat(&fields(&json!({"messages": messages})))
    }

    fn text(prompt: &Value) -> Result<Prompt, DemoError> {
        Prompt::from_text(&fields(&json!({"prompt": prompt})))
    }

    #[test]
    fn question_is_the_last_user_message_and_all_messages_count() {
        let prompt = chat(&json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello there"},
            {"role": "assistant", "content": null, "tool_calls": []},
            {"role": "user", "content": [
                {"type": "text", "text": "What is"},
                {"type": "image_url", "image_url": {"url": "data:,"}},
                {"type": "text", "text": "this?"},
            ]},
            {"role": "developer", "content": "Still brief."},
        ]))
        .unwrap();
        assert_eq!(prompt.question, "What is this?");
        assert_eq!(prompt.tokens, 3 + 5 * 4 + 3 + 2 + 2 + 85 + 2 + 3);
    }

    #[test]
    fn text_parts_count_like_plain_text() {
        let whole = chat(&json!([{"role": "user", "content": "Hello there"}])).unwrap();
        let parts =
            chat(&json!([{"role": "user", "content": [{"type": "text", "text": "Hello there"}]}]))
                .unwrap();
        assert_eq!(whole.tokens, parts.tokens);
        assert_eq!(whole.seed, parts.seed);
    }

    #[test]
    fn invalid_messages_are_rejected() {
        for messages in [
            json!([]),
            json!("hello"),
            json!([1]),
            json!([{"content": "hello"}]),
            json!([{"role": "user", "content": 1}]),
            json!([{"role": "user", "content": ["hello"]}]),
        ] {
            assert!(chat(&messages).is_err(), "{messages}");
        }
    }

    #[test]
    fn prompt_is_text_or_tokens() {
        assert_eq!(text(&json!("one two")).unwrap().tokens, 2);
        assert_eq!(text(&json!(["one two"])).unwrap().question, "one two");
        assert_eq!(text(&json!([1, 2, 3])).unwrap().tokens, 3);
        assert_eq!(text(&json!([7])).unwrap().tokens, 1);
        assert_eq!(text(&json!([[1, 2, 3]])).unwrap().tokens, 3);
        for prompt in [
            json!([]),
            json!(["one", "two"]),
            json!([1, "two"]),
            json!({}),
        ] {
            assert!(text(&prompt).is_err(), "{prompt}");
        }
    }
}
