//! Passes a request through its stages, in reading order: admission, parsing, choice of a backend,
//! forwarding.

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version, header};
use http_body_util::{Either, Full};
use hyper::body::{Body, Incoming};
use hyper::upgrade::OnUpgrade;

use super::backlog::{self, Outgoing, ResponseBacklog, SharedBody};
use super::client_memory::{ClientMemory, RequestMemory};
use super::shared::Shared;
use super::worker::Worker;
use super::{admin, admission, models, ollama, websocket};
use crate::balance::{EndpointKey, Issuer, Pool, Route, RouteError, SelectHints};
use crate::config::{Kind, Networks, UnknownEndpoints};
use crate::endpoint::{self, Endpoint, Page, PathError, Service};
use crate::forward::{self, ClientResponse, Outbound};
use crate::headers::{REQUEST_ID, WHY};
use crate::issued_ids::IdHash;
use crate::keys::{ApiKey, SecretMemo};
use crate::limits::Rates;
use crate::memory_budget::Budget;
use crate::request::{
    self, BodyLimits, Counter, InFlight, ParsedRequest, Payload, Refusal, RequestGuard,
};
use crate::request_settings::RequestSettings;

/// State of a client connection that all its requests share.
#[derive(Debug)]
pub(crate) struct ConnectionContext {
    pub(crate) worker: Arc<Worker>,
    /// Address of the client, or of the reverse proxy in front of it.
    pub(crate) peer: SocketAddr,
    /// Address of this server that the client connected to. A loopback address shows that the
    /// client may be on this machine.
    pub(crate) local: SocketAddr,
    /// True if the port requires client certificates and the client has presented none. Only health
    /// checks are then served.
    pub(crate) lacks_certificate: bool,
    /// Counts of this connection's requests, in flight and in total. A draining server does not
    /// close the connection while requests are in flight.
    pub(crate) requests: Counter,
    pub(crate) memory: Arc<ClientMemory>,
    pub(crate) secret_memo: SecretMemo,
}

impl ConnectionContext {
    /// Returns the client address of a request: the peer's, or the one that a trusted proxy reports
    /// in these headers.
    pub(crate) fn client_address(&self, headers: &HeaderMap, proxies: &Networks) -> IpAddr {
        // Fast path: if the configuration names no proxies, the peer is the client.
        let is_proxy = proxies.contains(self.peer.ip());
        request::client_address(self.peer, headers, is_proxy.then_some(proxies))
    }

    fn start_guard(
        &self,
        head: &Parts,
        endpoint: Endpoint,
        settings: &RequestSettings,
    ) -> RequestGuard {
        let client = self.client_address(&head.headers, &settings.proxies);
        RequestGuard::start(self.worker.accounting(), client, head, endpoint)
    }
}

/// Serves one request. `backlog` counts the bytes of the response that are not written to the
/// client yet.
///
/// The memory of the request is charged at once and not when its task runs. Otherwise the heads of
/// many requests could arrive, uncharged, before the first task runs.
pub(crate) fn serve(
    caller: Arc<ConnectionContext>,
    request: Request<Incoming>,
    backlog: ResponseBacklog,
) -> impl Future<Output = Result<Response<Outgoing>, Infallible>> {
    let (version, uri, headers) = (request.version(), request.uri(), request.headers());
    let memory = RequestMemory::new(&caller.memory, version, uri, headers, request.body());
    let admitted = match memory {
        Some(memory) => Ok((request, memory)),
        // Reject the request here and not in the future: it is dropped at once, which frees the
        // memory of its head.
        None => Err(reject_without_memory(&caller, request)),
    };
    async move {
        Ok(match admitted {
            Ok((request, memory)) => serve_admitted(caller, request, memory, backlog).await,
            Err(response) => Outgoing::respond(response, backlog, None),
        })
    }
}

/// Rejects a request that would exceed `server.body_memory`, which happens only over HTTP/2. The response has
/// no body, which would itself use memory until the client reads it.
fn reject_without_memory(caller: &ConnectionContext, request: Request<Incoming>) -> ClientResponse {
    let refusal = request::too_many(&caller.worker.shared.budget);
    let (head, _) = request.into_parts();
    let settings = caller.worker.shared.settings();
    let mut guard = caller.start_guard(&head, Endpoint::NOT_SERVED, &settings);
    guard.note_refusal(&refusal);
    let mut response = refusal.into_response(Endpoint::NOT_SERVED.dialect, &guard.identity.id);
    *response.body_mut() = Full::default();
    own_response(response)
}

