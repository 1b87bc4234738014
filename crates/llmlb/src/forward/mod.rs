//! Sending a request to a backend, to another one if that fails, and the answer back.

mod attempt;
mod context;
mod course;
mod head;
mod judge;
mod refusal;
mod relay;
mod tunnel;
mod unsupported;
mod usage_rejection;
mod via;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderName, Response, StatusCode, Version, header, request};
use http_body_util::{Either, Full};
use hyper::upgrade::OnUpgrade;
use spool::Record;

use crate::backend_id::BackendId;
use crate::balance::{Backend, Choice, Fault, Pool, Route, SelectHints, Slot, Waited};
use crate::body_deadline::BodyPace;
use crate::endpoint::Endpoint;
use crate::headers::REQUEST_ID;
use crate::issued_ids::IssuedIdFinder;
use crate::meter::usage_tap::UsageTap;
use crate::request::{ParsedRequest, RequestGuard};
use crate::upstream::{Exchange, Head, UpstreamError};
use attempt::Reached;
use course::{Course, Next};

pub(crate) use context::{ForwardContext, ForwardTimeouts};
pub(crate) use head::probe_head;
pub(crate) use refusal::refusal;
pub(crate) use relay::Relay;
pub(crate) use via::Via;

/// Tells the client which backend answered.
const SERVED_BY: HeaderName = HeaderName::from_static("x-llmlb-backend");
/// What the backend itself calls the request: its operators will ask for it.
const UPSTREAM_ID: HeaderName = HeaderName::from_static("x-upstream-request-id");
/// How many backends a request may be tried on.
const MOST_ATTEMPTS: usize = 3;

/// A response to a client: one of llmlb's own, or a backend's.
pub(crate) type Answer = Response<Either<Full<Bytes>, Relay>>;

/// A request that is ready to be sent.
#[derive(Debug)]
pub(crate) struct Outbound<'a> {
    pub(crate) head: &'a request::Parts,
    pub(crate) endpoint: Endpoint,
    /// The path as the backend receives it.
    pub(crate) path: &'a str,
    pub(crate) parsed: &'a mut ParsedRequest,
    pub(crate) hints: &'a SelectHints<'a>,
    /// The backend may be asked the same twice.
    pub(crate) repeatable: bool,
    /// The backend that is being tried has received it, or part of it.
    pub(crate) is_delivered: bool,
    /// Who was asked.
    pub(crate) tried: Vec<BackendId>,
    /// The client wants to speak another protocol on its connection.
    pub(crate) upgrade: Option<OnUpgrade>,
}

/// A backend's answer, of which only the head has been read.
#[derive(Debug)]
struct Opened {
    head: Head,
    exchange: Box<Exchange>,
    backend: Arc<Backend>,
    /// What it was told that the model is called, if not as the client did.
    model: Option<String>,
    /// Usage that comes because we asked for it is kept from the client.
    hides: bool,
    /// Its place there. An answer that waits for a better one has none: it costs the backend
    /// nothing any more.
    slot: Option<Slot>,
}

/// Why no backend answered.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// Whoever could serve it is down, or could not be reached. Nothing was sent.
    Unreachable(Option<String>),
    /// One was reached, and did not answer.
    NoAnswer(String),
    /// One rejected the credential that it is configured with.
    BackendAuth(StatusCode),
    /// It took too long.
    TimedOut(String),
    /// The client did not send what it had announced.
    BadUpload(String),
    /// The client sent its body more slowly than this.
    Stalled(BodyPace),
    /// This machine has no more descriptors, or no port for any of the backends.
    Shortage(String),
    /// The client's address uses as many connections to backends as it may.
    AddressLimit(usize),
    /// Everyone is busy, and too many wait already.
    QueueFull,
    /// Everyone was busy for too long.
    WaitedTooLong,
}

