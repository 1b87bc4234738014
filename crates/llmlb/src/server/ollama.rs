//! `/api/tags`: the list of models in the format of Ollama's native API.

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::balance::Table;
use crate::config::Kind;
use crate::keys::ApiKey;
use crate::request::json_response;

/// Returns the response to `/api/tags`: the models of all Ollama backends. A single backend would
/// list only its own.
pub(super) fn list(table: &Table, key: Option<&ApiKey>) -> Response<Full<Bytes>> {
    let mut names = table.model_names(Some(Kind::Ollama));
    names.retain(|name| key.is_none_or(|key| key.allows(name)));
    let models: Vec<_> = names.iter().map(|name| describe(name, table)).collect();
    json_response(StatusCode::OK, json!({ "models": models }).to_string())
}

/// Returns Ollama's description of a model, without its size and digest, which llmlb does not know.
fn describe(name: &str, table: &Table) -> Value {
    let created = table.model(name).and_then(|model| model.created);
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
