//! Sending a request to a backend and its answer back.

mod client;
mod headers;
mod relay;
mod via;

use std::error::Error;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderName, Method, Request, Response, StatusCode, Version, request};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::client::legacy::Error as LegacyError;

use crate::app::Shared;
use crate::balance::{Backend, BackendId, Choice, Route, Slot, Waited, Wish};
use crate::request::{InFlight, is_inference};
use crate::sys;

pub(crate) use client::{Client, Outgoing, client};
pub(crate) use relay::Relay;
pub(crate) use via::Via;

/// Tells the client which backend answered.
const SERVED_BY: HeaderName = HeaderName::from_static("x-llmlb-backend");
/// How many backends a request may be tried on.
const MOST_ATTEMPTS: usize = 3;

/// A request's body: read already, so that it can be sent again, or passing through, once.
#[derive(Debug)]
pub(crate) enum Payload {
    Read(Bytes),
    Passing(Option<Incoming>),
}

/// Why no backend answered.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Whoever could serve it is down.
    Down,
    /// Nothing became free; the code that says why.
    Queue(&'static str),
    /// None of those asked could be reached. Nothing was sent.
    Unreachable(String),
    /// One was reached, and did not answer.
    NoAnswer(String),
    /// The client did not send what it had announced.
    BadUpload(String),
    /// This machine has no more descriptors or ports.
    Shortage(String),
}

/// Sends the request to the least busy candidate, and to the next one if that cannot be reached, or
/// hangs up before it has said anything on a request that may be made twice.
pub(crate) async fn forward(
    shared: &Shared,
    client: &Client,
    route: &Arc<Route>,
    wish: &Wish<'_>,
    mut head: request::Parts,
    mut payload: Payload,
    in_flight: InFlight,
) -> Result<Response<Relay>, Failed> {
    let repeatable = is_repeatable(&head);
    headers::to_backend(&mut head.headers);
    shared.via.add_to(&mut head.headers);
    let mut tried: Vec<BackendId> = Vec::new();
    let mut failed = Failed::Down;
    for _ in 0..MOST_ATTEMPTS {
        let Some(body) = payload.next() else { break };
        let slot = match shared.pool.choose(route, wish, &tried) {
            Choice::Slot(slot) => Ok(slot),
            Choice::Busy => shared.pool.wait(route, wish, &tried).await,
            Choice::Down => Err(Waited::Down),
        };
        let slot = match slot {
            Ok(slot) => slot,
            Err(Waited::Down) => break,
            Err(Waited::Full) => return Err(Failed::Queue("queue_full")),
            Err(Waited::TooLong) => return Err(Failed::Queue("queue_timeout")),
        };
        let backend = Arc::clone(slot.backend());
        let request = address(&head, body, &backend)
            .map_err(|error| Failed::NoAnswer(format!("backend {}: {error}", backend.name)))?;
        let error = match client.request(request).await {
            Ok(response) => return relay(response, slot, in_flight),
            Err(error) => error,
        };
        let why = format!("backend {}: {}", backend.name, in_words(&error));
        if is_the_clients(&error) {
            return Err(Failed::BadUpload(in_words(&error)));
        }
        if is_shortage(&error) {
            return Err(Failed::Shortage(in_words(&error)));
        }
        backend.doubt.notify_one();
        if error.is_connect() {
            shared.pool.note_down(&backend, &in_words(&error));
            tried.push(backend.id);
            failed = Failed::Unreachable(why);
        } else if repeatable && is_before_any_answer(&error) {
            // Most likely it closed a connection that was idle; it can be asked on a new one.
            tracing::debug!("{why}; trying again");
            failed = Failed::NoAnswer(why);
        } else {
            tracing::warn!("{why}");
            return Err(Failed::NoAnswer(why));
        }
    }
    if let Failed::NoAnswer(why) = &failed {
        tracing::warn!("{why}");
    }
    Err(failed)
}

/// The answer as the client gets it.
fn relay(
    response: Response<Incoming>,
    slot: Slot,
    in_flight: InFlight,
) -> Result<Response<Relay>, Failed> {
    let (mut head, body) = response.into_parts();
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        let name = &slot.backend().name;
        return Err(Failed::NoAnswer(format!(
            "backend {name}: it wants to speak another protocol"
        )));
    }
    headers::to_client(&mut head.headers);
    // How the client is answered does not depend on how the backend answers us: in HTTP/1.0 an
    // answer that was cut looks like one that ended.
    head.version = Version::HTTP_11;
    let label = slot.backend().label.clone();
    head.headers.insert(SERVED_BY, label);
    Ok(Response::from_parts(
        head,
        Relay::new(body, slot, in_flight),
    ))
}

impl Payload {
    /// What to send this time; `None` if it was sent and cannot be sent again.
    fn next(&mut self) -> Option<Outgoing> {
        match self {
            Self::Read(bytes) => Some(Outgoing::Left(Full::new(bytes.clone()))),
            Self::Passing(body) => body.take().map(Outgoing::Right),
        }
    }
}

/// Whether the backend may be asked the same twice.
fn is_repeatable(head: &request::Parts) -> bool {
    let inference = |path: &str| path.strip_prefix("/v1/").is_some_and(is_inference);
    head.method.is_safe() || (head.method == Method::POST && inference(head.uri.path()))
}

/// The request as this backend gets it.
fn address(
    head: &request::Parts,
    body: Outgoing,
    backend: &Backend,
) -> Result<Request<Outgoing>, http::Error> {
    let path = head.uri.path_and_query().cloned();
    let mut request = Request::new(body);
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = backend.uri(&path.unwrap_or(PathAndQuery::from_static("/")))?;
    *request.headers_mut() = head.headers.clone();
    if let Some((name, value)) = &backend.credential {
        request.headers_mut().insert(name.clone(), value.clone());
    }
    Ok(request)
}

/// Whether it was the client's body, on its way through, that broke off.
fn is_the_clients(error: &LegacyError) -> bool {
    of_http(error).is_some_and(hyper::Error::is_user)
}

/// Whether the connection ended before the backend had said anything.
fn is_before_any_answer(error: &LegacyError) -> bool {
    let closed = of_http(error).is_some_and(|inner| {
        inner.is_incomplete_message() || inner.is_canceled() || inner.is_closed()
    });
    let reset = io_error(error).is_some_and(|inner| {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
        matches!(
            inner.kind(),
            BrokenPipe | ConnectionAborted | ConnectionReset
        )
    });
    closed || reset
}

/// Whether it is this machine that cannot open another connection.
pub(crate) fn is_shortage(error: &LegacyError) -> bool {
    io_error(error).is_some_and(sys::limits::is_shortage)
}

fn of_http(error: &LegacyError) -> Option<&hyper::Error> {
    error.source()?.downcast_ref()
}

fn io_error(error: &LegacyError) -> Option<&io::Error> {
    innermost(error).downcast_ref()
}

fn innermost<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    let mut reason = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
    reason
}

/// The innermost reason: what the outer ones say is known from where they come.
pub(crate) fn in_words(error: &(dyn Error + 'static)) -> String {
    let reason = innermost(error);
    // Every system has words of its own for these.
    match reason.downcast_ref().map(io::Error::kind) {
        Some(io::ErrorKind::ConnectionRefused) => "connection refused".to_owned(),
        Some(io::ErrorKind::ConnectionReset) => "connection reset".to_owned(),
        Some(io::ErrorKind::TimedOut) => "timed out".to_owned(),
        _ => {
            let text = reason.to_string();
            let words = text
                .split_once(" (os error")
                .map_or(&*text, |(words, _)| words);
            words.to_lowercase()
        }
    }
}