async fn serve_admitted(
    caller: Arc<ConnectionContext>,
    mut request: Request<Incoming>,
    mut memory: RequestMemory,
    backlog: ResponseBacklog,
) -> Response<Outgoing> {
    let upgrade = websocket::is_requested(&request).then(|| hyper::upgrade::on(&mut request));
    let (head, body) = request.into_parts();
    let located = endpoint::parse(&head.method, head.uri.path());
    let endpoint = located
        .as_ref()
        .map_or(Endpoint::NOT_SERVED, |(found, _)| *found);
    let settings = caller.worker.shared.settings();
    let guard = Box::new(caller.start_guard(&head, endpoint, &settings));
    let id = guard.identity.id.clone();
    let mut rates = Rates::default();
    let request = Incomplete {
        located,
        body,
        upgrade,
    };
    let state = (&mut memory, &mut rates);
    let served = stages(&caller, &head, &settings, request, state, guard).await;
    let mut response = match served {
        Ok(response) => response,
        Err((refusal, mut guard)) => {
            guard.note_refusal(&refusal);
            memory.reject();
            let mut response = refusal.into_response(endpoint.dialect, &id);
            if head.headers.get(WHY).is_some_and(|value| value == "1") {
                response.headers_mut().insert(WHY, guard.why());
            }
            guard.note_own_body(&response);
            guard.persisted().await;
            own_response(response)
        }
    };
    let is_upgrade = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if is_upgrade {
        memory.upgrade();
    }
    admission::add_rates(&mut response, rates, endpoint);
    let headers = response.headers_mut();
    headers.insert(REQUEST_ID, id);
    if !is_upgrade && caller.worker.shared.is_draining() && head.version < Version::HTTP_2 {
        // The server drains. Make the client send its next request on a new connection, which
        // another server may accept.
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Outgoing::respond(response, backlog, Some(memory))
}

/// Endpoint of a request and the path that is forwarded, or the reason to reject the path.
type Located<'a> = Result<(Endpoint, Cow<'a, str>), PathError>;

/// Request whose body is not read yet.
struct Incomplete<'a> {
    located: Located<'a>,
    body: Incoming,
    upgrade: Option<OnUpgrade>,
}

/// Request that passed all checks, with the decision about its response.
#[expect(
    clippy::large_enum_variant,
    reason = "most requests are forwarded, and a box would cost each of them an allocation"
)]
enum Prepared<'a> {
    Page(Response<Full<Bytes>>),
    Forward(BackendRequest<'a>),
}

/// A request for a backend.
struct BackendRequest<'a> {
    endpoint: Endpoint,
    path: Cow<'a, str>,
    parsed: ParsedRequest,
    model: Option<String>,
    route: Arc<Route>,
    /// Settings of the configuration to which `route` belongs. They may be newer than those with
    /// which the request began, because its body can take long to arrive.
    settings: Arc<RequestSettings>,
}

/// Passes a request through all stages. An error is returned together with the request's guard,
/// which logs it.
async fn stages(
    caller: &ConnectionContext,
    head: &Parts,
    settings: &RequestSettings,
    request: Incomplete<'_>,
    (memory, rates): (&mut RequestMemory, &mut Rates),
    mut guard: Box<RequestGuard>,
) -> Result<ClientResponse, (Refusal, Box<RequestGuard>)> {
    let shared = &caller.worker.shared;
    let Incomplete {
        located,
        body,
        upgrade,
    } = request;
    let is_upgrade = upgrade.is_some();
    let located = match admit(caller, head, settings, located, is_upgrade, &mut guard) {
        Ok(located) => located,
        Err(refusal) => return Err((refusal, guard)),
    };
    guard.identity.endpoint = located.0;
    let prepared = prepare(
        caller,
        head,
        settings,
        (located, is_upgrade),
        body,
        memory,
        &mut guard,
    )
    .await;
    let request = match prepared {
        Ok(Prepared::Forward(request)) => request,
        Ok(Prepared::Page(response)) => {
            *rates = admission::rates(shared, &guard);
            return Ok(own_response(response));
        }
        Err(refusal) => {
            *rates = admission::rates(shared, &guard);
            return Err((refusal, guard));
        }
    };
    let (endpoint, parsed, mode) = (request.endpoint, &request.parsed, settings.limits);
    let (admitted, left) = admission::admit(shared, endpoint, parsed, mode, &mut guard).await;
    *rates = left;
    match admitted {
        Ok(()) => forward_request(caller, head, request, upgrade, guard).await,
        Err(refusal) => Err((refusal, guard)),
    }
}

