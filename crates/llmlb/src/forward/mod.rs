//! Sending a request to a backend and its answer back.

mod client;
mod headers;
mod relay;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderName, Request, Response, header, request};
use http_body_util::Full;
use hyper::body::Incoming;

use crate::balance::{Backend, Pool, State};
use crate::request::InFlight;

pub(crate) use client::{Client, Outgoing, client};
pub(crate) use relay::Relay;

/// Tells the client which backend answered.
const SERVED_BY: HeaderName = HeaderName::from_static("x-llmlb-backend");
/// How many backends a request may be tried on.
const MOST_ATTEMPTS: usize = 3;

/// A request's body: read already, so that it can be sent again, or passing through, once.
#[derive(Debug)]
pub(crate) enum Payload {
    Read(Bytes),
    Passing(Incoming),
}

/// Why no backend answered.
#[derive(Debug)]
pub(crate) enum Failed {
    /// None of those asked could be reached. Nothing was sent.
    Unreachable(String),
    /// One was reached, and did not answer.
    NoAnswer(String),
    /// The client did not send what it had announced.
    BadUpload(String),
}

/// Sends the request to the least busy candidate, and to the next one if that cannot be reached.
pub(crate) async fn forward(
    pool: &Pool,
    client: &Client,
    mut candidates: Vec<Arc<Backend>>,
    mut head: request::Parts,
    payload: Payload,
    in_flight: InFlight,
) -> Result<Response<Relay>, Failed> {
    headers::to_backend(&mut head.headers);
    let (bytes, mut passing) = match payload {
        Payload::Read(bytes) => (bytes, None),
        Payload::Passing(body) => {
            // It can be sent once only.
            candidates = pool.take(&mut candidates).into_iter().collect();
            (Bytes::new(), Some(body))
        }
    };
    let mut unreachable = "no backend is up".to_owned();
    for _ in 0..MOST_ATTEMPTS {
        let Some(backend) = pool.take(&mut candidates) else {
            break;
        };
        let body = match passing.take() {
            Some(body) => Outgoing::Right(body),
            None => Outgoing::Left(Full::new(bytes.clone())),
        };
        let request = address(&head, body, &backend)
            .map_err(|error| Failed::NoAnswer(format!("backend {}: {error}", backend.name)))?;
        let slot = backend.occupy();
        match client.request(request).await {
            Ok(response) => {
                let (mut head, body) = response.into_parts();
                headers::to_client(&mut head.headers);
                head.headers.insert(SERVED_BY, backend.label.clone());
                let relay = Relay::new(body, slot, in_flight);
                return Ok(Response::from_parts(head, relay));
            }
            Err(error) => {
                let why = in_words(&error);
                if is_the_clients(&error) {
                    return Err(Failed::BadUpload(why));
                }
                backend.doubt.notify_one();
                if !error.is_connect() {
                    tracing::warn!(backend = backend.name, "gave no answer: {why}");
                    return Err(Failed::NoAnswer(format!("backend {}: {why}", backend.name)));
                }
                if let State::Up(_) = pool.note(&backend, State::Down(why.clone())) {
                    tracing::warn!(backend = backend.name, "is down: {why}");
                }
                unreachable = format!("backend {}: {why}", backend.name);
            }
        }
    }
    Err(Failed::Unreachable(unreachable))
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
    if let Some(authorization) = &backend.authorization {
        request
            .headers_mut()
            .insert(header::AUTHORIZATION, authorization.clone());
    }
    Ok(request)
}

/// Whether it was the client's body, on its way through, that broke off.
fn is_the_clients(error: &dyn std::error::Error) -> bool {
    let inner = error
        .source()
        .and_then(|source| source.downcast_ref::<hyper::Error>());
    inner.is_some_and(hyper::Error::is_user)
}

/// The innermost reason: what the outer ones say is known from where they come.
pub(crate) fn in_words(error: &(dyn std::error::Error + 'static)) -> String {
    let mut reason = error;
    while let Some(source) = reason.source() {
        reason = source;
    }
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
