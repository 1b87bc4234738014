//! Handlers of the fake LLM server for `/v1/files`: uploads, which can be listed and downloaded.
//! Responses have the fields of both OpenAI's and Anthropic's API.

use serde_json::{Value, json};

use super::call::Call;
use super::form;

pub(super) struct Kept {
    about: Value,
    bytes: Vec<u8>,
}

pub(super) fn keep(call: &mut Call<'_>) {
    let fields = form::read(call);
    let Some(file) = form::file(&fields) else {
        return call.error(400, None, "There is no file in the form.");
    };
    let model = form::text(&fields, "model");
    if !model.is_empty() && !call.require_model(&model) {
        return;
    }
    let id = call.id("file-");
    let about = json!({
        "id": id,
        "filename": file.filename,
        // OpenAI's fields.
        "object": "file",
        "bytes": file.bytes.len(),
        "purpose": form::text(&fields, "purpose"),
        "status": "processed",
        // The following fields are those of Anthropic's API, so that its client can read the same
        // response. `created_at` stays a number as in OpenAI's API, although Anthropic sends text.
        "type": "file",
        "size_bytes": file.bytes.len(),
        "mime_type": "application/octet-stream",
        "downloadable": true,
        "created_at": 1_700_000_000,
    });
    let kept = Kept {
        about: about.clone(),
        bytes: file.bytes.clone(),
    };
    call.state.files.lock().expect("the map").insert(id, kept);
    call.json(200, &about);
}

pub(super) fn list(call: &mut Call<'_>) {
    let files = call.state.files.lock().expect("the map");
    let data: Vec<_> = files.values().map(|kept| &kept.about).collect();
    let list = json!({ "object": "list", "data": data, "has_more": false });
    drop(files);
    call.json(200, &list);
}

/// Serves the requests for one uploaded file, which have its id in their path.
pub(super) fn kept(call: &mut Call<'_>, method: &str, id: &str, rest: &[&str]) {
    let files = call.state.files.lock().expect("the map");
    let found = files
        .get(id)
        .map(|kept| (kept.about.clone(), kept.bytes.clone()));
    drop(files);
    let Some((about, bytes)) = found else {
        let message = format!("No such File object: {id} on `{}`", call.state.sort.name);
        return call.error(404, None, &message);
    };
    match (method, rest) {
        ("GET", []) => call.json(200, &about),
        ("GET", ["content"]) => {
            call.send(200, "application/octet-stream", &bytes);
        }
        ("DELETE", []) => {
            call.state.files.lock().expect("the map").remove(id);
            let gone =
                json!({ "id": id, "object": "file", "deleted": true, "type": "file_deleted" });
            call.json(200, &gone);
        }
        _ => call.error(405, None, "That cannot be done."),
    }
}
