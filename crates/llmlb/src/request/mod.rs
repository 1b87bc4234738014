//! The path of a request, in reading order: who may ask, what is asked, who may serve it, and what
//! comes back.

mod alike;
mod asked;
mod body;
mod browser;
mod cancelled;
mod client;
mod error;
mod explain;
mod failed;
mod form;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod host;
mod id;
mod in_flight;
mod journal;
mod method;
mod models;
mod ollama;
mod prefix;
mod prompt_fields;
mod query;
mod trip;
pub(crate) mod unparsed;

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version, header, request};
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;

use crate::balance::{Absent, EndpointKey, Wish};
use crate::config::{Kind, UnknownEndpoints};
use crate::endpoint::{self, Endpoint, Page, PathError, Service};
use crate::forward::{self, Outbound, Relay};
use crate::headers::REQUEST_ID;
use crate::issued_ids;
use crate::memory_budget::Budget;
use crate::server::admin;
use crate::server::backlog::{self, Outgoing, SharedBody};
use crate::server::client_memory::{ClientMemory, RequestMemory};
use crate::server::worker::Worker;

pub(crate) use asked::{Asked, Payload};
pub(crate) use browser::KnownHosts;
pub(crate) use cancelled::Cancelled;
pub(crate) use error::{Refusal, json_response};
pub(crate) use id::Ids;
pub(crate) use in_flight::{Counter, InFlight};
pub(crate) use journal::{Journal, Lines};
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
    /// The peer is a reverse proxy whose word on its clients' addresses counts.
    pub(crate) is_proxy: bool,
    /// What is being served on this connection.
    pub(crate) requests: Counter,
    pub(crate) memory: Arc<ClientMemory>,
}

