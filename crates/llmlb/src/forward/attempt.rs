//! One attempt to get a response to a request from one backend.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;
use hyper::body::Body;
use tokio::time::timeout;

use super::head::{self, BodyFraming, ProxyHeaders};
use super::response::UpstreamResponse;
use super::{ForwardContext, MAX_ATTEMPTS, Outbound, usage_rejection};
use crate::balance::Slot;
use crate::meter::sse::UsageEvents;
use crate::meter::usage_option::UsageOption;
use crate::request::{AskUsage, Payload, RequestGuard};
use crate::upstream::{Exchange, Head, Stream, Upload, UpstreamError};

/// Interval at which a request that waits for its response checks if probes have found the backend
/// hung.
const CHECK_EVERY: Duration = Duration::from_millis(250);
/// Time within which a close of a reused connection means that it was stale, so that the request is
/// sent on a new connection. After a later close the backend may have worked on the request.
const STALE_WITHIN: Duration = Duration::from_secs(1);

/// Sends the request to the backend of this slot. `now` is the start of the attempt.
pub(super) async fn attempt(
    context: &ForwardContext,
    slot: Slot,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
    now: Instant,
) -> Result<UpstreamResponse, UpstreamError> {
    let adds_usage = context.accounting.meter.is_on()
        && matches!(outbound.parsed.usage_option, UsageOption::Added(_))
        && slot.backend().accepts_usage_option(model(&slot, guard));
    let mut usage = if adds_usage {
        AskUsage::Yes
    } else {
        AskUsage::No
    };
    let (mut head, mut exchange) = send(context, &slot, outbound, guard, usage, now).await?;
    if usage == AskUsage::Yes
        && usage_rejection::rejects_stream_options(head.status, &mut exchange).await
    {
        // The backend rejects `stream_options`, which llmlb added and the client did not send. So
        // retry without the option.
        drop(exchange);
        usage = AskUsage::No;
        (head, exchange) = send(context, &slot, outbound, guard, usage, Instant::now()).await?;
        // Stop adding `stream_options` for this backend and model only if the option itself caused
        // the error. A backend also rejects the option if it reads a `stream` such as `1` as false,
        // and an error may quote the client's own text.
        if head.status.is_success()
            && outbound.parsed.stream
            && !outbound.parsed.names_usage_option()
        {
            let why = "rejects stream_options";
            let model = model(&slot, guard);
            slot.backend().opt_out_of_usage(model, why);
        }
    }
    Ok(UpstreamResponse {
        head,
        exchange,
        backend: Arc::clone(slot.backend()),
        model: slot.model().map(str::to_owned),
        usage_events: match usage {
            AskUsage::Yes => UsageEvents::Hide,
            AskUsage::No => UsageEvents::Forward,
        },
        slot: Some(slot),
    })
}

fn model<'a>(slot: &'a Slot, guard: &'a RequestGuard) -> &'a str {
    slot.model()
        .or(guard.route.model.as_deref())
        .unwrap_or_default()
}

/// Sends the request on an idle connection to the backend, or on a new one.
async fn send(
    context: &ForwardContext,
    slot: &Slot,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
    usage: AskUsage,
    now: Instant,
) -> Result<(Head, Box<Exchange>), UpstreamError> {
    let backend = slot.backend();
    // The backend may close an idle connection while the request is sent, and llmlb cannot learn if
    // the request was received. So only a request that may be sent twice is sent on an idle
    // connection.
    if outbound.repeatable
        && let Some(stream) = context.idle.take(backend.id)
        && let Some(upload) = upload(context, slot, outbound, guard, usage)
    {
        let mut exchange = Exchange::new(stream, outbound.head.method.clone(), upload);
        outbound.is_delivered = true;
        guard.note_delivered();
        match read_head(context, slot, &mut exchange, outbound, now).await {
            Err(UpstreamError::Closed(why))
                if !exchange.has_received_any() && now.elapsed() < STALE_WITHIN =>
            {
                tracing::debug!("backend {}: {why}; trying a new connection", backend.name);
            }
            Err(error) => return Err(note_fault(slot, error)),
            Ok(head) => return Ok((head, exchange)),
        }
    }
    // Box this future, because it is large and a new connection is rare. Otherwise every request
    // would need its memory.
    Box::pin(send_on_new_connection(
        context, slot, outbound, guard, usage,
    ))
    .await
    .map_err(|error| note_fault(slot, error))
}

