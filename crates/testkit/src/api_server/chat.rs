//! `/v1/chat/completions` and `/v1/completions`.

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
    let asked = call.asked();
    let reports = call.state.sort.reports;
    if !call.knows(asked["model"].as_str().unwrap_or_default()) {
        return;
    }
    if asked.get("stream_options").is_some() && reports == Reports::Refuses {
        let why = "Unrecognized request argument supplied: stream_options";
        return call.error(400, None, why);
    }
    let question = match form {
        Form::Chat => &asked["messages"],
        Form::Text => &asked["prompt"],
    };
    let most = ["max_completion_tokens", "max_tokens"].map(|name| &asked[name]);
    let most = most.into_iter().find(|most| most.is_u64());
    let words = Words::to(question, most.unwrap_or(&Value::Null));
    let answer = Answer {
        form,
        id: call.id(if form == Form::Chat {
            "chatcmpl-"
        } else {
            "cmpl-"
        }),
        model: asked["model"].clone(),
        words: &words,
        reports,
        is_asked: asked["stream_options"]["include_usage"] == true,
    };
    if asked["stream"] != true {
        return call.give(&words, &answer.whole());
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
    call.speak(
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
    is_asked: bool,
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

    /// Returns a chunk with one choice.
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
        let is_told = match self.reports {
            Reports::SoFar => true,
            Reports::WithTheReason => reason.is_some(),
            _ => false,
        };
        if is_told {
            chunk["usage"] = self.usage(count);
        } else if self.is_asked && self.reports != Reports::Never {
            // OpenAI's server does so.
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Sends the events after the last token.
    fn finish(&self, call: &mut Call<'_>) -> bool {
        let count = self.words.count();
        let nothing = match self.form {
            Form::Chat => json!({}),
            Form::Text => json!(""),
        };
        let mut events = vec![self.chunk(&nothing, Some(self.reason()), count)];
        if self.is_asked && self.reports != Reports::Never {
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
        if self.words.is_cut_short {
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
