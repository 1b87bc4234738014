//! Handlers of the fake LLM server for `/v1/chat/completions` and `/v1/completions`.

use serde_json::{Value, json};

use super::Reports;
use super::call::Call;
use super::words::Words;

/// API of a completion.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Form {
    Chat,
    Text,
}

pub(super) fn answer(call: &mut Call<'_>, form: Form) {
    let params = call.params();
    let reports = call.state.sort.reports;
    if !call.require_model(params["model"].as_str().unwrap_or_default()) {
        return;
    }
    if params.get("stream_options").is_some() && reports == Reports::Refuses {
        let message = "Unrecognized request argument supplied: stream_options";
        return call.error(400, None, message);
    }
    let prompt = match form {
        Form::Chat => &params["messages"],
        Form::Text => &params["prompt"],
    };
    let limits = ["max_completion_tokens", "max_tokens"].map(|name| &params[name]);
    let max_tokens = limits.into_iter().find(|limit| limit.is_u64());
    let words = Words::for_prompt(prompt, max_tokens.unwrap_or(&Value::Null));
    let answer = Answer {
        form,
        id: call.id(if form == Form::Chat {
            "chatcmpl-"
        } else {
            "cmpl-"
        }),
        model: params["model"].clone(),
        words: &words,
        reports,
        includes_usage: params["stream_options"]["include_usage"] == true,
    };
    if params["stream"] != true {
        return call.send_whole(&words, &answer.whole());
    }
    if !call.begin()
        || (form == Form::Chat
            && !call.event(
                None,
                &answer.chunk(&json!({ "role": "assistant", "content": "" }), None, 0),
            ))
    {
        return;
    }
    call.stream_tokens(
        &words,
        |call, token, count| {
            let delta = match form {
                Form::Chat => json!({ "content": token }),
                Form::Text => json!(token),
            };
            call.event(None, &answer.chunk(&delta, None, count))
        },
        |call| answer.finish(call),
    );
}

struct Answer<'a> {
    form: Form,
    id: String,
    model: Value,
    words: &'a Words,
    reports: Reports,
    /// True if the request asks for usage in the stream.
    includes_usage: bool,
}

impl Answer<'_> {
    fn whole(&self) -> Value {
        let reason = self.reason();
        let (object, choice) = match self.form {
            Form::Chat => (
                "chat.completion",
                json!({
                    "index": 0,
                    "message": { "role": "assistant", "content": self.words.text(), "refusal": null },
                    "logprobs": null,
                    "finish_reason": reason,
                }),
            ),
            Form::Text => (
                "text_completion",
                json!({ "index": 0, "text": self.words.text(), "logprobs": null, "finish_reason": reason }),
            ),
        };
        let mut whole = self.frame(object, &json!([choice]));
        if self.reports != Reports::Never {
            whole["usage"] = self.usage(self.words.count());
        }
        whole
    }

    fn chunk(&self, delta: &Value, reason: Option<&str>, count: u64) -> Value {
        let (object, choice) = match self.form {
            Form::Chat => (
                "chat.completion.chunk",
                json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason }),
            ),
            Form::Text => (
                "text_completion",
                json!({ "index": 0, "text": delta, "logprobs": null, "finish_reason": reason }),
            ),
        };
        let mut chunk = self.frame(object, &json!([choice]));
        let has_usage = match self.reports {
            Reports::SoFar => true,
            Reports::WithTheReason => reason.is_some(),
            _ => false,
        };
        if has_usage {
            chunk["usage"] = self.usage(count);
        } else if self.includes_usage && self.reports != Reports::Never {
            // If the request asks for usage, OpenAI sends `"usage": null` in every chunk but the
            // last. Clients and proxies must not take it for a report of 0 tokens.
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn finish(&self, call: &mut Call<'_>) -> bool {
        let count = self.words.count();
        let nothing = match self.form {
            Form::Chat => json!({}),
            Form::Text => json!(""),
        };
        let mut events = vec![self.chunk(&nothing, Some(self.reason()), count)];
        if self.includes_usage && self.reports != Reports::Never {
            let object = events[0]["object"].as_str().unwrap_or_default();
            let mut usage = self.frame(object, &json!([]));
            usage["usage"] = self.usage(count);
            if self.reports == Reports::Twice {
                events.push(usage.clone());
            }
            events.push(usage);
        }
        events.iter().all(|event| call.event(None, event)) && call.piece("data: [DONE]\n\n")
    }

    fn frame(&self, object: &str, choices: &Value) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": 1_700_000_000,
            "model": self.model,
            "system_fingerprint": "fp_mock",
            "choices": choices,
        })
    }

    fn reason(&self) -> &'static str {
        if self.words.is_truncated {
            "length"
        } else {
            "stop"
        }
    }

    fn usage(&self, completion: u64) -> Value {
        let prompt = self.words.prompt;
        json!({
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": { "cached_tokens": self.words.cached },
        })
    }
}
