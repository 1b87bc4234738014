//! Handlers of the fake LLM server for embeddings, moderations, audio and images.

use serde_json::{Value, json};

use super::base64;
use super::call::Call;
use super::form;
use super::words::Words;

/// Returns the content of a fake image or recording. It contains every byte value, so that tests
/// detect changed bytes.
fn bytes() -> Vec<u8> {
    (0..4096_u16)
        .map(|number| number.to_le_bytes()[0])
        .collect()
}

pub(super) fn embeddings(call: &mut Call<'_>) {
    let params = call.params();
    if !call.require_model(params["model"].as_str().unwrap_or_default()) {
        return;
    }
    let count = params["input"].as_array().map_or(1, Vec::len);
    let count = u8::try_from(count).expect("few inputs");
    // Multiples of 1/8 are exact as 32-bit floats and as decimal text, so an embedding has the same
    // values as Base64 and as JSON numbers.
    let vector = |index: u8| (0..8_u8).map(move |at| f32::from(at) / 8.0 + f32::from(index));
    let data: Vec<_> = (0..count)
        .map(|index| {
            let embedding = if params["encoding_format"] == "base64" {
                let bytes: Vec<_> = vector(index).flat_map(f32::to_le_bytes).collect();
                json!(base64::encode(&bytes))
            } else {
                json!(vector(index).collect::<Vec<_>>())
            };
            json!({ "object": "embedding", "index": index, "embedding": embedding })
        })
        .collect();
    let words = Words::for_prompt(&params["input"], &json!(0));
    let usage = json!({ "prompt_tokens": words.prompt, "total_tokens": words.prompt });
    let body = json!({ "object": "list", "data": data, "model": params["model"], "usage": usage });
    call.send_whole(&words, &body);
}

pub(super) fn moderations(call: &mut Call<'_>) {
    let params = call.params();
    if call.require_model(params["model"].as_str().unwrap_or_default()) {
        let result = json!({ "flagged": false, "categories": {}, "category_scores": {} });
        let id = call.id("modr-");
        call.json(
            200,
            &json!({ "id": id, "model": params["model"], "results": [result] }),
        );
    }
}

pub(super) fn speech(call: &mut Call<'_>) {
    if call.require_model(call.params()["model"].as_str().unwrap_or_default()) {
        call.send(200, "audio/mpeg", &bytes());
    }
}

/// Responds with the fields of the request, so that a test can check them.
pub(super) fn transcription(call: &mut Call<'_>) {
    let fields = form::read(call);
    let (model, file) = (form::text(&fields, "model"), form::file(&fields));
    let Some(file) = file else {
        return call.error(400, None, "There is no file in the form.");
    };
    if call.require_model(&model) {
        let name = file.filename.as_deref().unwrap_or_default();
        let text = format!("{} bytes of {name}, heard by {model}", file.bytes.len());
        call.json(200, &json!({ "text": text }));
    }
}

pub(super) fn image(call: &mut Call<'_>) {
    if call.require_model(call.params()["model"].as_str().unwrap_or_default()) {
        call.json(200, &picture());
    }
}

pub(super) fn image_edit(call: &mut Call<'_>) {
    let fields = form::read(call);
    if form::file(&fields).is_none() {
        return call.error(400, None, "There is no picture in the form.");
    }
    if call.require_model(&form::text(&fields, "model")) {
        call.json(200, &picture());
    }
}

fn picture() -> Value {
    let usage = json!({ "input_tokens": 5, "output_tokens": 100, "total_tokens": 105 });
    let data = json!([{ "b64_json": base64::encode(&bytes()) }]);
    json!({ "created": 1_700_000_000, "data": data, "usage": usage })
}