/// Reads the body of a request, and finds the backends that may serve it or the page that responds
/// to it.
async fn prepare<'a>(
    caller: &ConnectionContext,
    head: &Parts,
    settings: &RequestSettings,
    ((endpoint, path), is_upgrade): ((Endpoint, Cow<'a, str>), bool),
    mut body: Incoming,
    memory: &mut RequestMemory,
    guard: &mut RequestGuard,
) -> Result<Prepared<'a>, Refusal> {
    let shared = &caller.worker.shared;
    if head.method.is_safe() && !body.is_end_stream() {
        let pace = settings.client_limits.body;
        Box::pin(request::expect_none(&head.method, &mut body, pace)).await?;
    }
    let kind = match endpoint.service {
        Service::Own(page) => {
            let key = guard.key.as_deref();
            let response =
                Box::pin(own_page(caller, head, settings, (page, &path), body, key)).await?;
            if !has_room_for(&response, &shared.budget) {
                return Err(request::too_many(&shared.budget));
            }
            guard.note_own_response(&response);
            return Ok(Prepared::Page(response));
        }
        Service::Ollama => Some(Kind::Ollama),
        Service::Backend | Service::NotServed => None,
    };
    if let Some(why) = shared.meter.refusal() {
        return Err(unmetered(&why));
    }
    guard.set_in_flight(InFlight::new(&shared.requests, &caller.requests));
    let limits = BodyLimits {
        max: settings.max_body,
        pace: settings.client_limits.body,
        budget: &shared.budget,
    };
    let mut parsed = request::read(head, endpoint, body, limits).await?;
    match parsed.payload {
        Payload::Read(_) => memory.note_body_read(),
        Payload::Passing(Some(_)) if !memory.grow(request::RECEIVING) => {
            return Err(request::too_many(&shared.budget));
        }
        Payload::Passing(_) => {}
    }
    guard.note_parsed(&parsed);
    let key = guard.key.as_deref();
    request::check_model(key, head, endpoint, &path, &parsed, is_upgrade)?;
    let model = parsed.model.take();
    let (route, settings) = find_route(&shared.pool, kind, model.as_deref(), key)?;
    guard.note_routed();
    if is_upgrade {
        websocket::check_route(&route, endpoint, &path)?;
    }
    Ok(Prepared::Forward(BackendRequest {
        endpoint,
        path,
        parsed,
        model,
        route,
        settings,
    }))
}

/// Returns the backends that serve a model. With `kind`, only backends of that kind are used, such
/// as Ollama for requests to Ollama's own API.
fn find_route(
    pool: &Pool,
    kind: Option<Kind>,
    model: Option<&str>,
    key: Option<&ApiKey>,
) -> Result<(Arc<Route>, Arc<RequestSettings>), Refusal> {
    pool.route_with_settings(kind, model).map_err(|error| {
        let name = model.unwrap_or_default();
        match error {
            RouteError::Unknown => models::unknown(name, pool, kind, key),
            RouteError::NotYet => models::not_known_yet(name, pool, key),
        }
    })
}

