//! The page `/metrics`: the counts of requests, and the state of the server at the time of the request.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, header};
use http_body_util::Full;

use super::shared::Shared;
use crate::balance::{Backend, BackendState};
use crate::exporter::ExportReport;
use crate::keys::ApiKey;
use crate::metrics::catalog as metric;
use crate::metrics::{Exposition, Format, Number, sanitized};
use crate::sys;
use crate::tls::TlsConfig;

/// Maximum number of backends on the page.
const MAX_BACKENDS: usize = 500;
/// Maximum number of API keys on the page.
const MAX_KEYS: usize = 200;

/// Responds with the metrics, in the format that the client prefers.
pub(super) fn respond(shared: &Shared, headers: &HeaderMap) -> Response<Full<Bytes>> {
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    let format = Format::negotiate(accept.unwrap_or_default());
    let mut page = Exposition::new(format);
    write(shared, &mut page);
    let mut response = Response::new(Full::from(page.finish()));
    let content_type = HeaderValue::from_static(format.content_type());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    headers.insert(header::VARY, HeaderValue::from_static("accept"));
    response
}

fn write(shared: &Shared, page: &mut Exposition) {
    shared.metrics.write(page);
    let (in_flight, waiting) = (shared.requests.now(), shared.pool.waiting());
    page.metric(&metric::IN_FLIGHT).put(&[], in_flight);
    page.metric(&metric::QUEUE_LENGTH).put(&[], waiting);
    backends(&shared.pool.table().backends, page);
    limits(shared, page);
    staging(shared, page);
    let usage = shared.usage.as_ref().map(|usage| usage.report());
    delivery(usage.as_ref(), page);
    books(usage.as_ref(), page);
    config(shared, page);
    connections(shared, page);
    certificate(shared.tls.as_deref(), page);
    process(shared, page);
}

/// State of a backend, as the metric has it.
fn state(backend: &Backend) -> &'static str {
    match backend.state() {
        BackendState::Down(_) => "down",
        BackendState::Up(_) if backend.is_drained() => "drained",
        BackendState::Up(_) if backend.is_ejected() => "ejected",
        BackendState::Up(_) => "up",
    }
}

fn backends(backends: &[Arc<Backend>], page: &mut Exposition) {
    const STATES: [&str; 4] = ["up", "ejected", "drained", "down"];
    // Two backends may have the same name, and a series must not be there twice.
    let mut named: Vec<(String, &Backend)> = Vec::new();
    for backend in backends.iter().take(MAX_BACKENDS) {
        let name = sanitized(&backend.name);
        if !named.iter().any(|(other, _)| *other == name) {
            named.push((name, backend));
        }
    }
    let mut samples = page.metric(&metric::BACKEND_UP);
    for (name, backend) in &named {
        samples.put(&[name], backend.is_up());
    }
    let mut samples = page.metric(&metric::BACKEND_STATE);
    for (name, backend) in &named {
        let current = state(backend);
        for state in STATES {
            samples.put(&[name, state], state == current);
        }
    }
    let mut samples = page.metric(&metric::BACKEND_IN_FLIGHT);
    for (name, backend) in &named {
        samples.put(&[name], backend.outstanding());
    }
    let mut samples = page.metric(&metric::BACKEND_SLOTS);
    for (name, backend) in &named {
        if let Some(limit) = backend.settings.limit {
            samples.put(&[name], u64::from(limit));
        }
    }
    let mut samples = page.metric(&metric::BACKEND_MODELS);
    for (name, backend) in &named {
        let models = match backend.state() {
            BackendState::Up(models) => models.len(),
            BackendState::Down(_) => 0,
        };
        samples.put(&[name], models);
    }
    let mut samples = page.metric(&metric::EJECTIONS);
    for (name, backend) in &named {
        samples.put(&[name], backend.ejections());
    }
}

fn limits(shared: &Shared, page: &mut Exposition) {
    let limiter = &shared.limiter;
    let now = since_epoch(SystemTime::now());
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let keys = shared.keys.all();
    let uses = |key: &Arc<ApiKey>| {
        let uses = limiter.uses_of(key, now);
        // Thousandths of the limit that is nearest to exhaustion.
        let share = uses.iter().map(|one| {
            let share = u128::from(one.used) * 1000 / u128::from(one.limit.max(1));
            u64::try_from(share).unwrap_or(u64::MAX)
        });
        let share = share.max()?;
        Some((share, sanitized(&key.name), Arc::clone(key), uses))
    };
    let mut limited: Vec<_> = keys.iter().filter_map(uses).collect();
    limited
        .sort_unstable_by(|one, other| (Reverse(one.0), &one.1).cmp(&(Reverse(other.0), &other.1)));
    limited.truncate(MAX_KEYS);
    let mut samples = page.metric(&metric::LIMIT);
    for (_, name, _, uses) in &limited {
        for one in uses {
            samples.put(&[name, one.kind], one.limit);
        }
    }
    let mut samples = page.metric(&metric::LIMIT_USED);
    for (_, name, _, uses) in &limited {
        for one in uses {
            samples.put(&[name, one.kind], one.used);
        }
    }
    let mut samples = page.metric(&metric::LIMIT_REFUSALS);
    for (_, name, key, _) in &limited {
        for (kind, count) in limiter.refusals_of(&key.name) {
            samples.put(&[name, kind], count);
        }
    }
}

