//! The path of a request, in reading order: who may ask, what is asked, who may serve it, and what
//! comes back.

mod alike;
mod asked;
mod body;
mod browser;
mod error;
mod explain;
mod failed;
mod form;
mod held;
mod host;
mod id;
mod in_flight;
mod journal;
mod kind;
mod models;
mod ollama;
mod prefix;
mod query;
pub(crate) mod scan;
mod trip;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, request};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use crate::admin;
use crate::balance::{Absent, Wish};
use crate::config::Kind;
use crate::forward::{self, Outbound, REQUEST_ID, Relay};
use crate::worker::Worker;

pub(crate) use asked::{Asked, Payload};
pub(crate) use error::{Refusal, json_response};
pub(crate) use held::Budget;
pub(crate) use id::Ids;
pub(crate) use in_flight::{Counter, InFlight};
pub(crate) use journal::{Journal, Lines};
pub(crate) use kind::is_inference;
pub(crate) use trip::{End, Trip};

/// What goes back to the client: an answer of our own, or a backend's.
pub(crate) type Answer = Response<Either<Full<Bytes>, Relay>>;

/// A client's connection: everything that its requests have in common.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) worker: Arc<Worker>,
    /// The two ends of the connection.
    pub(crate) peer: SocketAddr,
    pub(crate) local: SocketAddr,
    /// What is being served on this connection.
    pub(crate) requests: Counter,
}

/// Serves one request.
pub(crate) async fn serve(
    caller: Arc<Caller>,
    mut request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let upgrade = wants_upgrade(&request).then(|| hyper::upgrade::on(&mut request));
    let (head, body) = request.into_parts();
    let trip = Box::new(Trip::start(&caller, &head));
    let id = trip.id.clone();
    let mut answer = match stages(&caller, &head, body, upgrade, trip).await {
        Ok(answer) => answer,
        Err((refusal, mut trip)) => {
            trip.refused(&refusal);
            own(refusal.into_response(head.uri.path(), &id))
        }
    };
    let is_upgrade = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    let headers = answer.headers_mut();
    headers.insert(REQUEST_ID, id);
    if !is_upgrade && caller.worker.shared.is_draining() && head.version < Version::HTTP_2 {
        // The client's next request is for somebody else.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(answer)
}

/// A request's way through the server. A refusal brings the trip back, to be told.
async fn stages(
    caller: &Caller,
    head: &request::Parts,
    body: Incoming,
    upgrade: Option<OnUpgrade>,
    mut trip: Box<Trip>,
) -> Result<Answer, (Refusal, Box<Trip>)> {
    let worker = &caller.worker;
    let (path, kind) = match door(caller, head, upgrade.is_some()) {
        Ok(Door::Own(response)) => {
            trip.answered_here(response.status());
            return Ok(own(response));
        }
        Ok(Door::Forward(path)) => (path, None),
        Ok(Door::Ollama(path)) => (path, Some(Kind::Ollama)),
        Err(refusal) => return Err((refusal, trip)),
    };
    if let Some(why) = worker.shared.meter.refusal() {
        return Err((failed::unmetered(&why), trip));
    }
    let body = match body::none_if_safe(&head.method, body, worker.shared.limits.body).await {
        Ok(body) => body,
        Err(refusal) => return Err((refusal, trip)),
    };
    trip.in_flight(InFlight::new(&worker.shared.requests, &caller.requests));
    let mut asked = match asked::read(head, path, body, &worker.shared).await {
        Ok(asked) => asked,
        Err(refusal) => return Err((refusal, trip)),
    };
    trip.asked(&asked);
    let model = asked.model.take();
    let pool = &worker.shared.pool;
    let route = match pool.route_of(kind, model.as_deref()) {
        Ok(route) => route,
        Err(absent) => {
            let name = model.unwrap_or_default();
            let refusal = match absent {
                Absent::Unknown => models::unknown(&name, &pool.table(), kind),
                Absent::NotYet => models::not_yet(&name, &pool.table()),
            };
            return Err((refusal, trip));
        }
    };
    let blocks = std::mem::take(&mut asked.blocks);
    let wish = Wish {
        blocks: &blocks,
        issued: asked
            .issued
            .or_else(|| forward::in_path(path).map(|id| forward::hash(id.as_bytes()))),
        client: id::client(caller.peer, &head.headers),
    };
    // What passes through can be sent once.
    let is_kept = matches!(asked.payload, Payload::Read(_)) && upgrade.is_none();
    let outbound = Outbound {
        head,
        path,
        asked: &mut asked,
        wish: &wish,
        repeatable: is_kept && kind::is_repeatable(&head.method, path),
        tried: Vec::new(),
        upgrade,
    };
    forward::forward(worker, &route, outbound, trip)
        .await
        .map_err(|(failed, trip)| (failed::refusal(failed, model.as_deref()), trip))
}

/// Where a request goes.
enum Door<'a> {
    /// It is answered here.
    Own(Response<Full<Bytes>>),
    /// To a backend; this is what follows `/v1/`.
    Forward(&'a str),
    /// To an Ollama, whose own API it is; this is all of its path.
    Ollama(&'a str),
}

fn door<'a>(
    caller: &Caller,
    head: &'a request::Parts,
    is_upgrade: bool,
) -> Result<Door<'a>, Refusal> {
    let shared = &caller.worker.shared;
    host::check(head)?;
    if head.method == Method::CONNECT || head.method == Method::TRACE {
        return Err(Refusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            format!("{} is not served here.", head.method),
        )
        .allow("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"));
    }
    browser::admit(shared, head, is_upgrade)?;
    let whole = head.uri.path();
    if ollama::is_asked(&head.method, whole) && shared.pool.table().may_have(Kind::Ollama) {
        refuse_loop(caller, head)?;
        let list = ollama::list(whole, &shared.pool.table());
        return Ok(list.map_or(Door::Ollama(whole), Door::Own));
    }
    let Some(path) = whole.strip_prefix("/v1/") else {
        return admin::answer(caller, head).map(Door::Own);
    };
    if kind::is_ambiguous(path) {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "bad_path",
            "The path can be read in two ways: it has `.`, `..` or empty segments, or characters \
             that are escaped and need not be.",
        ));
    }
    if head.method == Method::GET || head.method == Method::HEAD {
        if path == "models" || path == "models/" {
            return Ok(Door::Own(models::list(&shared.pool.table())));
        }
        if let Some(name) = path.strip_prefix("models/") {
            return models::one(&shared.pool.table(), name).map(Door::Own);
        }
    }
    refuse_loop(caller, head)?;
    Ok(Door::Forward(path))
}

fn refuse_loop(caller: &Caller, head: &request::Parts) -> Result<(), Refusal> {
    if caller.worker.shared.via.is_in(&head.headers) {
        return Err(Refusal::new(
            StatusCode::LOOP_DETECTED,
            "loop_detected",
            "This request was here before: a backend sends it back. Look for this server's own \
             address among the backends.",
        ));
    }
    Ok(())
}

fn own(response: Response<Full<Bytes>>) -> Answer {
    response.map(Either::Left)
}

/// Whether a client wants to go on in another protocol (WebSocket).
fn wants_upgrade(request: &Request<Incoming>) -> bool {
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        // Any other protocol would carry requests past everything here.
        && request
            .headers()
            .get(header::UPGRADE)
            .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && request
            .headers()
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
}
