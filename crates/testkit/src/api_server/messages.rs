//! Handler of the fake LLM server for `/v1/messages` of Anthropic's API.

use serde_json::{Value, json};

use super::Reports;
use super::call::Call;
use super::words::Words;

pub(super) fn create(call: &mut Call<'_>) {
    let params = call.params();
    if !call.require_model(params["model"].as_str().unwrap_or_default()) {
        return;
    }
    let words = Words::for_prompt(&params["messages"], &params["max_tokens"]);
    let message = message(&call.id("msg_"), &params, &words);
    if params["stream"] == true {
        stream(call, &words, message);
    } else {
        call.send_whole(&words, &message);
    }
}

pub(super) fn count(call: &mut Call<'_>) {
    let params = call.params();
    if call.require_model(params["model"].as_str().unwrap_or_default()) {
        let words = Words::for_prompt(&params["messages"], &Value::Null);
        call.json(200, &json!({ "input_tokens": words.prompt }));
    }
}

fn message(id: &str, params: &Value, words: &Words) -> Value {
    json!({
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": params["model"],
        "content": [{ "type": "text", "text": words.text() }],
        "stop_reason": if words.is_truncated { "max_tokens" } else { "end_turn" },
        "stop_sequence": null,
        // Anthropic reports cached tokens separately from the other input tokens, so they are not
        // included in `input_tokens`.
        "usage": {
            "input_tokens": words.prompt - words.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": words.cached,
            "output_tokens": words.count(),
        },
    })
}

fn stream(call: &mut Call<'_>, words: &Words, mut message: Value) {
    let reason = message["stop_reason"].take();
    message["content"] = json!([]);
    message["usage"]["output_tokens"] = json!(1);
    let is_told_twice = matches!(call.state.sort.reports, Reports::SoFar | Reports::Twice);
    let delta = |reason: &Value, count: u64| {
        json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": null },
            "usage": { "output_tokens": count },
        })
    };
    let first = [
        json!({ "type": "message_start", "message": message }),
        json!({
            "type": "content_block_start",
            "index": 0,
            "content_block": { "type": "text", "text": "" },
        }),
        json!({ "type": "ping" }),
    ];
    if !call.begin() || !first.iter().all(|event| send(call, event)) {
        return;
    }
    call.stream_tokens(
        words,
        |call, token, _| {
            let delta = json!({ "type": "text_delta", "text": token });
            send(
                call,
                &json!({ "type": "content_block_delta", "index": 0, "delta": delta }),
            )
        },
        |call| {
            // Each `message_delta` reports the sum of output tokens so far, as Anthropic does. A
            // proxy must record the last value and not add the values up.
            send(call, &json!({ "type": "content_block_stop", "index": 0 }))
                && (!is_told_twice || send(call, &delta(&Value::Null, words.count() / 2)))
                && send(call, &delta(&reason, words.count()))
                && send(call, &json!({ "type": "message_stop" }))
        },
    );
}

fn send(call: &mut Call<'_>, event: &Value) -> bool {
    call.event(event["type"].as_str(), event)
}