fn staging(shared: &Shared, page: &mut Exposition) {
    let meter = &shared.meter;
    page.metric(&metric::STAGED).put(&[], meter.persisted());
    page.metric(&metric::LOST).put(&[], meter.lost());
    page.metric(&metric::STAGING_ERRORS)
        .put(&[], meter.errors());
    page.metric(&metric::STAGING_FAILING)
        .put(&[], meter.is_failing());
}

fn delivery(report: Option<&ExportReport>, page: &mut Exposition) {
    let mut put = |metric, number: Option<Number>| {
        let mut samples = page.metric(metric);
        if let Some(number) = number {
            samples.put(&[], number);
        }
    };
    let waiting = report.and_then(|report| report.waiting);
    let failed = report.and_then(|report| report.failed);
    let last = report.and_then(|report| report.last_delivery);
    let run = report.and_then(|report| report.last_run);
    put(&metric::PENDING, waiting.map(Number::from));
    put(&metric::FAILED_FILES, failed.map(Number::from));
    put(
        &metric::DELIVERED,
        report.map(|report| report.delivered.into()),
    );
    put(&metric::LAST_SUCCESS, last.map(seconds));
    put(&metric::LAST_RUN, run.map(seconds));
    put(
        &metric::DELIVERY_FAILING,
        report.map(|report| report.error.is_some().into()),
    );
}

fn books(report: Option<&ExportReport>, page: &mut Exposition) {
    let books = report.and_then(|report| report.books);
    let mut put = |metric, number: Option<Number>| {
        let mut samples = page.metric(metric);
        if let Some(number) = number {
            samples.put(&[], number);
        }
    };
    put(
        &metric::BOOKS_BALANCED,
        books.map(|books| (books.problems == 0).into()),
    );
    put(
        &metric::BOOKS_PROBLEMS,
        books.map(|books| books.problems.into()),
    );
    put(&metric::BOOKS_CHECKED, books.map(|books| seconds(books.at)));
}

fn config(shared: &Shared, page: &mut Exposition) {
    let running = shared.config.get();
    page.metric(&metric::CONFIG_RELOADS)
        .put(&[], running.reloads);
    page.metric(&metric::CONFIG_SINCE)
        .put(&[], seconds(running.since));
    page.metric(&metric::CONFIG_REFUSED)
        .put(&[], running.refused.is_some());
}

fn connections(shared: &Shared, page: &mut Exposition) {
    let client = shared.connections.counts();
    let backend = shared.backend_connections.counts(&shared.address_limit);
    let sides = [("client", client), ("backend", backend)];
    let mut samples = page.metric(&metric::CONNECTIONS);
    for (side, (open, ..)) in sides {
        samples.put(&[side], open);
    }
    let mut samples = page.metric(&metric::CONNECTIONS_MAX);
    for (side, (_, max, _)) in sides {
        samples.put(&[side], max);
    }
    let mut samples = page.metric(&metric::CONNECTIONS_REJECTED);
    for (side, (.., rejected)) in sides {
        samples.put(&[side], rejected);
    }
}

fn certificate(tls: Option<&TlsConfig>, page: &mut Exposition) {
    let mut samples = page.metric(&metric::CERTIFICATE_EXPIRY);
    if let Some(tls) = tls {
        samples.put(&[], seconds(tls.certificate().not_after()));
    }
    let mut samples = page.metric(&metric::CERTIFICATE_FAILING);
    if let Some(tls) = tls {
        samples.put(&[], tls.is_failing());
    }
    let mut samples = page.metric(&metric::HANDSHAKES);
    if let Some(tls) = tls {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let handshakes = &tls.handshakes;
        samples.put(&["completed"], count(&handshakes.completed));
        samples.put(&["failed"], count(&handshakes.failed));
        samples.put(&["plain_http"], count(&handshakes.plain_http));
    }
}

fn process(shared: &Shared, page: &mut Exposition) {
    page.metric(&metric::DRAINING)
        .put(&[], shared.is_draining());
    page.metric(&metric::BUILD_INFO)
        .put(&[env!("CARGO_PKG_VERSION")], 1_u64);
    page.metric(&metric::START_TIME)
        .put(&[], seconds(shared.metrics.started));
    let mut samples = page.metric(&metric::CPU);
    if let Some(time) = sys::cpu_time() {
        samples.put(&[], micros(time));
    }
    let mut samples = page.metric(&metric::MEMORY);
    if let Some(bytes) = sys::resident_memory() {
        samples.put(&[], bytes);
    }
}

fn since_epoch(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

fn seconds(at: SystemTime) -> Number {
    micros(since_epoch(at))
}

fn micros(time: Duration) -> Number {
    Number::Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}
