//! Makes a snapshot from the state of a server. Every text is short and safe to print, and every list is
//! bounded.

use std::time::SystemTime;

use super::averages::Averages;
use super::files::FileReport;
use super::format::{BackendLine, ErrorLine, LimitLine, LiveLine, Snapshot, Spool, VERSION};
use super::sources::Sources;
use crate::balance::{Backend, BackendState};
use crate::config::Kind;
use crate::limits::LimitUse;
use crate::lock::rfc3339;
use crate::meter::in_flight_list::LiveRequest;
use crate::request::ErrorReport;
use crate::text;

/// Maximum number of backends.
const MAX_BACKENDS: usize = 1000;
/// Maximum number of models of a backend.
const MAX_MODELS: usize = 100;
/// Maximum number of requests in flight.
const MAX_LIVE: usize = 50;
/// Maximum number of errors.
const MAX_ERRORS: usize = 50;
/// Maximum number of characters of a name.
const MAX_NAME: usize = 128;
/// Maximum number of characters of an error or a URL.
const MAX_TEXT: usize = 300;

/// Makes a snapshot.
pub(super) fn build(
    sources: &Sources,
    averages: &Averages,
    limits: &[LimitUse],
    files: &FileReport,
) -> Snapshot {
    let now = SystemTime::now();
    let table = sources.pool.table();
    let shown = table.backends.len().min(MAX_BACKENDS);
    let waiting = sources.pool.waiting_for(&table.backends[..shown]);
    let backends = table.backends.iter().zip(waiting);
    let rates = table.backends.iter().map(|one| averages.of(one.id));
    let (prompt, completion) = rates.fold((0.0, 0.0), |(prompt, completion), rates| {
        (
            prompt + rates.prompt_per_s,
            completion + rates.completion_per_s,
        )
    });
    let live = sources.meter.in_flight().map(|list| list.live(MAX_LIVE));
    let live = live.unwrap_or_default();
    let in_flight = sources.requests.now();
    Snapshot {
        version: VERSION,
        at: rfc3339(now),
        llmlb_version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: name(sources.meter.instance()),
        port: sources.port,
        pid: std::process::id(),
        uptime_s: sources.started.elapsed().as_secs(),
        state: if sources.draining.is_cancelled() {
            "draining".to_owned()
        } else {
            "ok".to_owned()
        },
        in_flight: in_flight as u64,
        waiting: sources.pool.waiting() as u64,
        requests: sources.requests.total(),
        requests_per_s: rounded(averages.requests_per_s()),
        prompt_tokens_per_s: rounded(prompt),
        completion_tokens_per_s: rounded(completion),
        backends: backends
            .map(|(one, waiting)| backend(one, waiting, averages))
            .collect(),
        live_more: live.count.saturating_sub(live.oldest.len()) as u64,
        live: live
            .oldest
            .into_iter()
            .map(|one| live_line(one, now))
            .collect(),
        errors: recent_errors(sources).iter().map(error_line).collect(),
        usage: files.usage.as_deref().cloned(),
        spool: spool(sources, files),
        limits: limits.iter().map(limit_line).collect(),
    }
}

fn backend(backend: &Backend, waiting: usize, averages: &Averages) -> BackendLine {
    let rates = averages.of(backend.id);
    let state = backend.state();
    let is_drained = backend.is_drained();
    let word = match &state {
        _ if is_drained => "drained",
        BackendState::Down(_) => "down",
        BackendState::Up(_) if backend.is_ejected() => "ejected",
        BackendState::Up(_) => "up",
    };
    let error = match &state {
        BackendState::Down(why) => Some(why.clone()),
        BackendState::Up(_) if word == "ejected" => {
            backend.health.last_error().map(|last| last.error)
        }
        BackendState::Up(_) => None,
    };
    let models = match &state {
        BackendState::Up(models) => {
            let ids = models.iter().take(MAX_MODELS);
            ids.map(|model| name(&model.id)).collect()
        }
        BackendState::Down(_) => Vec::new(),
    };
    BackendLine {
        name: name(&backend.name),
        url: short(&backend.url.to_string()),
        kind: backend.kind().map(|kind| Kind::name(kind).to_owned()),
        state: word.to_owned(),
        drained: is_drained,
        error: error.map(|error| short(&error)),
        in_flight: backend.outstanding() as u64,
        waiting: waiting as u64,
        max_concurrent: backend.settings.limit,
        requests: backend.requests(),
        failed: backend.traffic.totals().failed,
        first_byte_ms: rates.first_byte_ms.map(rounded),
        tokens_per_s: rounded(rates.completion_per_s),
        models,
    }
}

/// Returns the requests that failed last, newest first.
fn recent_errors(sources: &Sources) -> Vec<ErrorReport> {
    let mut errors = sources.errors.report();
    errors.truncate(MAX_ERRORS);
    errors
}

fn live_line(request: LiveRequest, now: SystemTime) -> LiveLine {
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    let state = match (&request.backend, request.has_begun) {
        (None, _) => "queued",
        (Some(_), false) => "sent",
        (Some(_), true) => "streaming",
    };
    let short = |text: Option<String>| text.map(|text| name(&text));
    LiveLine {
        id: name(&request.id),
        age_ms: now.saturating_sub(request.time_ms),
        model: short(request.model),
        backend: short(request.backend),
        key: short(request.key),
        state: state.to_owned(),
        stream: request.is_stream,
        tokens: request.completion,
    }
}

fn error_line(error: &ErrorReport) -> ErrorLine {
    ErrorLine {
        at: rfc3339(error.at),
        id: error.id.clone(),
        status: error.status,
        code: error.code.map(str::to_owned),
        model: error.model.clone(),
        backend: error.backend.clone(),
        key: error.key.clone(),
        outcome: error.outcome.to_owned(),
        message: error.message.clone(),
    }
}

fn spool(sources: &Sources, files: &FileReport) -> Option<Spool> {
    let report = sources.export.as_ref()?.report();
    let errors = [sources.meter.error(), report.error];
    let errors: Vec<_> = errors.into_iter().flatten().collect();
    Some(Spool {
        to: report.to.as_deref().map(short),
        pending: report.waiting.unwrap_or_default(),
        failed: report.failed.unwrap_or_default(),
        recorded: sources.meter.persisted(),
        lost: sources.meter.lost(),
        last_delivery: report.last_delivery.map(rfc3339),
        error: (!errors.is_empty()).then(|| short(&errors.join("; "))),
        books: files.books.word().to_owned(),
        books_at: files.books_at.map(rfc3339),
        books_problem: files.books_problem.clone(),
    })
}

fn limit_line(limit: &LimitUse) -> LimitLine {
    LimitLine {
        key: name(&limit.key),
        kind: limit.kind.to_owned(),
        used: limit.used,
        limit: limit.limit,
    }
}

fn name(given: &str) -> String {
    text::plain(&text::shortened(given, MAX_NAME)).into_owned()
}

fn short(given: &str) -> String {
    text::plain(&text::shortened(given, MAX_TEXT)).into_owned()
}

/// Rounds to one decimal.
fn rounded(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
