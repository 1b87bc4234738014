//! `/v1/models`: everything that the backends serve, each model once.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;

use super::backlog::SharedBody;
use crate::balance::{Pool, Table};
use crate::config::{Alias, Kind};
use crate::request::{Refusal, backend_auth, json_response};

/// The list.
pub(super) fn list(table: &Arc<Table>) -> Response<Full<Bytes>> {
    let mut response = json_response(StatusCode::OK, table.list());
    response.extensions_mut().insert(SharedBody);
    response
}

/// The description of one of them.
pub(super) fn one(pool: &Pool, name: &str) -> Result<Response<Full<Bytes>>, Refusal> {
    let table = pool.table();
    let found = table.model(name);
    match found.or_else(|| table.model(&format!("{name}:latest"))) {
        Some(model) => {
            let mut text = String::new();
            model.write_json(&mut text);
            Ok(json_response(StatusCode::OK, text))
        }
        None => Err(unknown(name, pool, None)),
    }
}

/// Somebody who has not answered yet may serve it: it is worth trying again.
pub(super) fn not_yet(name: &str, pool: &Pool) -> Refusal {
    let table = pool.table();
    let unknown = || table.backends.iter().filter(|one| !one.is_known());
    let mut rejected = unknown().map(|one| one.health.rejected_key());
    if let Some(Some(status)) = rejected.next()
        && rejected.all(|status| status.is_some())
    {
        return backend_auth(status);
    }
    let unknown: Vec<_> = unknown().map(|one| one.label()).collect();
    let why = if unknown.is_empty() {
        "no backend is known yet".to_owned()
    } else {
        format!(
            "backends that have not told their models yet (`llmlb status` says why): {}. {}",
            unknown.join(", "),
            there_is(&table.model_names(None))
        )
    };
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "all_backends_down",
        match pool.alias(name) {
            Some(alias) => format!(
                "`{name}` is an alias for {}, which no backend is known to serve; {why}",
                meant(alias)
            ),
            None => format!(
                "No backend is known to serve the model `{}`; {why}",
                short(name)
            ),
        },
    )
    .param("model")
    .retry_after(1)
}

/// What a client may have typed, at a length that one can read.
fn short(name: &str) -> String {
    name.chars().take(200).collect()
}

/// The models that an alias stands for.
fn meant(alias: &Alias) -> String {
    let models: Vec<_> = alias
        .models
        .iter()
        .map(|name| format!("`{name}`"))
        .collect();
    models.join(" or ")
}

/// A 404 that lists the models there are.
pub(super) fn unknown(name: &str, pool: &Pool, kind: Option<Kind>) -> Refusal {
    let there_is = there_is(&pool.table().model_names(kind));
    let why = match pool.alias(name) {
        Some(alias) => {
            let models = meant(alias);
            format!("`{name}` is an alias for {models}, which no backend serves.")
        }
        None => format!("The model `{}` does not exist.", short(name)),
    };
    Refusal::new(
        StatusCode::NOT_FOUND,
        "model_not_found",
        format!("{why} {there_is}"),
    )
    .param("model")
}

fn there_is(names: &[&str]) -> String {
    const MOST_LISTED: usize = 50;
    match names.len() {
        0 => "No backend has told its models yet.".to_owned(),
        count if count > MOST_LISTED => format!(
            "Available: {} and {} more.",
            names[..MOST_LISTED].join(", "),
            count - MOST_LISTED
        ),
        _ => format!("Available: {}.", names.join(", ")),
    }
}
