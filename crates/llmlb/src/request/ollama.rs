//! Ollama's own API, as far as it is served: asking models, and what a client must know before.
//! What changes a backend (`pull`, `create`, `delete`) does not pass.

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use super::error::json_response;
use crate::balance::Table;
use crate::config::Kind;

/// The list of models.
const TAGS: &str = "/api/tags";

/// Whether a request is for Ollama itself.
pub(super) fn is_asked(method: &Method, path: &str) -> bool {
    match path {
        TAGS | "/api/version" => method.is_safe(),
        path => *method == Method::POST && is_question(path),
    }
}

/// Whether it asks a model, or about one. Asking twice does no harm.
pub(super) fn is_question(path: &str) -> bool {
    matches!(
        path,
        "/api/chat" | "/api/embed" | "/api/embeddings" | "/api/generate" | "/api/show"
    )
}

/// What all of them have, if that is asked for: one of them would not know it.
pub(super) fn list(path: &str, table: &Table) -> Option<Response<Full<Bytes>>> {
    (path == TAGS).then(|| {
        let names = table.model_names(Some(Kind::Ollama));
        let models: Vec<_> = names.iter().map(|name| described(name, table)).collect();
        json_response(StatusCode::OK, json!({ "models": models }).to_string())
    })
}

/// As far as it is known here.
fn described(name: &str, table: &Table) -> Value {
    let told = table.models.iter().find(|model| model["id"] == *name);
    let created = told.and_then(|model| model["created"].as_i64());
    let created = jiff::Timestamp::from_second(created.unwrap_or_default());
    json!({
        "name": name,
        "model": name,
        "modified_at": created.unwrap_or_default().to_string(),
        "size": 0,
        "digest": "",
        "details": {},
    })
}
