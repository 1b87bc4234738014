//! Sends a request to a backend, retries on another one if that fails, and relays the response to the
//! client.

mod attempt;
mod context;
mod course;
mod error;
mod head;
mod judge;
mod relay;
mod response;
mod tunnel;
mod unsupported;
mod usage_rejection;
mod via;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Response, request};
use http_body_util::{Either, Full};
use hyper::upgrade::OnUpgrade;

use crate::backend_id::BackendId;
use crate::balance::{Choice, Pool, Route, SelectHints, Slot, WaitError};
use crate::endpoint::Endpoint;
use crate::request::{AfterFailure, ParsedRequest, RequestGuard};
use crate::request_settings::{ForwardTimeouts, RequestSettings};
use crate::upstream::UpstreamError;
use course::{Course, Next};
use response::UpstreamResponse;

pub(crate) use context::ForwardContext;
pub(crate) use error::{ForwardError, refusal};
pub(crate) use head::probe_head;
pub(crate) use relay::Relay;
pub(crate) use via::Via;

/// Maximum number of backends to which one request is sent in turn.
const MAX_ATTEMPTS: usize = 3;

/// Response to a client, either built by llmlb or relayed from a backend.
pub(crate) type ClientResponse = Response<Either<Full<Bytes>, Relay>>;

/// Request that is ready to be sent to a backend, with all that further attempts need.
#[derive(Debug)]
pub(crate) struct Outbound<'a> {
    pub(crate) head: &'a request::Parts,
    pub(crate) endpoint: Endpoint,
    /// Path of the request as the backend receives it.
    pub(crate) path: &'a str,
    pub(crate) parsed: &'a mut ParsedRequest,
    pub(crate) hints: &'a SelectHints<'a>,
    /// Settings of the configuration to which the request's backends belong. A reload during the
    /// request does not change them.
    pub(crate) settings: &'a RequestSettings,
    /// True if the request may be sent twice: its body is kept in memory, and a second execution
    /// changes nothing.
    pub(crate) repeatable: bool,
    /// True if the current backend has received the request, or a part of it. A failed attempt then
    /// counts as a delivery: the number of deliveries is limited, because the request may have
    /// crashed the backend.
    pub(crate) is_delivered: bool,
    /// Backends on which the request was tried already. They are not tried again, and their number
    /// is limited to `MAX_ATTEMPTS`.
    pub(crate) tried: Vec<BackendId>,
    /// Client's connection for a switch of protocols, such as to WebSocket; `None` if the client
    /// does not request a switch.
    pub(crate) upgrade: Option<OnUpgrade>,
}

/// Sends the request to the best backend, and to further ones while a retry may help.
pub(crate) async fn forward(
    context: &Arc<ForwardContext>,
    route: &Arc<Route>,
    mut outbound: Outbound<'_>,
    mut guard: Box<RequestGuard>,
) -> Result<ClientResponse, (ForwardError, Box<RequestGuard>)> {
    match open(context, route, &mut outbound, &mut guard).await {
        Ok(response) => {
            let (client_response, complete) =
                response.into_client_response(context, outbound, guard);
            if let Some(mut guard) = complete {
                guard.persisted().await;
            }
            Ok(client_response)
        }
        Err(error) => Err((error, guard)),
    }
}

/// Tries backends until one has a response for the client. Returns the response with its body
/// unread.
async fn open(
    context: &Arc<ForwardContext>,
    route: &Arc<Route>,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
) -> Result<UpstreamResponse, ForwardError> {
    let mut course = Course::new();
    let response = attempts(context, route, outbound, guard, &mut course).await;
    course.report_suspect(&context.pool, outbound);
    match response? {
        Some(response) => Ok(response),
        None => course.end().map_err(|error| match error {
            ForwardError::Unreachable(None) => {
                let rejected = route.rejected_key().map(ForwardError::BackendAuth);
                rejected.unwrap_or(error)
            }
            error => error,
        }),
    }
}

