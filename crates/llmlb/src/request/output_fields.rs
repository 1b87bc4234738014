//! Fields of a request that limit its output, from which llmlb computes the tokens that the key
//! must have left.
//!
//! Fields that the endpoint ignores do not count, because a client could lower its reservation with
//! them. If a field appears several times, the largest value counts.

use crate::endpoint::Api;
use crate::json;
use crate::limits::OutputDemand;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OutputFields {
    /// Maximum number of tokens of each response; `None` if the request sets none.
    max: Option<u64>,
    /// A maximum that only llama.cpp reads. It counts if it is larger than [`Self::max`].
    llama_cpp_max: u64,
    /// True if a field states no limit, such as `-1`, or its value cannot be read.
    is_unlimited: bool,
    /// Number of responses that the request demands for each prompt; 0 counts as 1.
    choices: u64,
    /// Number of prompts in the request; 0 counts as 1. Each prompt has its own responses.
    prompts: u64,
}

impl OutputFields {
    /// Reads a field of a request if it limits the output on this API.
    pub(super) fn read(&mut self, api: Api, name: &[u8], value: &[u8]) {
        use Api::{Chat, Completions, Messages, OllamaChat, OllamaGenerate, Responses};
        if value == b"null" {
            return;
        }
        match (name, api) {
            (b"max_tokens", Chat | Completions | Messages)
            | (b"max_completion_tokens", Chat)
            | (b"max_output_tokens", Responses)
            | (b"num_predict", OllamaChat | OllamaGenerate) => {
                self.max = self.max.max(number(value));
                self.is_unlimited |= number(value).is_none();
            }
            // llama.cpp prefers this field to the others. Other servers ignore it, so it must not lower the maximum.
            (b"n_predict", Chat | Completions) => {
                let max = number(value);
                self.llama_cpp_max = self.llama_cpp_max.max(max.unwrap_or_default());
                self.is_unlimited |= max.is_none();
            }
            (b"n", Chat | Completions) | (b"best_of", Completions) => {
                self.choices = self.choices.max(number(value).unwrap_or_default());
            }
            _ => {}
        }
    }

    /// True if some API limits its output by a field with this name, so that the parser passes the
    /// field to [`Self::read`].
    pub(super) fn has(name: &[u8]) -> bool {
        matches!(
            name,
            b"max_tokens"
                | b"max_completion_tokens"
                | b"max_output_tokens"
                | b"n"
                | b"best_of"
                | b"n_predict"
                | b"options"
        )
    }

    /// Reads the limit on the output in Ollama's object `options`.
    pub(super) fn read_options(&mut self, api: Api, object: &[u8]) {
        // Ignore an `options` field that is no object: Ollama rejects the request.
        let _ = json::fields(object, |name, place| self.read(api, name, &object[place]));
    }

    /// Sets the number of prompts from the field `prompt` of a completion. A list of numbers is one
    /// prompt of token ids.
    pub(super) fn set_prompts(&mut self, prompt: &[u8], elements: impl FnOnce(&[u8]) -> u64) {
        let list = prompt.strip_prefix(b"[").unwrap_or_default();
        if let Some(b'"' | b'[') = list.trim_ascii_start().first() {
            self.prompts = elements(prompt);
        }
    }

    /// Number of responses.
    pub(crate) fn choices(&self) -> u64 {
        self.choices.max(1).saturating_mul(self.prompts.max(1))
    }

    /// Returns the number of output tokens that a request to this API may generate, for the limits
    /// of its key.
    pub(crate) fn demand(&self, api: Api) -> OutputDemand {
        let max = self.max.filter(|_| !self.is_unlimited);
        match (api.writes_text(), max) {
            (true, Some(max)) => {
                let max = max.max(self.llama_cpp_max);
                OutputDemand::AtMost(max.saturating_mul(self.choices()))
            }
            (true, None) => OutputDemand::Unlimited,
            (false, _) if api.reads_text() => OutputDemand::AtMost(0),
            (false, _) if api.is_metered() => OutputDemand::Unknown,
            (false, _) => OutputDemand::NoModel,
        }
    }
}

