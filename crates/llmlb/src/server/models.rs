//! `/v1/models`: the models of all backends, each once; and errors for models that no backend
//! serves.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;

use super::backlog::SharedBody;
use crate::balance::{Pool, Table};
use crate::config::{Alias, Kind};
use crate::keys::ApiKey;
use crate::request::{Refusal, backend_auth, json_response};

/// Returns the response to `/v1/models`: the models that the client's key may use.
pub(super) fn list(table: &Arc<Table>, key: Option<&ApiKey>) -> Response<Full<Bytes>> {
    if let Some(key) = key.filter(|key| key.models().is_some()) {
        return json_response(StatusCode::OK, table.list_where(|name| key.allows(name)));
    }
    let mut response = json_response(StatusCode::OK, table.list());
    response.extensions_mut().insert(SharedBody);
    response
}

/// Returns the response to `/v1/models/NAME`, the description of one model.
pub(super) fn describe(
    pool: &Pool,
    name: &str,
    key: Option<&ApiKey>,
) -> Result<Response<Full<Bytes>>, Refusal> {
    let table = pool.table();
    // A model that the key may not use must not exist for the client, so respond as for an unknown
    // name.
    if key.is_some_and(|key| !key.allows(name)) {
        return Err(absent(name, pool, None, key));
    }
    let found = table.model(name);
    match found.or_else(|| table.model(&format!("{name}:latest"))) {
        Some(model) => {
            let mut text = String::new();
            model.write_json(&mut text);
            Ok(json_response(StatusCode::OK, text))
        }
        None if table.is_complete() => Err(unknown(name, pool, None, key)),
        None => Err(not_known_yet(name, pool, key)),
    }
}

/// Returns the error 503 for a model that may be served by a backend that has not reported its
/// models yet, so that the client retries. A 404 would make it give up.
pub(super) fn not_known_yet(name: &str, pool: &Pool, key: Option<&ApiKey>) -> Refusal {
    let table = pool.table();
    let unknown = || table.backends.iter().filter(|one| !one.has_known_models());
    let mut rejected = unknown().map(|one| one.health.rejected_key());
    if let Some(Some(status)) = rejected.next()
        && rejected.all(|status| status.is_some())
    {
        return backend_auth(status);
    }
    let unknown: Vec<_> = unknown().map(|one| one.label()).collect();
    let why = if unknown.is_empty() {
        "no backend has been found yet".to_owned()
    } else {
        format!(
            "backends that have not reported their models yet (see `llmlb status`): {}. {}",
            unknown.join(", "),
            available(&table.model_names(None), key)
        )
    };
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "all_backends_down",
        match table.alias(name) {
            Some(alias) => format!(
                "`{name}` is an alias for {}, which no backend is known to serve; {why}",
                alias_targets(alias)
            ),
            None => format!(
                "No backend is known to serve the model `{}`; {why}",
                truncated(name)
            ),
        },
    )
    .param("model")
    .retry_after(1)
}

/// Returns the beginning of a model's name for an error message. A client may send a name of any
/// length.
fn truncated(name: &str) -> String {
    name.chars().take(200).collect()
}

/// Returns the models that an alias stands for as text for an error message: "`a` or `b`".
fn alias_targets(alias: &Alias) -> String {
    let models: Vec<_> = alias
        .models
        .iter()
        .map(|name| format!("`{name}`"))
        .collect();
    models.join(" or ")
}

/// Returns the error 404 for a model that does not exist, with the list of available models.
pub(super) fn unknown(
    name: &str,
    pool: &Pool,
    kind: Option<Kind>,
    key: Option<&ApiKey>,
) -> Refusal {
    let table = pool.table();
    not_found(name, table.alias(name), &table, kind, key)
}

/// Returns the error 404 for a model that does not exist for this client. The error does not
/// disclose that the name is an alias.
fn absent(name: &str, pool: &Pool, kind: Option<Kind>, key: Option<&ApiKey>) -> Refusal {
    not_found(name, None, &pool.table(), kind, key)
}

fn not_found(
    name: &str,
    alias: Option<&Alias>,
    table: &Table,
    kind: Option<Kind>,
    key: Option<&ApiKey>,
) -> Refusal {
    let available = available(&table.model_names(kind), key);
    let why = match alias {
        Some(alias) => {
            let models = alias_targets(alias);
            format!("`{name}` is an alias for {models}, which no backend serves.")
        }
        None => format!("The model `{}` does not exist.", truncated(name)),
    };
    Refusal::new(
        StatusCode::NOT_FOUND,
        "model_not_found",
        format!("{why} {available}"),
    )
    .param("model")
}

/// Returns a sentence for an error message that lists the models which exist and which the client's
/// key may use.
fn available(names: &[&str], key: Option<&ApiKey>) -> String {
    const MAX_LISTED: usize = 50;
    let is_allowed = |name: &&str| key.is_none_or(|key| key.allows(name));
    let names: Vec<&str> = names.iter().copied().filter(is_allowed).collect();
    match names.len() {
        0 => "No model is available through this API.".to_owned(),
        count if count > MAX_LISTED => format!(
            "Available: {} and {} more.",
            names[..MAX_LISTED].join(", "),
            count - MAX_LISTED
        ),
        _ => format!("Available: {}.", names.join(", ")),
    }
}