/// Tries one backend after another. Returns `None` if no further backend may be tried: the client then
/// gets the response or error that `course` holds.
async fn attempts(
    context: &Arc<ForwardContext>,
    route: &Arc<Route>,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
    course: &mut Course,
) -> Result<Option<UpstreamResponse>, ForwardError> {
    let pool = &context.pool;
    while outbound.tried.len() < MAX_ATTEMPTS && course.check_retry(context).await {
        let slot = match next_slot(pool, route, outbound, guard).await {
            Ok(Some(slot)) => slot,
            Ok(None) => break,
            Err(error) => {
                course.error = error;
                break;
            }
        };
        if !guard.acquire_address_share() {
            let max = context.accounting.address_limit.max();
            course.error = ForwardError::AddressLimit(max);
            break;
        }
        let (started, responses) = (Instant::now(), slot.backend().health.responses());
        let backend = Arc::clone(slot.backend());
        outbound.tried.push(backend.id);
        outbound.is_delivered = false;
        guard.note_selected(&slot, outbound.hints, &outbound.tried, started);
        match attempt::attempt(context, slot, outbound, guard, started).await {
            Ok(response) => {
                match evaluate(pool, response, started, outbound, guard, course).await {
                    (Next::Respond, response) => return Ok(Some(response)),
                    (Next::Hold, response) => course.hold(response),
                    (Next::Retry, _) => {}
                    (Next::Stop, _) => break,
                }
            }
            Err(error) => {
                let after = match error {
                    UpstreamError::Timeout(_) | UpstreamError::Hung(_) => AfterFailure::Abandoned,
                    _ => AfterFailure::Ended,
                };
                guard.note_failed(&backend, error.why(), after);
                if !course.note_error(context, &backend, error, responses, outbound)? {
                    break;
                }
            }
        }
    }
    Ok(None)
}

/// Counts the response of an attempt for or against its backend, and returns the next step.
/// `started` is the time when the attempt began.
async fn evaluate(
    pool: &Pool,
    mut response: UpstreamResponse,
    started: Instant,
    outbound: &Outbound<'_>,
    guard: &mut RequestGuard,
    course: &mut Course,
) -> (Next, UpstreamResponse) {
    unsupported::learn(&mut response, outbound).await;
    let status = response.head.status;
    let mut next = Next::Respond;
    if let Some(slot) = &mut response.slot {
        // The latency of the backend starts with the last byte that was sent, because a slow upload
        // is not the backend's fault.
        let sent = response.exchange.last_write_at().unwrap_or(started);
        let is_inference = outbound.endpoint.is_inference;
        let now = Instant::now();
        guard.route.note_head(now);
        let first_byte = now.saturating_duration_since(sent);
        judge::note_response(pool, slot, &response.head, first_byte, is_inference);
        next = course.note_response(slot, status, pool, outbound);
    }
    if unsupported::refuses_websocket(outbound, status) {
        course.error = ForwardError::NoWebSocket(outbound.path.to_owned());
        next = Next::Retry;
    }
    if next != Next::Respond {
        let (backend, after) = (&response.backend, AfterFailure::Ended);
        guard.note_failed(backend, status.as_str(), after);
        // Release the slot while the response is held, so that other requests can use it.
        response.slot = None;
    }
    (next, response)
}

/// Acquires a slot at the best backend on which the request was not tried yet. Waits if all are at
/// `max_concurrent`. `None` if no such backend exists.
async fn next_slot(
    pool: &Pool,
    route: &Arc<Route>,
    outbound: &Outbound<'_>,
    guard: &mut RequestGuard,
) -> Result<Option<Slot>, ForwardError> {
    guard.route.queue.note_needed();
    let (hints, tried) = (outbound.hints, &outbound.tried);
    let newer;
    let route = if tried.is_empty() {
        route
    } else {
        // Select the backends anew, because those that serve the model may have changed during
        // earlier attempts.
        newer = pool.current_route(route);
        &newer
    };
    let mut choice = pool.choose(route, hints, tried);
    let newer;
    let mut route = route;
    if matches!(choice, Choice::Down) {
        // A reload of the configuration may have replaced the backends since the route was found.
        // So find the route in the current configuration.
        newer = pool.current_route(route);
        if !Arc::ptr_eq(&newer, route) {
            route = &newer;
            choice = pool.choose(route, hints, tried);
        }
    }
    let slot = match choice {
        Choice::Slot(slot) => Some(slot),
        Choice::Busy => {
            guard.route.queue.start();
            let waited = pool.wait(route, hints, tried).await;
            guard.route.queue.end();
            match waited {
                Ok(slot) => Some(slot),
                Err(WaitError::Full) => return Err(ForwardError::QueueFull),
                Err(WaitError::TimedOut) => return Err(ForwardError::WaitedTooLong),
                Err(WaitError::Down) => None,
            }
        }
        Choice::Down => None,
    };
    let slot = slot.or_else(|| pool.last_resort(route, hints, tried));
    if let Some(slot) = &slot {
        guard.count_choice(slot.reason());
    }
    Ok(slot)
}