async fn forward_request(
    caller: &ConnectionContext,
    head: &Parts,
    request: BackendRequest<'_>,
    upgrade: Option<OnUpgrade>,
    guard: Box<RequestGuard>,
) -> Result<ClientResponse, (Refusal, Box<RequestGuard>)> {
    let worker = &caller.worker;
    let BackendRequest {
        endpoint,
        path,
        mut parsed,
        model,
        route,
        settings,
    } = request;
    let blocks = std::mem::take(&mut parsed.blocks);
    let id_in_path = || {
        // The path may contain the id of a stored object: then the request must go to the backend
        // that issued the id. Paths of inference endpoints contain no such id, so they are not
        // searched.
        let id = (!endpoint.is_inference).then(|| endpoint::id_in(&path))?;
        id.map(|id| IdHash::new(id.as_bytes()))
    };
    let client = guard.identity.client;
    let issued = parsed.issued.or_else(id_in_path);
    find_issuer(&worker.shared, issued).await;
    let hints = SelectHints {
        blocks: &blocks,
        issued,
        client: request::client_key(client, &head.headers, guard.key.as_deref()),
        endpoint: match &upgrade {
            Some(_) => websocket::endpoint_key(endpoint, &path),
            None => endpoint_key(&head.method, endpoint, &path),
        },
    };
    let cancelled = &worker.shared.cancelled;
    if let Some(delay) = cancelled.delay(client, guard.identity.started) {
        tokio::time::sleep(delay).await;
    }
    // A streamed body can be sent only once, so such a request cannot be retried on another
    // backend.
    let is_kept = matches!(parsed.payload, Payload::Read(_)) && upgrade.is_none();
    let outbound = Outbound {
        head,
        endpoint,
        path: &path,
        parsed: &mut parsed,
        hints: &hints,
        settings: &settings,
        repeatable: is_kept && endpoint.is_repeatable(&head.method),
        is_delivered: false,
        tried: Vec::new(),
        upgrade,
    };
    forward::forward(&worker.forwarding, &route, outbound, guard)
        .await
        .map_err(|(error, guard)| (forward::refusal(error, model.as_deref()), guard))
}

/// Queries Redis for the backend that issued an id, if this server does not know the backend
/// because another server of the fleet received the id.
async fn find_issuer(shared: &Shared, id: Option<IdHash>) {
    if let (Some(store), Some(id)) = (&shared.issuer_store, id)
        && !shared.pool.knows_issuer(id)
        && let Some(backend) = store.find(id).await
    {
        shared.pool.restore_issuer(Issuer { id, backend });
    }
}

/// Returns the key under which llmlb remembers that a backend does not serve the endpoint of a
/// POST; `None` if that is not remembered for this path.
fn endpoint_key(method: &Method, endpoint: Endpoint, path: &str) -> Option<EndpointKey> {
    let is_one = endpoint.is_inference || (*method == Method::POST && !endpoint::has_id(path));
    is_one.then(|| EndpointKey::new(path, endpoint.is_known))
}

/// Checks the head of a request, and rejects requests that are not served before their bodies are
/// read. Stores the client's API key in the guard.
fn admit<'a>(
    caller: &ConnectionContext,
    head: &Parts,
    settings: &RequestSettings,
    located: Located<'a>,
    is_upgrade: bool,
    guard: &mut RequestGuard,
) -> Result<(Endpoint, Cow<'a, str>), Refusal> {
    let shared = &caller.worker.shared;
    request::check_method(&head.method)?;
    if caller.lacks_certificate && !admin::is_open(caller, &head.headers, &located) {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "client_certificate_required",
            "This server requires a client certificate (server.tls_client_ca), and the connection has none.",
        ));
    }
    request::check_host(head)?;
    if let Some(hosts) = &settings.private_hosts {
        request::refuse_foreign_pages(hosts, head, caller.local.ip(), is_upgrade)?;
    }
    let (mut endpoint, path) = located.map_err(|error| bad_path(head, error))?;
    authenticate(caller, head, endpoint, is_upgrade, guard)?;
    let is_ollama_absent = || !shared.pool.table().may_have(Kind::Ollama);
    match endpoint.service {
        Service::NotServed => return Err(admin::not_found(shared, endpoint, &path)),
        Service::Ollama | Service::Own(Page::OllamaTags) if is_ollama_absent() => {
            return Err(admin::not_found(shared, endpoint, &path));
        }
        Service::Own(_) => return Ok((endpoint, path)),
        Service::Backend | Service::Ollama => {}
    }
    if !endpoint.is_known && settings.unknown_endpoints == UnknownEndpoints::Reject {
        return Err(Refusal::new(
            StatusCode::NOT_FOUND,
            "unknown_endpoint",
            format!(
                "{path} is not an endpoint that llmlb knows, and server.unknown_endpoints is \
                 `reject`."
            ),
        ));
    }
    if is_upgrade {
        endpoint = websocket::admit(&shared.pool.table(), endpoint, &path)?;
    }
    let has_keys = || {
        let table = shared.pool.table();
        table
            .backends
            .iter()
            .any(|one| one.settings.credential.is_some())
    };
    if endpoint::issues_credentials(&head.method, &path) && has_keys() {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "issues_credentials",
            format!(
                "{path} would issue a credential for this server's account at the backend. Connect \
                 to /v1/realtime of this server instead."
            ),
        ));
    }
    reject_loop(caller, head)?;
    Ok((endpoint, path))
}

