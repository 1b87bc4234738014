//! One attempt at one backend.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use hyper::body::Body;
use tokio::time::timeout;

use super::head::{self, BodyFraming, ProxyHeaders};
use super::response::UpstreamResponse;
use super::{ForwardContext, MOST_ATTEMPTS, Outbound, usage_rejection};
use crate::balance::Slot;
use crate::meter::sse::UsageEvents;
use crate::meter::usage_option::UsageOption;
use crate::request::{Payload, RequestGuard};
use crate::upstream::{Exchange, Head, Stream, Upload, UpstreamError};

/// How often a request that waits for its answer looks whether the backend is still up.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How soon a connection that was stale is known to be.
const STALE_WITHIN: Duration = Duration::from_secs(1);

/// Sends the request to the backend that has a place for it, as of `now`.
pub(super) async fn attempt(
    context: &ForwardContext,
    slot: Slot,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
    now: Instant,
) -> Result<UpstreamResponse, UpstreamError> {
    let mut asks = context.accounting.meter.is_on()
        && matches!(outbound.parsed.asking, UsageOption::Added(_))
        && slot.backend().takes_usage_option(model(&slot, guard));
    let (mut head, mut exchange) = send(context, &slot, outbound, guard, asks, now).await?;
    if asks && usage_rejection::rejects_stream_options(head.status, &mut exchange).await {
        // What the client asked for is asked again without our question.
        drop(exchange);
        asks = false;
        (head, exchange) = send(context, &slot, outbound, guard, asks, Instant::now()).await?;
        // A stream that is asked for in other words may be none to the backend. And an error may
        // repeat what the client wrote.
        if head.status.is_success()
            && outbound.parsed.stream
            && !outbound.parsed.names_usage_option()
        {
            let why = "rejects stream_options";
            let model = model(&slot, guard);
            slot.backend().refuses_usage_option(model, why);
        }
    }
    Ok(UpstreamResponse {
        head,
        exchange,
        backend: Arc::clone(slot.backend()),
        model: slot.model().map(str::to_owned),
        usage_events: if asks {
            UsageEvents::Hide
        } else {
            UsageEvents::Forward
        },
        slot: Some(slot),
    })
}

/// What the backend calls the model.
fn model<'a>(slot: &'a Slot, guard: &'a RequestGuard) -> &'a str {
    slot.model()
        .or(guard.route.model.as_deref())
        .unwrap_or_default()
}

/// Sends it on a connection that has been idle, or on a new one.
async fn send(
    context: &ForwardContext,
    slot: &Slot,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
    ask_usage: bool,
    now: Instant,
) -> Result<(Head, Box<Exchange>), UpstreamError> {
    let backend = slot.backend();
    // A connection that has been idle may be closed by the backend this very moment. Only what may
    // be sent twice is sent on one.
    if outbound.repeatable
        && let Some(stream) = context.idle.take(backend.id)
        && let Some(upload) = upload(context, slot, outbound, guard, ask_usage)
    {
        let mut exchange = Exchange::new(stream, outbound.head.method.clone(), upload);
        outbound.is_delivered = true;
        guard.route.delivered();
        match first(context, slot, &mut exchange, outbound, now).await {
            // Later than this it was no race: the backend has worked on it.
            Err(UpstreamError::Closed(why))
                if !exchange.has_received_any() && now.elapsed() < STALE_WITHIN =>
            {
                tracing::debug!("backend {}: {why}; trying a new connection", backend.name);
            }
            Err(error) => return Err(judged(slot, error)),
            Ok(head) => return Ok((head, exchange)),
        }
    }
    // Boxed because it is rare and takes much memory.
    Box::pin(fresh(context, slot, outbound, guard, ask_usage))
        .await
        .map_err(|error| judged(slot, error))
}