/// Serves one request.
///
/// Its memory is charged at once, not when its task runs: until then requests of other connections
/// may arrive, whose heads would be held as well.
pub(crate) fn serve(
    caller: Arc<Caller>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Outgoing>, Infallible>> {
    let (version, uri, headers) = (request.version(), request.uri(), request.headers());
    let memory = RequestMemory::new(&caller.memory, version, uri, headers, request.body());
    let admitted = match memory {
        Some(memory) => Ok((request, memory)),
        // The request is dropped here.
        None => Err(without_memory(&caller, request)),
    };
    async move {
        Ok(match admitted {
            Ok((request, memory)) => serve_admitted(caller, request, memory).await,
            Err(response) => Outgoing::respond(response, &caller.memory.backlog, None),
        })
    }
}

/// The response to a request that does not fit into the memory, which only happens over HTTP/2. It
/// has no body: that would be held until the client takes it.
fn without_memory(caller: &Caller, request: Request<Incoming>) -> Answer {
    let refusal = body::too_many(&caller.worker.shared.bodies);
    let (head, _) = request.into_parts();
    let mut trip = Trip::start(caller, &head, Endpoint::NOTHING);
    trip.refused(&refusal);
    let mut response = refusal.into_response(Endpoint::NOTHING.dialect, &trip.id);
    *response.body_mut() = Full::default();
    own(response)
}

async fn serve_admitted(
    caller: Arc<Caller>,
    mut request: Request<Incoming>,
    mut memory: RequestMemory,
) -> Response<Outgoing> {
    let upgrade = wants_upgrade(&request).then(|| hyper::upgrade::on(&mut request));
    let (head, body) = request.into_parts();
    let located = endpoint::parse(&head.method, head.uri.path());
    let endpoint = located
        .as_ref()
        .map_or(Endpoint::NOTHING, |(found, _)| *found);
    let trip = Box::new(Trip::start(&caller, &head, endpoint));
    let id = trip.id.clone();
    let served = stages(&caller, &head, located, body, upgrade, &mut memory, trip).await;
    let mut answer = match served {
        Ok(answer) => answer,
        Err((refusal, mut trip)) => {
            trip.refused(&refusal);
            memory.refuse();
            let response = refusal.into_response(endpoint.dialect, &id);
            trip.note_own_body(&response);
            own(response)
        }
    };
    let is_upgrade = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_upgrade {
        memory.upgrade();
    }
    let headers = answer.headers_mut();
    headers.insert(REQUEST_ID, id);
    if !is_upgrade && caller.worker.shared.is_draining() && head.version < Version::HTTP_2 {
        // The client's next request is for somebody else.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Outgoing::respond(answer, &caller.memory.backlog, Some(memory))
}

/// The endpoint of a request and the path that is forwarded, or the reason to reject the request.
type Located<'a> = Result<(Endpoint, Cow<'a, str>), PathError>;

/// A request's way through the server. A refusal brings the trip back, to be told.
async fn stages(
    caller: &Caller,
    head: &request::Parts,
    located: Located<'_>,
    mut body: Incoming,
    upgrade: Option<OnUpgrade>,
    memory: &mut RequestMemory,
    mut trip: Box<Trip>,
) -> Result<Answer, (Refusal, Box<Trip>)> {
    let worker = &caller.worker;
    let (endpoint, path) = match admit(caller, head, located, upgrade.is_some()) {
        Ok(located) => located,
        Err(refusal) => return Err((refusal, trip)),
    };
    if head.method.is_safe() && !body.is_end_stream() {
        let pace = worker.shared.limits.body;
        let expected = Box::pin(body::expect_none(&head.method, &mut body, pace)).await;
        if let Err(refusal) = expected {
            return Err((refusal, trip));
        }
    }
    let kind = match endpoint.service {
        Service::Own(page) => match page_of(caller, head, page, &path) {
            Ok(response) if has_room_for(&response, &worker.shared.bodies) => {
                trip.answered_here(&response);
                return Ok(own(response));
            }
            Ok(_) => return Err((body::too_many(&worker.shared.bodies), trip)),
            Err(refusal) => return Err((refusal, trip)),
        },
        Service::Ollama => Some(Kind::Ollama),
        Service::Backend | Service::Nothing => None,
    };
    if let Some(why) = worker.shared.meter.refusal() {
        return Err((failed::unmetered(&why), trip));
    }
    trip.in_flight(InFlight::new(&worker.shared.requests, &caller.requests));
    let mut asked = match asked::read(head, endpoint, body, &worker.shared).await {
        Ok(asked) => asked,
        Err(refusal) => return Err((refusal, trip)),
    };
    match asked.payload {
        Payload::Read(_) => memory.note_body_read(),
        Payload::Passing(Some(_)) if !memory.grow(body::RECEIVING) => {
            return Err((body::too_many(&worker.shared.bodies), trip));
        }
        Payload::Passing(_) => {}
    }
    trip.asked(&asked);
    let model = asked.model.take();
    let pool = &worker.shared.pool;
    let route = match pool.route_of(kind, model.as_deref()) {
        Ok(route) => route,
        Err(absent) => {
            let name = model.unwrap_or_default();
            let refusal = match absent {
                Absent::Unknown => models::unknown(&name, pool, kind),
                Absent::NotYet => models::not_yet(&name, pool),
            };
            return Err((refusal, trip));
        }
    };
    let blocks = std::mem::take(&mut asked.blocks);
    let id_in_path = || {
        // The path of an inference endpoint is the endpoint's alone.
        let id = (!endpoint.is_inference).then(|| endpoint::id_in(&path))?;
        id.map(|id| issued_ids::hash(id.as_bytes()))
    };
    let wish = Wish {
        blocks: &blocks,
        issued: asked.issued.or_else(id_in_path),
        client: id::client(trip.client, &head.headers),
        endpoint: endpoint_key(&head.method, endpoint, &path),
    };
    if let Some(delay) = worker.shared.cancelled.delay(trip.client, trip.started) {
        tokio::time::sleep(delay).await;
    }
    // What passes through can be sent once.
    let is_kept = matches!(asked.payload, Payload::Read(_)) && upgrade.is_none();
    let outbound = Outbound {
        head,
        endpoint,
        path: &path,
        asked: &mut asked,
        wish: &wish,
        repeatable: is_kept && endpoint.is_repeatable(&head.method),
        is_delivered: false,
        tried: Vec::new(),
        upgrade,
    };
    forward::forward(worker, &route, outbound, trip)
        .await
        .map_err(|(failed, trip)| (failed::refusal(failed, model.as_deref()), trip))
}

/// The key under which it is remembered that a backend does not serve the endpoint of a POST.
fn endpoint_key(method: &Method, endpoint: Endpoint, path: &str) -> Option<EndpointKey> {
    let is_one = endpoint.is_inference || (*method == Method::POST && !endpoint::has_id(path));
    is_one.then(|| EndpointKey::new(path, endpoint.is_known))
}

/// Decides whether a request is served at all, before its body is read.
fn admit<'a>(
    caller: &Caller,
    head: &request::Parts,
    located: Located<'a>,
    is_upgrade: bool,
) -> Result<(Endpoint, Cow<'a, str>), Refusal> {
    let shared = &caller.worker.shared;
    method::check(&head.method)?;
    host::check(head)?;
    browser::admit(caller, head, is_upgrade)?;
    let (endpoint, path) = located.map_err(|error| bad_path(head, error))?;
    let is_ollama_absent = || !shared.pool.table().may_have(Kind::Ollama);
    match endpoint.service {
        Service::Nothing => return Err(admin::not_found(shared, endpoint, &path)),
        Service::Ollama | Service::Own(Page::OllamaTags) if is_ollama_absent() => {
            return Err(admin::not_found(shared, endpoint, &path));
        }
        Service::Own(_) => return Ok((endpoint, path)),
        Service::Backend | Service::Ollama => {}
    }
    if !endpoint.is_known && shared.unknown_endpoints == UnknownEndpoints::Reject {
        return Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "unknown_endpoint",
            format!(
                "{path} is not an endpoint that llmlb knows, and server.unknown_endpoints is \
                 `reject`."
            ),
        ));
    }
    if is_upgrade && !endpoint::may_be_websocket(endpoint, &path) {
        return Err(Refusal::new(
            StatusCode::UPGRADE_REQUIRED,
            "websocket_not_supported",
            format!("{path} is not served over WebSocket; send an HTTP request."),
        )
        .upgrade("websocket"));
    }
    let has_keys = || {
        let table = shared.pool.table();
        table.backends.iter().any(|one| one.credential.is_some())
    };
    if endpoint::issues_credentials(&head.method, &path) && has_keys() {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "issues_credentials",
            format!(
                "{path} would issue a credential of this server's own account. Connect to \
                 /v1/realtime of this server instead."
            ),
        ));
    }
    refuse_loop(caller, head)?;
    Ok((endpoint, path))
}

