//! `/v1/models`: everything that the backends serve, each model once.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::Full;

use super::error::{Refusal, json_response};
use crate::balance::Table;
use crate::config::Kind;

/// The list.
pub(super) fn list(table: &Arc<Table>) -> Response<Full<Bytes>> {
    json_response(StatusCode::OK, table.list())
}

/// The description of one of them.
pub(super) fn one(table: &Arc<Table>, name: &str) -> Result<Response<Full<Bytes>>, Refusal> {
    let found = table.model(name);
    match found.or_else(|| table.model(&format!("{name}:latest"))) {
        Some(model) => {
            let mut text = String::new();
            model.write_json(&mut text);
            Ok(json_response(StatusCode::OK, text))
        }
        None => Err(unknown(name, table, None)),
    }
}

/// Somebody who has not answered yet may serve it: it is worth trying again.
pub(super) fn not_yet(name: &str, table: &Table) -> Refusal {
    let unknown = table.backends.iter().filter(|one| !one.is_known());
    let unknown: Vec<_> = unknown.map(|one| one.label()).collect();
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
        format!(
            "No backend is known to serve the model `{}`; {why}",
            short(name)
        ),
    )
    .param("model")
    .retry_after(1)
}

/// What a client may have typed, at a length that one can read.
fn short(name: &str) -> String {
    name.chars().take(200).collect()
}

/// A 404 that says what there is instead.
pub(super) fn unknown(name: &str, table: &Table, kind: Option<Kind>) -> Refusal {
    let there_is = there_is(&table.model_names(kind));
    let name = short(name);
    Refusal::new(
        StatusCode::NOT_FOUND,
        "model_not_found",
        format!("The model `{name}` does not exist. {there_is}"),
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
