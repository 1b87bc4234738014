//! What was asked, and how many tokens that is.

use serde_json::Value;

use super::fields::Fields;
use super::refusal::Refusal;
use super::{hash, pieces};

/// What a message costs beside its text, and what starts the answer: as with OpenAI's models.
const TOKENS_PER_MESSAGE: usize = 4;
const TOKENS_TO_START: usize = 3;

/// What a part costs that is not text, such as a small image.
const TOKENS_PER_OTHER_PART: usize = 85;

/// A prompt, in the little that matters to who makes up the answer.
#[derive(Debug, Default)]
pub(super) struct Prompt {
    /// What the answer is to.
    pub(super) question: String,
    pub(super) tokens: usize,
    /// Stands for the whole prompt.
    pub(super) seed: u64,
}

impl Prompt {
    /// The `messages` of a chat. The question is the last that a user said.
    pub(super) fn of_chat(fields: &Fields) -> Result<Self, Refusal> {
        let refused = |message: String| Refusal::bad_field("messages", message);
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
            let text = prompt
                .take_content(message.get("content"))
                .ok_or_else(|| refused(format!("'messages[{index}].content' is not content.")))?;
            prompt.tokens += TOKENS_PER_MESSAGE;
            prompt.stir(role.as_bytes());
            if role == "user" {
                prompt.question = text;
            }
        }
        Ok(prompt)
    }

    /// The `prompt` of a completion: text, or tokens that only a real model could read.
    pub(super) fn of_text(fields: &Fields) -> Result<Self, Refusal> {
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
                prompt.take_text(text);
                prompt.question.clone_from(text);
            }
            Value::Array(tokens) if !tokens.is_empty() && tokens.iter().all(Value::is_u64) => {
                prompt.tokens = tokens.len();
                prompt.stir(value.to_string().as_bytes());
            }
            _ => {
                return Err(Refusal::bad_field(
                    "prompt",
                    "'prompt' must be one text, or the tokens of one.",
                ));
            }
        }
        Ok(prompt)
    }

    /// Counts the content of a message, and gives its text; none if it is not content.
    fn take_content(&mut self, content: Option<&Value>) -> Option<String> {
        match content {
            // A message that calls tools may say nothing.
            None | Some(Value::Null) => Some(String::new()),
            Some(Value::String(text)) => {
                self.take_text(text);
                Some(text.clone())
            }
            Some(Value::Array(parts)) => {
                let mut texts = Vec::new();
                for part in parts {
                    part.get("type")?.as_str()?;
                    if let Some(text) = part.get("text").and_then(Value::as_str) {
                        self.take_text(text);
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

    fn take_text(&mut self, text: &str) {
        self.tokens += pieces::count(text);
        self.stir(text.as_bytes());
    }

    fn stir(&mut self, bytes: &[u8]) {
        self.seed = hash::mixed(self.seed ^ hash::of(bytes));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: &Value) -> Fields {
        Fields::parse(value.to_string().as_bytes()).unwrap()
    }

    fn chat(messages: &Value) -> Result<Prompt, Refusal> {
        Prompt::of_chat(&fields(&json!({"messages": messages})))
    }

    fn text(prompt: &Value) -> Result<Prompt, Refusal> {
        Prompt::of_text(&fields(&json!({"prompt": prompt})))
    }

    #[test]
    fn the_last_user_is_asking_and_all_messages_count() {
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
    fn parts_count_as_the_same_text_does() {
        let whole = chat(&json!([{"role": "user", "content": "Hello there"}])).unwrap();
        let parts =
            chat(&json!([{"role": "user", "content": [{"type": "text", "text": "Hello there"}]}]))
                .unwrap();
        assert_eq!(whole.tokens, parts.tokens);
        assert_eq!(whole.seed, parts.seed);
    }

    #[test]
    fn what_is_no_chat_is_refused() {
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
    fn a_prompt_is_text_or_tokens() {
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