/// Parses a whole number that is not negative. Ollama's `-1` (no limit) is `None`. Numbers in quotes and with an
/// exponent are read too, because backends accept them.
fn number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?.trim_matches('"').trim();
    text.parse().ok().or_else(|| {
        let number: f64 = text.parse().ok()?;
        format!("{:.0}", number.ceil()).parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse::in_json;
    use super::*;

    fn demand(api: Api, body: &str) -> OutputDemand {
        in_json(body.as_bytes(), api).unwrap().output.demand(api)
    }

    #[test]
    fn maximum_of_the_output_is_that_of_the_endpoint() {
        use OutputDemand::{AtMost, NoModel, Unknown, Unlimited};
        for (api, body, expected) in [
            (Api::Chat, r#"{"max_tokens":5}"#, AtMost(5)),
            (
                Api::Chat,
                r#"{"max_tokens":5,"max_completion_tokens":9}"#,
                AtMost(9),
            ),
            (Api::Chat, r#"{"max_tokens":5,"n":3}"#, AtMost(15)),
            (Api::Chat, r#"{"max_output_tokens":5}"#, Unlimited),
            (Api::Chat, r#"{"max_tokens":null,"n":2}"#, Unlimited),
            (Api::Chat, r#"{"max_tokens":-1}"#, Unlimited),
            (
                Api::Chat,
                r#"{"max_tokens":99999999999999999999}"#,
                Unlimited,
            ),
            (Api::Chat, r#"{"max_tokens":1,"max_tokens":7}"#, AtMost(7)),
            // Backends accept whole numbers in these forms, and llama.cpp prefers `n_predict`.
            (
                Api::Chat,
                r#"{"max_tokens":1,"max_completion_tokens":9e2}"#,
                AtMost(900),
            ),
            (
                Api::Chat,
                r#"{"max_tokens":1,"max_completion_tokens":"900"}"#,
                AtMost(900),
            ),
            (Api::Chat, r#"{"max_tokens":5,"n":3.0}"#, AtMost(15)),
            (Api::Chat, r#"{"max_tokens":5,"n":"3"}"#, AtMost(15)),
            (Api::Chat, r#"{"max_tokens":5,"n_predict":9}"#, AtMost(9)),
            (Api::Chat, r#"{"max_tokens":5,"n_predict":-1}"#, Unlimited),
            (Api::Chat, r#"{"n_predict":1}"#, Unlimited),
            (
                Api::Chat,
                r#"{"max_tokens":5,"max_completion_tokens":null}"#,
                AtMost(5),
            ),
            (
                Api::Chat,
                r#"{"max_tokens":5,"max_completion_tokens":-1}"#,
                Unlimited,
            ),
            (
                Api::Responses,
                r#"{"max_output_tokens":8,"max_tokens":1}"#,
                AtMost(8),
            ),
            (Api::Messages, r#"{"max_tokens":4,"n":9}"#, AtMost(4)),
            (
                Api::Completions,
                r#"{"prompt":["a","b"],"max_tokens":4,"best_of":2}"#,
                AtMost(16),
            ),
            (
                Api::Completions,
                r#"{"prompt":[1,2,3],"max_tokens":4}"#,
                AtMost(4),
            ),
            (
                Api::Completions,
                r#"{"prompt":[ [1],[2] ],"max_tokens":4}"#,
                AtMost(8),
            ),
            (
                Api::OllamaChat,
                r#"{"options":{"num_predict":6}}"#,
                AtMost(6),
            ),
            (
                Api::OllamaChat,
                r#"{"options":{"num_predict":-1}}"#,
                Unlimited,
            ),
            (
                Api::OllamaChat,
                r#"{"options":[1],"num_predict":6}"#,
                Unlimited,
            ),
            (
                Api::Embeddings,
                r#"{"input":"a","max_tokens":5}"#,
                AtMost(0),
            ),
            (Api::Images, "{}", Unknown),
            (Api::Other, "{}", NoModel),
        ] {
            assert_eq!(demand(api, body), expected, "{api:?} {body}");
        }
    }

    #[test]
    fn responses_to_several_prompts_are_counted() {
        let body = br#"{"prompt":["a","b"],"n":3}"#;
        let parsed = in_json(body, Api::Completions).unwrap();
        assert_eq!(parsed.output.choices(), 6);
    }

    #[test]
    fn product_of_large_numbers_does_not_overflow() {
        let body = format!(r#"{{"max_tokens":{0},"n":{0}}}"#, u64::MAX);
        assert_eq!(demand(Api::Chat, &body), OutputDemand::AtMost(u64::MAX));
    }
}