/// Authenticates the client and stores its API key in the guard. Without a valid key only the pages
/// about the server itself are served, which have rules of their own.
fn authenticate(
    caller: &ConnectionContext,
    head: &Parts,
    endpoint: Endpoint,
    is_upgrade: bool,
    guard: &mut RequestGuard,
) -> Result<(), Refusal> {
    let keys = &caller.worker.shared.keys;
    match request::authenticate(keys, &caller.secret_memo, &head.headers, is_upgrade) {
        Ok(key) => guard.key = key,
        Err(_) if matches!(endpoint.service, Service::Own(Page::Admin(_))) => {}
        Err(rejected) => return Err(rejected.refusal()),
    }
    Ok(())
}

fn bad_path(head: &Parts, error: PathError) -> Refusal {
    match error {
        PathError::Misspelled(plain) => Refusal::new(
            StatusCode::BAD_REQUEST,
            "bad_path",
            format!("Some servers would read this path as {plain}; use that spelling."),
        ),
        PathError::Ambiguous => Refusal::new(
            StatusCode::BAD_REQUEST,
            "bad_path",
            "The path is ambiguous: it has `.` or `..` segments, control characters, or escapes of \
             characters that need none.",
        ),
        PathError::MethodNotAllowed(methods) => not_allowed(
            format!("{} accepts only {methods}.", head.uri.path()),
            methods,
        ),
    }
}

fn not_allowed(message: String, methods: &'static str) -> Refusal {
    let status = StatusCode::METHOD_NOT_ALLOWED;
    Refusal::new(status, "method_not_allowed", message).allow(methods)
}

/// Returns a page that llmlb itself serves, such as the list of models.
async fn own_page(
    caller: &ConnectionContext,
    head: &Parts,
    settings: &RequestSettings,
    (page, path): (Page, &str),
    body: Incoming,
    key: Option<&ApiKey>,
) -> Result<Response<Full<Bytes>>, Refusal> {
    let pool = &caller.worker.shared.pool;
    match page {
        Page::Admin(page) => admin::respond(caller, head, settings, (page, path), body, key).await,
        Page::Models => Ok(models::list(&pool.table(), key)),
        Page::Model => models::describe(pool, &endpoint::model_in(path), key),
        Page::OllamaTags => Ok(ollama::list(&pool.table(), key)),
    }
}

fn reject_loop(caller: &ConnectionContext, head: &Parts) -> Result<(), Refusal> {
    if caller.worker.forwarding.via.is_in(&head.headers) {
        return Err(Refusal::new(
            StatusCode::LOOP_DETECTED,
            "loop_detected",
            "This request has already passed through this server: a backend sends it back. Remove \
             this server's own address from the backends.",
        ));
    }
    Ok(())
}

/// True if a response that llmlb itself builds fits into the memory budget. The description of a
/// model may be long.
fn has_room_for(response: &Response<Full<Bytes>>, budget: &Budget) -> bool {
    if response.extensions().get::<SharedBody>().is_some() {
        return true;
    }
    let length = response.body().size_hint().lower();
    length <= backlog::FREE as u64 || usize::try_from(length).is_ok_and(|length| budget.has(length))
}

fn own_response(response: Response<Full<Bytes>>) -> ClientResponse {
    response.map(Either::Left)
}

/// Returns the error for a request that is rejected because it cannot be metered
/// (`usage.on_failure` is `refuse`).
fn unmetered(why: &str) -> Refusal {
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "metering_unavailable",
        format!("Usage cannot be recorded, and usage.on_failure is `refuse`: {why}"),
    )
    .retry_after(5)
}
