//! Handlers of the fake LLM server for `/v1/responses`, OpenAI's API whose responses are stored, so
//! that a later request can continue them.

use std::cell::Cell;

use serde_json::{Value, json};

use super::Reports;
use super::call::Call;
use super::words::Words;

pub(super) fn create(call: &mut Call<'_>) {
    let params = call.params();
    if !call.require_model(params["model"].as_str().unwrap_or_default()) {
        return;
    }
    if let Some(before) = params["previous_response_id"].as_str() {
        let is_known = call
            .state
            .responses
            .lock()
            .expect("the map")
            .contains_key(before);
        if !is_known {
            let name = call.state.sort.name;
            let message = format!("Previous response with id '{before}' not found on `{name}`.");
            return call.error(400, Some("previous_response_not_found"), &message);
        }
    }
    let words = Words::for_prompt(&params["input"], &params["max_output_tokens"]);
    let id = call.id("resp_");
    let whole = response(&id, call.state.sort.reports, &params, &words);
    call.state
        .responses
        .lock()
        .expect("the map")
        .insert(id, whole.clone());
    if params["stream"] == true {
        stream(call, &words, &whole);
    } else {
        call.send_whole(&words, &whole);
    }
}

/// Serves the requests for one stored response, which have its id in their path.
pub(super) fn kept(call: &mut Call<'_>, method: &str, id: &str, rest: &[&str]) {
    let found = call
        .state
        .responses
        .lock()
        .expect("the map")
        .get(id)
        .cloned();
    let Some(found) = found else {
        let message = format!(
            "Response with id '{id}' not found on `{}`.",
            call.state.sort.name
        );
        return call.error(404, None, &message);
    };
    match (method, rest) {
        ("GET", []) => call.json(200, &found),
        ("GET", ["input_items"]) => {
            let item = json!({
                "id": format!("msg_of_{id}"),
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": [{ "type": "input_text", "text": found["metadata"]["input"] }],
            });
            let list = json!({ "object": "list", "data": [item], "has_more": false });
            call.json(200, &list);
        }
        ("DELETE", []) => {
            call.state.responses.lock().expect("the map").remove(id);
            call.json(
                200,
                &json!({ "id": id, "object": "response", "deleted": true }),
            );
        }
        _ => call.error(405, None, "That cannot be done."),
    }
}

fn response(id: &str, reports: Reports, params: &Value, words: &Words) -> Value {
    let usage = json!({
        "input_tokens": words.prompt,
        "input_tokens_details": { "cached_tokens": words.cached, "cache_write_tokens": 0 },
        "output_tokens": words.count(),
        "output_tokens_details": { "reasoning_tokens": 0 },
        "total_tokens": words.prompt + words.count(),
    });
    json!({
        "id": id,
        "object": "response",
        "created_at": 1_700_000_000,
        "status": "completed",
        "error": null,
        "incomplete_details": null,
        "instructions": null,
        "metadata": { "input": params["input"].as_str() },
        "model": params["model"],
        "output": [item(id, &words.text(), "completed")],
        "parallel_tool_calls": true,
        "previous_response_id": params["previous_response_id"],
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": if reports == Reports::Never { Value::Null } else { usage },
    })
}

fn item(id: &str, text: &str, status: &str) -> Value {
    let part = json!({ "type": "output_text", "text": text, "annotations": [] });
    json!({
        "id": format!("msg_of_{id}"),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": if status == "completed" { json!([part]) } else { json!([]) },
    })
}

fn stream(call: &mut Call<'_>, words: &Words, whole: &Value) {
    let events = Events {
        id: whole["id"].as_str().unwrap_or_default(),
        number: Cell::new(0),
    };
    let mut begun = whole.clone();
    begun["status"] = json!("in_progress");
    begun["output"] = json!([]);
    begun["usage"] = Value::Null;
    let text = words.text();
    let part = |text: &str| json!({ "type": "output_text", "text": text, "annotations": [] });
    let first = [
        json!({ "type": "response.created", "response": begun }),
        json!({ "type": "response.in_progress", "response": begun }),
        events.of_item("response.output_item.added", "", "in_progress"),
        events.of_part("response.content_part.added", "part", &part("")),
    ];
    let last = [
        events.of_part("response.output_text.done", "text", &json!(text)),
        events.of_part("response.content_part.done", "part", &part(&text)),
        events.of_item("response.output_item.done", &text, "completed"),
        json!({ "type": "response.completed", "response": whole }),
    ];
    if !call.begin() || !first.into_iter().all(|event| events.send(call, event)) {
        return;
    }
    call.stream_tokens(
        words,
        |call, token, _| {
            let event = events.of_part("response.output_text.delta", "delta", &json!(token));
            events.send(call, event)
        },
        |call| last.into_iter().all(|event| events.send(call, event)),
    );
}

/// Creates and sends the events of one streamed response. Each event gets the next
/// `sequence_number`.
struct Events<'a> {
    id: &'a str,
    number: Cell<u64>,
}

impl Events<'_> {
    fn send(&self, call: &mut Call<'_>, mut event: Value) -> bool {
        event["sequence_number"] = json!(self.number.replace(self.number.get() + 1));
        let name = event["type"].as_str().unwrap_or_default().to_owned();
        call.event(Some(&name), &event)
    }

    fn of_item(&self, kind: &str, text: &str, status: &str) -> Value {
        json!({ "type": kind, "output_index": 0, "item": item(self.id, text, status) })
    }

    fn of_part(&self, kind: &str, field: &str, value: &Value) -> Value {
        json!({
            "type": kind,
            "item_id": format!("msg_of_{}", self.id),
            "output_index": 0,
            "content_index": 0,
            "logprobs": [],
            field: value,
        })
    }
}
