//! Pages about the server itself: `/`, `/healthz`, `/readyz`, `/status`, `/metrics`, `/explain` and
//! `/dashboard`.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::operator::Operator;
use super::serve::ConnectionContext;
use super::shared::Shared;
use super::{events, metrics, operator};
use crate::balance::{Backend, BackendState, LastError};
use crate::config::Kind;
use crate::endpoint::{self, AdminPage, Dialect, Endpoint, Page, Service};
use crate::keys::{ApiKey, KeyReport};
use crate::lock::rfc3339;
use crate::request::{Refusal, is_local, json_response};
use crate::request_settings::RequestSettings;
use crate::text;

/// Maximum number of API keys in `/status`, which bounds the size of the response.
const MAX_KEYS_SHOWN: usize = 1000;
/// Maximum number of failed requests in `/explain`.
const MAX_ERRORS: usize = 50;
/// Maximum number of characters of a path in an error message. A client may send a path of any
/// length.
const MAX_PATH: usize = 200;

/// Responds to a request for a page about the server itself, such as `/status`.
pub(crate) async fn respond(
    caller: &ConnectionContext,
    head: &Parts,
    settings: &RequestSettings,
    (page, path): (AdminPage, &str),
    body: Incoming,
    key: Option<&ApiKey>,
) -> Result<Response<Full<Bytes>>, Refusal> {
    let shared = &*caller.worker.shared;
    let is_admin = || {
        is_local(caller.peer, caller.local, &head.headers) || key.is_some_and(|key| key.is_admin)
    };
    match page {
        AdminPage::Greeting => Ok(greeting()),
        AdminPage::Health => Ok(json_response(StatusCode::OK, healthz(shared).to_string())),
        AdminPage::Ready => Ok(readyz(shared)),
        AdminPage::Status if is_admin() => {
            Ok(json_response(StatusCode::OK, status(shared).to_string()))
        }
        AdminPage::Metrics if is_admin() => Ok(metrics::respond(shared, &head.headers)),
        AdminPage::Explain if is_admin() => {
            let found = explain(shared, endpoint::request_id_in(path));
            Ok(json_response(StatusCode::OK, found.to_string()))
        }
        AdminPage::Status => Err(forbidden("/status")),
        AdminPage::Metrics => Err(forbidden("/metrics")),
        AdminPage::Explain => Err(forbidden("/explain")),
        AdminPage::Snapshot => {
            Operator::of(caller, head, settings, key)?;
            Ok(json_response(StatusCode::OK, shared.snapshots.json()))
        }
        AdminPage::Events => {
            Operator::of(caller, head, settings, key)?;
            events::respond(shared)
        }
        AdminPage::Dashboard(page) => {
            operator::respond(caller, head, settings, page, body, key).await
        }
    }
}

/// Error for a page that is served only to admins.
pub(super) fn forbidden(path: &str) -> Refusal {
    let message = format!(
        "{path} is served only to programs on this machine, and not through a proxy, or with an \
         API key for admins; use /healthz or /readyz."
    );
    Refusal::new(StatusCode::FORBIDDEN, "forbidden", message).unrecorded()
}

/// True for pages that a server with `server.tls_client_ca` serves to clients without a
/// certificate: health checks, and, to programs on this machine, `/status`, `/metrics`, `/explain` and
/// the dashboard. An API key for admins does not replace the certificate.
pub(crate) fn is_open<T, E>(
    caller: &ConnectionContext,
    headers: &HeaderMap,
    located: &Result<(Endpoint, T), E>,
) -> bool {
    let Ok((endpoint, _)) = located else {
        return false;
    };
    let Service::Own(Page::Admin(page)) = endpoint.service else {
        return false;
    };
    match page {
        AdminPage::Health | AdminPage::Ready => true,
        AdminPage::Status
        | AdminPage::Metrics
        | AdminPage::Explain
        | AdminPage::Snapshot
        | AdminPage::Events
        | AdminPage::Dashboard(_) => is_local(caller.peer, caller.local, headers),
        AdminPage::Greeting => false,
    }
}

pub(crate) fn not_found(shared: &Shared, endpoint: Endpoint, path: &str) -> Refusal {
    let path = text::shortened(path, MAX_PATH);
    let is_ollama = endpoint.dialect == Dialect::Ollama;
    let message = if is_ollama && shared.pool.table().may_have(Kind::Ollama) {
        format!("{path} is not forwarded to Ollama, or not with this method.")
    } else if is_ollama {
        "No backend is known to be Ollama (set backend.kind = \"ollama\"); the API is under /v1/."
            .to_owned()
    } else {
        format!("Nothing is served at {path}; the API is under /v1/, for example /v1/models.")
    };
    Refusal::new(StatusCode::NOT_FOUND, "not_found", message)
}

