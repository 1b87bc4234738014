//! One attempt at one backend.

use std::time::Duration;

use http::StatusCode;
use hyper::body::Body;
use tokio::time::{Instant, sleep};

use super::head::{self, Length, Stamp};
use super::{Outbound, issued};
use crate::balance::{Backend, Slot};
use crate::meter::request::Asking;
use crate::request::{Payload, Trip};
use crate::upstream::{Broken, Exchange, Head, Stream, Upload};
use crate::worker::Worker;

/// How often a request that waits for its answer looks whether the backend is still up.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How soon a connection that was stale is known to be.
const STALE_WITHIN: Duration = Duration::from_secs(1);

/// A backend's answer, of which only the head has been read.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) head: Head,
    pub(super) exchange: Exchange,
    pub(super) slot: Slot,
    /// Usage that comes because we asked for it is kept from the client.
    pub(super) hides: bool,
}

/// Sends the request to the backend that has a place for it.
pub(super) async fn attempt(
    worker: &Worker,
    slot: Slot,
    outbound: &mut Outbound<'_>,
    trip: &Trip,
) -> Result<Reached, Broken> {
    let asks = worker.shared.meter.is_on()
        && matches!(outbound.asked.asking, Asking::Us(_))
        && slot.backend().takes_usage_option();
    let (mut head, mut exchange) = send(worker, &slot, outbound, trip, asks).await?;
    let mut hides = asks;
    if asks && is_objection(head.status) {
        // It may be our question that it objects to. What the client asked for is asked again
        // without it.
        drop(exchange);
        hides = false;
        (head, exchange) = send(worker, &slot, outbound, trip, hides).await?;
        if head.status.is_success() {
            slot.backend().refuses_usage_option();
        }
    }
    Ok(Reached {
        head,
        exchange,
        slot,
        hides,
    })
}

fn is_objection(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Sends it on a connection that has been idle, or on a new one.
async fn send(
    worker: &Worker,
    slot: &Slot,
    outbound: &mut Outbound<'_>,
    trip: &Trip,
    ask_usage: bool,
) -> Result<(Head, Exchange), Broken> {
    let backend = slot.backend();
    // A connection that has been idle may be closed by the backend this very moment. Only what may
    // be sent twice is sent on one.
    if outbound.repeatable
        && let Some(stream) = worker.idle.take(backend.id)
        && let Some(upload) = upload(worker, slot, outbound, trip, ask_usage)
    {
        let mut exchange = Exchange::new(stream, outbound.head.method.clone(), upload);
        let sent = Instant::now();
        match first(worker, backend, &mut exchange, outbound).await {
            // Later than this it was no race: the backend has worked on it.
            Err(Broken::Cut(why)) if !exchange.is_heard() && sent.elapsed() < STALE_WITHIN => {
                tracing::debug!("backend {}: {why}; trying a new connection", backend.name);
            }
            Err(broken) => return Err(judged(slot, broken)),
            Ok(head) => return Ok((head, exchange)),
        }
    }
    fresh(worker, slot, outbound, trip, ask_usage)
        .await
        .map_err(|broken| judged(slot, broken))
}

async fn fresh(
    worker: &Worker,
    slot: &Slot,
    outbound: &mut Outbound<'_>,
    trip: &Trip,
    ask_usage: bool,
) -> Result<(Head, Exchange), Broken> {
    let stream: Stream = worker.connector.connect(&slot.backend().url).await?;
    let Some(upload) = upload(worker, slot, outbound, trip, ask_usage) else {
        // It passed through already.
        return Err(Broken::Upload("it cannot be sent again".to_owned()));
    };
    let mut exchange = Exchange::new(stream, outbound.head.method.clone(), upload);
    let head = first(worker, slot.backend(), &mut exchange, outbound).await?;
    Ok((head, exchange))
}

/// What is the backend's fault counts against it.
fn judged(slot: &Slot, broken: Broken) -> Broken {
    if !matches!(broken, Broken::Upload(_) | Broken::Shortage(_)) {
        slot.failed();
    }
    broken
}

/// What to send this time; `None` if it was sent and cannot be sent again.
fn upload(
    worker: &Worker,
    slot: &Slot,
    outbound: &mut Outbound<'_>,
    trip: &Trip,
    ask_usage: bool,
) -> Option<Upload> {
    let upgrade = outbound.upgrade.is_some();
    let stamp = Stamp {
        via: &worker.shared.via,
        id: &trip.id,
        plain: crate::request::is_inference(outbound.path)
            || issued::Watch::of(outbound.path, outbound.asked.is_stored).is_some(),
        upgrade: outbound
            .head
            .headers
            .get(http::header::UPGRADE)
            .filter(|_| upgrade),
    };
    let target = outbound.asked.target_for(&outbound.head.uri, slot.model());
    let body = outbound.asked.body_for(slot.model(), ask_usage);
    match (body, &mut outbound.asked.payload) {
        (Some(bytes), _) => {
            let length = Length::Exact(bytes.len() as u64);
            let head = head::write(outbound.head, &target, slot.backend(), &stamp, length);
            Some(Upload::whole(head, bytes))
        }
        (None, Payload::Passing(body)) => {
            let body = body.take()?;
            let length = body.size_hint().exact();
            let told = length.map_or(Length::Chunked, Length::Exact);
            let head = head::write(outbound.head, &target, slot.backend(), &stamp, told);
            Some(Upload::passing(head, body, length.is_none()))
        }
        (None, Payload::Read(_)) => None,
    }
}

/// The head of the answer, unless it takes too long or the backend is found to be down meanwhile.
async fn first(
    worker: &Worker,
    backend: &Backend,
    exchange: &mut Exchange,
    outbound: &Outbound<'_>,
) -> Result<Head, Broken> {
    let head = tokio::select! {
        biased;
        head = exchange.head() => head?,
        broken = patience(worker, backend, outbound.repeatable) => {
            return Err(if exchange.is_sent() {
                broken
            } else {
                // The backend waits as we do.
                Broken::Upload("it took too long".to_owned())
            });
        }
    };
    if head.status == StatusCode::SWITCHING_PROTOCOLS && outbound.upgrade.is_none() {
        let why = "it wants to speak another protocol";
        return Err(Broken::Garbage(why.to_owned()));
    }
    Ok(head)
}

/// Returns when there is no point in waiting any longer.
async fn patience(worker: &Worker, backend: &Backend, repeatable: bool) -> Broken {
    let limit = worker.shared.limits.first_byte;
    let deadline = Instant::now() + limit;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let seconds = limit.as_secs_f32();
            return Broken::Slow(format!("no answer within {seconds} s"));
        }
        sleep(left.min(LOOK_EVERY)).await;
        // Somebody else may answer; and what cannot be asked again may still be answered here.
        if repeatable && backend.is_hung() {
            return Broken::Hung("it hangs".to_owned());
        }
    }
}