/// Sends the request to the best backend, and to the next one as long as that may help.
pub(crate) async fn forward(
    context: &Arc<ForwardContext>,
    route: &Arc<Route>,
    mut outbound: Outbound<'_>,
    mut guard: Box<RequestGuard>,
) -> Result<Answer, (ForwardError, Box<RequestGuard>)> {
    match open(context, route, &mut outbound, &mut guard).await {
        Ok(opened) => {
            let (answer, unstaged) = answer(context, opened, outbound, guard);
            if let Some((record, guard)) = unstaged {
                context.accounting.commits.add(record).await;
                drop(guard);
            }
            Ok(answer)
        }
        Err(failed) => Err((failed, guard)),
    }
}

async fn open(
    context: &Arc<ForwardContext>,
    route: &Arc<Route>,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
) -> Result<Opened, ForwardError> {
    let mut course = Course::new();
    let opened = attempts(context, route, outbound, guard, &mut course).await;
    course.settle(&context.pool, outbound);
    match opened? {
        Some(opened) => Ok(opened),
        None => course.end().map_err(|failed| match failed {
            ForwardError::Unreachable(None) => {
                let rejected = route.rejected_key().map(ForwardError::BackendAuth);
                rejected.unwrap_or(failed)
            }
            failed => failed,
        }),
    }
}

/// Tries one backend after the other. `None`: none is left, and the course of the attempts decides.
async fn attempts(
    context: &Arc<ForwardContext>,
    route: &Arc<Route>,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
    course: &mut Course,
) -> Result<Option<Opened>, ForwardError> {
    let pool = &context.pool;
    while outbound.tried.len() < MOST_ATTEMPTS && course.may_go_on(context).await {
        let slot = match next_slot(pool, route, outbound).await {
            Ok(Some(slot)) => slot,
            Ok(None) => break,
            Err(failed) => {
                course.failed = failed;
                break;
            }
        };
        if !guard.may_use_backend() {
            course.failed = ForwardError::AddressLimit(context.accounting.address_limit.max());
            break;
        }
        let (started, answers) = (Instant::now(), slot.backend().answers());
        let backend = Arc::clone(slot.backend());
        outbound.tried.push(backend.id);
        outbound.is_delivered = false;
        guard.sent(&backend, slot.model());
        let mut reached = match attempt::attempt(context, slot, outbound, guard, started).await {
            Ok(reached) => reached,
            Err(error) => {
                let is_given_up =
                    matches!(error, UpstreamError::Timeout(_) | UpstreamError::Hung(_));
                guard.tried(&backend, error.why(), is_given_up);
                if course.broke(context, &backend, error, answers, outbound)? {
                    continue;
                }
                break;
            }
        };
        unsupported::learn(&mut reached, outbound).await;
        let Reached {
            head,
            exchange,
            mut slot,
            hides,
        } = reached;
        // What the client took to send is not the backend's time.
        let took = exchange.last_write_at().unwrap_or(started).elapsed();
        judge::note(pool, &mut slot, &head, took, outbound.endpoint.is_inference);
        let next = course.responded(&slot, head.status, pool, outbound);
        if next != Next::Answer {
            guard.tried(&backend, head.status.as_str(), false);
        }
        let opened = Opened {
            model: slot.model().map(str::to_owned),
            backend,
            // A response that waits for a better one costs its backend nothing any more.
            slot: (next == Next::Answer).then_some(slot),
            head,
            exchange,
            hides,
        };
        match next {
            Next::Answer => return Ok(Some(opened)),
            Next::Hold => course.hold(opened),
            Next::Another => {}
            Next::Over => break,
        }
    }
    Ok(None)
}

/// A place at the best backend that was not tried yet, waited for if all are at their limit. `None`:
/// there is no such backend.
async fn next_slot(
    pool: &Pool,
    route: &Arc<Route>,
    outbound: &Outbound<'_>,
) -> Result<Option<Slot>, ForwardError> {
    let (hints, tried) = (outbound.hints, &outbound.tried);
    let newer;
    let route = if tried.is_empty() {
        route
    } else {
        // That took a while: others may have come.
        newer = pool.as_it_is_now(route);
        &newer
    };
    let slot = match pool.choose(route, hints, tried) {
        Choice::Slot(slot) => Some(slot),
        Choice::Busy => match pool.wait(route, hints, tried).await {
            Ok(slot) => Some(slot),
            Err(Waited::Full) => return Err(ForwardError::QueueFull),
            Err(Waited::TooLong) => return Err(ForwardError::WaitedTooLong),
            Err(Waited::Down) => None,
        },
        Choice::Down => None,
    };
    Ok(slot.or_else(|| pool.last_resort(route, hints, tried)))
}