fn greeting() -> Response<Full<Bytes>> {
    let text = concat!(
        "llmlb ",
        env!("CARGO_PKG_VERSION"),
        " is running. OpenAI-compatible clients use this address with /v1 as their base URL.\n"
    );
    let mut response = Response::new(Full::from(text));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

/// Returns the response to `/healthz`: 200 as long as the process runs, whatever the state of the
/// backends.
fn healthz(shared: &Shared) -> Value {
    json!({ "status": word(shared) })
}

/// Returns the response to `/readyz`: 200 if requests would be served, else 503, so that a load
/// balancer in front sends none.
fn readyz(shared: &Shared) -> Response<Full<Bytes>> {
    let up = shared.pool.table().up();
    let ready = up > 0 && !shared.is_draining() && !shared.meter.is_refusing();
    let status = if ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    json_response(
        status,
        json!({ "ready": ready, "status": word(shared), "backends_up": up }).to_string(),
    )
}

/// Returns the response to `/status`, which `llmlb status` prints (docs/status-json.md).
fn status(shared: &Shared) -> Value {
    let table = shared.pool.table();
    json!({
        "status": word(shared),
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "uptime_ms": u64::try_from(shared.started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "in_flight": shared.requests.now(),
        "requests": shared.requests.total(),
        "waiting": shared.pool.waiting(),
        "connections": shared.connections.json(),
        "backend_connections": shared.backend_connections.json(&shared.address_limit),
        "backends": table.backends.iter().map(|one| backend(one)).collect::<Vec<_>>(),
        "usage": usage(shared),
        "dropped_headers": dropped_headers(shared),
        "config": config(shared),
        "keys": keys(&shared.keys.report()),
        "refused": shared.refused.report(),
        "limits": limits(shared),
        "traces": shared.spans.as_ref().map(|spans| spans.json()),
        "tls": shared.tls.as_ref().map(|tls| tls.json()),
    })
}

/// Response of `/explain/ID`, which `llmlb explain` prints: the requests with this id that have finished
/// recently. Without an id, the last failed requests.
fn explain(shared: &Shared, id: Option<String>) -> Value {
    let pid = std::process::id();
    match id {
        Some(id) => {
            let requests = shared.recent.find(&id, &shared.pool.table());
            json!({ "pid": pid, "requests": requests })
        }
        None => json!({ "pid": pid, "errors": shared.recent.errors(MAX_ERRORS) }),
    }
}

/// Returns the object `config` of `/status`: the running configuration, and the last one that was
/// rejected at a reload.
fn config(shared: &Shared) -> Value {
    let running = shared.config.get();
    let refused = running.refused.map(|refused| {
        json!({
            "at": rfc3339(refused.at),
            "problems": refused.problems.len(),
            "error": refused.problems.first(),
        })
    });
    json!({
        "path": running.path.map(|path| path.to_string_lossy().into_owned()),
        "hash": running.hash,
        "since": rfc3339(running.since),
        "reloads": running.reloads,
        "after_restart": running.after_restart,
        "refused": refused,
    })
}

/// Returns the object `usage` of `/status`: the progress of usage records from staging to delivery;
/// `None` if metering is off.
fn usage(shared: &Shared) -> Option<Value> {
    let mut usage = shared.usage.as_ref()?.report().json();
    usage["recorded"] = shared.meter.persisted().into();
    usage["lost"] = shared.meter.lost().into();
    usage["instance"] = shared.meter.instance().into();
    // Put the error of staging in front of that of consolidation or delivery: failed staging loses
    // records.
    if let Some(mut error) = shared.meter.error() {
        if let Some(other) = usage["error"].as_str() {
            error = format!("{error}; {other}");
        }
        usage["error"] = error.into();
    }
    Some(usage)
}

/// Returns the object `keys` of `/status`: if requests need an API key, the number of keys, and why the latest
/// `keys.json` is not used. The object `limits` lists keys by name.
fn keys(report: &KeyReport) -> Value {
    json!({
        "required": report.is_required,
        "count": report.count,
        "error": report.error,
    })
}

/// Returns the limits of API keys and their use, for the first keys in alphabetical order.
fn limits(shared: &Shared) -> Value {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or_default());
    let limiter = &shared.limiter;
    let mut keys = shared.keys.all();
    keys.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    keys.truncate(MAX_KEYS_SHOWN);
    let of = |key: &Arc<ApiKey>| {
        let use_of = limiter.json_of(&key.name, &key.limits, now);
        (key.name.to_string(), use_of)
    };
    let mut limits = limiter.json(shared.settings().limits);
    limits["keys"] = keys.iter().map(of).collect();
    limits
}

/// Returns the counts of client header fields that were not forwarded, by name. `*` is the sum for
/// names beyond the limit of the list.
fn dropped_headers(shared: &Shared) -> Value {
    let named = |(name, count): (String, u64)| {
        let name = if name.is_empty() {
            "*".to_owned()
        } else {
            name
        };
        (name, Value::from(count))
    };
    shared
        .dropped_headers
        .report()
        .into_iter()
        .map(named)
        .collect()
}

fn backend(backend: &Backend) -> Value {
    let (models, error) = match backend.state() {
        BackendState::Up(models) => (models.len(), None),
        BackendState::Down(why) => (0, Some(why)),
    };
    json!({
        "name": backend.name,
        "url": backend.url.to_string(),
        "kind": backend.kind().map(Kind::name),
        "up": error.is_none(),
        "ejected": backend.is_ejected(),
        "drained": backend.is_drained(),
        "models": models,
        "in_flight": backend.outstanding(),
        "requests": backend.requests(),
        "error": error,
        "last_error": backend.health.last_error().map(last_error),
    })
}

fn last_error(last: LastError) -> Value {
    let LastError { status, error, at } = last;
    let status = status.map(|status| status.as_u16());
    json!({ "status": status, "error": error, "at": rfc3339(at) })
}

fn word(shared: &Shared) -> &'static str {
    if shared.is_draining() {
        "draining"
    } else {
        "ok"
    }
}