async fn send_on_new_connection(
    context: &ForwardContext,
    slot: &Slot,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
    usage: AskUsage,
) -> Result<(Head, Box<Exchange>), UpstreamError> {
    let stream: Stream = context.connector.connect(&slot.backend().url).await?;
    let Some(upload) = upload(context, slot, outbound, guard, usage) else {
        // The body was streamed to an earlier backend and not kept, and the client sends it only
        // once. So the request cannot be retried.
        return Err(UpstreamError::ClientBody(
            "the request's body was streamed already and cannot be sent again".to_owned(),
        ));
    };
    let mut exchange = Exchange::new(stream, outbound.head.method.clone(), upload);
    outbound.is_delivered = true;
    guard.note_delivered();
    let head = read_head(context, slot, &mut exchange, outbound, Instant::now()).await?;
    Ok((head, exchange))
}

/// Counts an error towards the ejection of the backend, unless the client or this machine caused
/// it. Returns the error.
fn note_fault(slot: &Slot, error: UpstreamError) -> UpstreamError {
    if !error.is_clients_fault() && !error.is_local_fault() {
        slot.note_failed();
        slot.backend().health.note_error(None, error.why());
    }
    error
}

/// Returns the head and body to send to the backend of this slot; `None` if the client's body was
/// streamed to an earlier backend and cannot be sent again.
fn upload(
    context: &ForwardContext,
    slot: &Slot,
    outbound: &mut Outbound<'_>,
    guard: &mut RequestGuard,
    usage: AskUsage,
) -> Option<Upload> {
    let upgrade = outbound.upgrade.is_some();
    let (traceparent, asks_why) = (guard.traceparent(), Cell::new(false));
    let proxy = ProxyHeaders {
        via: &context.via,
        id: &guard.identity.id,
        upgrade: outbound
            .head
            .headers
            .get(http::header::UPGRADE)
            .filter(|_| upgrade),
        extra: &outbound.settings.forward_headers,
        asks_why: &asks_why,
        traceparent: traceparent.as_ref().map(|value| &value[..]),
        dropped: &context.dropped_headers,
    };
    let target =
        (outbound.parsed).target_for(outbound.path, outbound.head.uri.query(), slot.model());
    let body = outbound.parsed.body_for(slot.model(), usage);
    let upload = match (body, &mut outbound.parsed.payload) {
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
            let pace = outbound.settings.timeouts.body;
            let contention = context.contention.clone();
            let is_chunked = length.is_none();
            Some(Upload::streamed(head, body, is_chunked, pace, contention))
        }
        (None, Payload::Read(_)) => None,
    };
    guard.asks_why |= asks_why.get();
    upload
}

/// Waits for the head of the response. Fails if it does not arrive in time, or if probes find the
/// backend hung and another backend is available.
async fn read_head(
    context: &ForwardContext,
    slot: &Slot,
    exchange: &mut Exchange,
    outbound: &Outbound<'_>,
    sent_at: Instant,
) -> Result<Head, UpstreamError> {
    let limit = outbound.settings.timeouts.first_byte;
    let mut left = limit;
    let head = loop {
        if let Ok(head) = timeout(left.min(CHECK_EVERY), exchange.head()).await {
            break head?;
        }
        // If no other backend is available, keep waiting: the hung backend may still respond.
        if slot.backend().health.is_hung() && has_another(context, slot, outbound) {
            return Err(UpstreamError::Hung(
                "the backend does not respond to probes".to_owned(),
            ));
        }
        left = if exchange.is_paused() {
            CHECK_EVERY
        } else {
            // `first_byte_timeout` starts with the last byte that was sent, because a slow upload
            // is not the backend's fault.
            let since = exchange.last_write_at().unwrap_or(sent_at);
            limit.saturating_sub(since.elapsed())
        };
        if left.is_zero() {
            let seconds = limit.as_secs_f32();
            return Err(UpstreamError::Timeout(format!(
                "no response within {seconds} s"
            )));
        }
    };
    if head.status == StatusCode::SWITCHING_PROTOCOLS && outbound.upgrade.is_none() {
        let why = "the backend responded 101 to a request without an upgrade";
        return Err(UpstreamError::InvalidResponse(why.to_owned()));
    }
    Ok(head)
}

/// True if the request can be retried (it is repeatable, and fewer than [`MAX_ATTEMPTS`] backends
/// were tried) and another backend is available for it.
fn has_another(context: &ForwardContext, slot: &Slot, outbound: &Outbound<'_>) -> bool {
    let tried = &outbound.tried;
    let pool = &context.pool;
    outbound.repeatable
        && tried.len() < MAX_ATTEMPTS
        && pool.has_another(slot.route(), outbound.hints, tried)
}