/// An answer that came in one piece, and its record.
fn whole(
    context: &Arc<ForwardContext>,
    opened: Opened,
    data: Bytes,
    issued: Option<IssuedIdFinder>,
    guard: &mut RequestGuard,
) -> (Bytes, Option<Record>) {
    if let Some(mut finder) = issued {
        let pool = &context.pool;
        finder.read(&data, |id| pool.issued(id, &opened.backend));
    }
    let (body, record) = guard.whole(data);
    let reuse_after_errors = opened.backend.reuse_after_errors;
    if let Some(stream) = opened.exchange.into_idle(reuse_after_errors) {
        context.idle.keep(opened.backend.id, stream);
    }
    if let Some(slot) = opened.slot {
        slot.ended();
    }
    (body, record)
}

/// A record that must be staged before the answer is sent. The request is in flight until then.
type Unstaged = (Record, Box<RequestGuard>);

/// The answer as the client gets it, and its record if it is complete.
fn answer(
    context: &Arc<ForwardContext>,
    mut opened: Opened,
    outbound: Outbound<'_>,
    mut guard: Box<RequestGuard>,
) -> (Answer, Option<Unstaged>) {
    let (status, backend) = (opened.head.status, &opened.backend);
    let mut headers = std::mem::take(&mut opened.head.headers);
    guard.sent(backend, opened.model.as_deref());
    guard.answered(backend, status);
    if context.accounting.meter.is_on() {
        let tap = UsageTap::new(guard.endpoint.api, status, &headers, opened.hides);
        if opened.hides && tap.is_coded() {
            // This client sees what we asked for; no other one shall.
            let model = opened.model.as_deref().or(guard.model.as_deref());
            let why = "compresses what it must not";
            backend.refuses_usage_option(model.unwrap_or_default(), why);
        }
        guard.tap = Some(tap);
    }
    if guard.may_shorten() {
        headers.remove(header::CONTENT_LENGTH);
    }
    if let Some(id) = headers.remove(REQUEST_ID).filter(|id| *id != guard.id) {
        headers.insert(UPSTREAM_ID, id);
    }
    headers.insert(SERVED_BY, backend.label.clone());
    let mut response = Response::new(());
    // How the client is answered does not depend on how the backend answers us: in HTTP/1.0 an
    // answer that was cut looks like one that ended.
    *response.version_mut() = Version::HTTP_11;
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    if status == StatusCode::SWITCHING_PROTOCOLS
        && let Some(upgrade) = outbound.upgrade
    {
        let upgraded = outbound.head.headers.get(header::UPGRADE);
        tunnel::open(context, upgrade, opened.exchange, opened.slot, guard);
        tunnel::announce(response.headers_mut(), upgraded);
        return (response.map(|()| Either::Left(Full::default())), None);
    }
    let issued = status
        .is_success()
        .then(|| IssuedIdFinder::new(outbound.endpoint.issues, outbound.parsed.is_stored))
        .flatten();
    if let Some(data) = opened.exchange.take_whole() {
        let (body, record) = whole(context, opened, data, issued, &mut guard);
        let unstaged = record.map(|record| (record, guard));
        return (response.map(|()| Either::Left(Full::new(body))), unstaged);
    }
    let if_cut = (status.is_success() && outbound.endpoint.is_inference)
        .then(|| outbound.evidence(Fault::Cut));
    let relay = Relay::new(Arc::clone(context), opened, issued, if_cut, guard);
    (response.map(|()| Either::Right(relay)), None)
}