async fn fresh(
    context: &ForwardContext,
    slot: &Slot,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
    ask_usage: bool,
) -> Result<(Head, Box<Exchange>), UpstreamError> {
    let stream: Stream = context.connector.connect(&slot.backend().url).await?;
    let Some(upload) = upload(context, slot, outbound, guard, ask_usage) else {
        // It passed through already.
        return Err(UpstreamError::ClientBody(
            "it cannot be sent again".to_owned(),
        ));
    };
    let mut exchange = Exchange::new(stream, outbound.head.method.clone(), upload);
    outbound.is_delivered = true;
    guard.route.delivered();
    let head = first(context, slot, &mut exchange, outbound, Instant::now()).await?;
    Ok((head, exchange))
}

/// What is the backend's fault counts against it.
fn judged(slot: &Slot, error: UpstreamError) -> UpstreamError {
    if !error.is_clients_fault() && !error.is_local_fault() {
        slot.failed();
        slot.backend().health.note_error(None, error.why());
    }
    error
}

/// What to send this time; `None` if it was sent and cannot be sent again.
fn upload(
    context: &ForwardContext,
    slot: &Slot,
    outbound: &mut Outbound<'_>,
    guard: &RequestGuard,
    ask_usage: bool,
) -> Option<Upload> {
    let upgrade = outbound.upgrade.is_some();
    let proxy = ProxyHeaders {
        via: &context.via,
        id: &guard.identity.id,
        upgrade: outbound
            .head
            .headers
            .get(http::header::UPGRADE)
            .filter(|_| upgrade),
        extra: &context.forward_headers,
        dropped: &context.dropped_headers,
    };
    let target =
        (outbound.parsed).target_for(outbound.path, outbound.head.uri.query(), slot.model());
    let body = outbound.parsed.body_for(slot.model(), ask_usage);
    match (body, &mut outbound.parsed.payload) {
        (Some(bytes), _) => {
            let framing = BodyFraming {
                length: Some(bytes.len() as u64),
                is_unread: false,
            };
            let head = head::write(outbound.head, &target, slot.backend(), &proxy, framing);
            Some(Upload::buffered(head, bytes))
        }
        (None, Payload::Passing(body)) => {
            let body = body.take()?;
            let length = body.size_hint().exact();
            let framing = BodyFraming {
                length,
                is_unread: true,
            };
            let head = head::write(outbound.head, &target, slot.backend(), &proxy, framing);
            let pace = context.timeouts.body;
            let contention = context.contention.clone();
            let is_chunked = length.is_none();
            Some(Upload::streamed(head, body, is_chunked, pace, contention))
        }
        (None, Payload::Read(_)) => None,
    }
}

/// The head of the answer, unless it takes too long or the backend is found to be down meanwhile.
async fn first(
    context: &ForwardContext,
    slot: &Slot,
    exchange: &mut Exchange,
    outbound: &Outbound<'_>,
    sent_at: Instant,
) -> Result<Head, UpstreamError> {
    let limit = context.timeouts.first_byte;
    let mut left = limit;
    let head = loop {
        if let Ok(head) = timeout(left.min(LOOK_EVERY), exchange.head()).await {
            break head?;
        }
        // Somebody else may answer. If nobody can, it may still be answered here.
        if slot.backend().health.is_hung() && may_go_on(context, slot, outbound) {
            return Err(UpstreamError::Hung("it hangs".to_owned()));
        }
        left = if exchange.is_paused() {
            LOOK_EVERY
        } else {
            // What the client took to send is not the backend's time.
            let since = exchange.last_write_at().unwrap_or(sent_at);
            limit.saturating_sub(since.elapsed())
        };
        if left.is_zero() {
            let seconds = limit.as_secs_f32();
            return Err(UpstreamError::Timeout(format!(
                "no answer within {seconds} s"
            )));
        }
    };
    if head.status == StatusCode::SWITCHING_PROTOCOLS && outbound.upgrade.is_none() {
        let why = "it wants to speak another protocol";
        return Err(UpstreamError::InvalidResponse(why.to_owned()));
    }
    Ok(head)
}

/// Whether the request may be sent to another backend, and there is one.
fn may_go_on(context: &ForwardContext, slot: &Slot, outbound: &Outbound<'_>) -> bool {
    let tried = &outbound.tried;
    let pool = &context.pool;
    outbound.repeatable
        && tried.len() < MOST_ATTEMPTS
        && pool.has_another(slot.route(), outbound.hints, tried)
}