fn bad_path(head: &request::Parts, error: PathError) -> Refusal {
    match error {
        PathError::Misspelled(plain) => Refusal::new(
            StatusCode::BAD_REQUEST,
            "bad_path",
            format!("Some servers would take this path for {plain}; use that spelling."),
        ),
        PathError::Ambiguous => Refusal::new(
            StatusCode::BAD_REQUEST,
            "bad_path",
            "The path can be read in two ways: it has `.` or `..` segments, control characters, or \
             characters that are escaped and need not be.",
        ),
        PathError::MethodNotAllowed(methods) => not_allowed(
            format!("{} answers {methods} only.", head.uri.path()),
            methods,
        ),
    }
}

fn not_allowed(message: String, methods: &'static str) -> Refusal {
    let status = StatusCode::METHOD_NOT_ALLOWED;
    Refusal::new(status, "method_not_allowed", message).allow(methods)
}

/// A page of llmlb's own.
fn page_of(
    caller: &Caller,
    head: &request::Parts,
    page: Page,
    path: &str,
) -> Result<Response<Full<Bytes>>, Refusal> {
    let pool = &caller.worker.shared.pool;
    match page {
        Page::Admin(page) => admin::answer(caller, &head.headers, page),
        Page::Models => Ok(models::list(&pool.table())),
        Page::Model => models::one(pool, &endpoint::model_in(path)),
        Page::OllamaTags => Ok(ollama::list(&pool.table())),
    }
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

/// True if a response of our own fits into the memory that is left: a list of models may be long.
fn has_room_for(response: &Response<Full<Bytes>>, budget: &Budget) -> bool {
    if response.extensions().get::<SharedBody>().is_some() {
        return true;
    }
    let length = response.body().size_hint().lower();
    length <= backlog::FREE as u64 || usize::try_from(length).is_ok_and(|length| budget.has(length))
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
