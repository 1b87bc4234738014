//! Parses the method and path of a request into an [`Endpoint`]. No other module compares paths, so
//! that routing, metering and limits agree on their meaning.
//!
//! Servers normalize paths differently: some decode `%2F`, some ignore case, `;parameters` or repeated
//! slashes. A path that some server could read as a known endpoint, but that is not spelled plainly, is
//! rejected. Otherwise a backend could serve requests that llmlb neither routes nor meters.

mod api;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use http::Method;

pub(crate) use api::Api;

/// Meaning of a request's method and path: its routing, its body, its metering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) service: Service,
    /// API whose format the usage reports have, and whose name the usage records have.
    pub(crate) api: Api,
    pub(crate) body: BodyFormat,
    pub(crate) issues: IssuedIds,
    pub(crate) dialect: Dialect,
    /// The request runs a model and changes nothing else, so it can be retried on another backend.
    /// False for audio and image endpoints.
    pub(crate) is_inference: bool,
    /// False for paths that llmlb forwards without knowing their meaning. Their POST requests may
    /// run a model.
    pub(crate) is_known: bool,
}

/// Server that responds to the requests of an endpoint: llmlb itself, a backend, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// llmlb itself.
    Own(Page),
    Backend,
    /// Backend of kind Ollama, because the path belongs to Ollama's native API.
    Ollama,
    /// No server: llmlb does not forward the request and responds 404.
    NotServed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Admin(AdminPage),
    Models,
    Model,
    OllamaTags,
}

/// Pages about the server itself, for monitoring and `llmlb status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminPage {
    Greeting,
    Health,
    Ready,
    Status,
    Metrics,
    /// The last failed requests, or what is known of the request whose id the path has.
    Explain,
    /// A snapshot of the server as JSON.
    Snapshot,
    /// Snapshots as an event stream.
    Events,
    Dashboard(DashboardPage),
}

/// Parts of the dashboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DashboardPage {
    /// A file of the page, one of [`DASHBOARD_FILES`]. It contains no data.
    File(&'static str),
    /// The operator's name and the token that actions need.
    Session,
    /// The list of API keys.
    Keys,
    Action(DashboardAction),
}

/// Actions of the dashboard, which only POST requests perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DashboardAction {
    Drain,
    Undrain,
    Resend,
    CreateKey,
    RevokeKey,
}

/// Files of the dashboard; the first one is the page `/dashboard` itself.
pub(crate) const DASHBOARD_FILES: [&str; 11] = [
    "index.html",
    "style.css",
    "actions.js",
    "api.js",
    "app.js",
    "backends.js",
    "charts.js",
    "dom.js",
    "keys.js",
    "panels.js",
    "playground.js",
];

/// Format in which the body of a request is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    /// JSON object, whatever the Content-Type: clients such as `curl -d` send a wrong one.
    Json,
    /// Multipart form if the Content-Type is multipart, else a JSON object, as audio and image
    /// endpoints accept.
    MultipartOrJson,
    /// Empty body, or a JSON object without a prompt, whatever the Content-Type. With a prompt, a
    /// server that matches prefixes of paths could run inference that is not metered.
    JsonWithoutPrompt,
    /// JSON if the Content-Type is JSON. Bodies of other types, such as uploads, are streamed
    /// without parsing.
    JsonIfLabelled,
    /// Streamed without parsing.
    Unread,
}

/// Ids in a response that later requests may name. Such requests must go to the backend that issued
/// the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IssuedIds {
    None,
    IfStored,
    Own,
    /// The `id` of the response and that of its `file` object, which completed uploads have.
    OwnAndFile,
}

/// Vendor whose clients send the request and parse its errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

/// Treatment of WebSocket handshakes on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WebSocketUse {
    /// Handshakes are forwarded.
    Always,
    /// Handshakes are forwarded only if a backend is known to accept WebSockets on this path.
    /// Otherwise the client gets a 426 and uses HTTP.
    IfAccepted,
    /// Handshakes are rejected.
    Never,
}

/// Reason for which a request is rejected by its method or path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// Some servers would read the path as the known endpoint whose plain spelling this is, and
    /// serve it unmetered.
    Misspelled(String),
    /// The path has dot segments, control characters or needless escapes, which servers resolve
    /// differently.
    Ambiguous,
    MethodNotAllowed(&'static str),
}

/// Methods that llmlb serves. Requests with other methods are rejected.
pub(crate) const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Collections of stored objects, whose members have further path segments, such as
/// `/v1/files/file-1`. Reading or deleting a member is not metered: its usage was metered when the
/// member was created.
const FAMILIES: [&str; 14] = [
    "/v1/assistants",
    "/v1/batches",
    "/v1/chat/completions",
    "/v1/containers",
    "/v1/conversations",
    "/v1/evals",
    "/v1/files",
    "/v1/fine_tuning",
    "/v1/messages/batches",
    "/v1/models",
    "/v1/realtime",
    "/v1/responses",
    "/v1/uploads",
    "/v1/vector_stores",
];

/// Paths of POST requests that act on stored objects and run no model, such as the cancellation of
/// a batch. They are not metered. `*` matches one segment.
///
/// Any other POST below a collection may be inference in another spelling, because servers that
/// match prefixes run a model for `/v1/responses/x`. Those requests are metered by the usage in
/// their responses.
const MEMBER_ACTIONS: [&str; 33] = [
    "/v1/assistants/*",
    "/v1/batches/*/cancel",
    "/v1/containers/*/files",
    "/v1/conversations/*",
    "/v1/conversations/*/items",
    "/v1/evals/*",
    "/v1/evals/*/runs",
    "/v1/evals/*/runs/*",
    "/v1/fine_tuning/alpha/graders/run",
    "/v1/fine_tuning/alpha/graders/validate",
    "/v1/fine_tuning/checkpoints/*/permissions",
    "/v1/fine_tuning/jobs",
    "/v1/fine_tuning/jobs/*/cancel",
    "/v1/fine_tuning/jobs/*/pause",
    "/v1/fine_tuning/jobs/*/resume",
    "/v1/messages/batches/*/cancel",
    "/v1/realtime/calls",
    "/v1/realtime/calls/*/accept",
    "/v1/realtime/calls/*/hangup",
    "/v1/realtime/calls/*/refer",
    "/v1/realtime/calls/*/reject",
    "/v1/realtime/client_secrets",
    "/v1/realtime/sessions",
    "/v1/realtime/transcription_sessions",
    "/v1/uploads/*/cancel",
    "/v1/uploads/*/complete",
    "/v1/uploads/*/parts",
    "/v1/vector_stores/*",
    "/v1/vector_stores/*/files",
    "/v1/vector_stores/*/files/*",
    "/v1/vector_stores/*/file_batches",
    "/v1/vector_stores/*/file_batches/*/cancel",
    "/v1/vector_stores/*/search",
];

/// POST requests to stored results of inference. Their responses repeat usage that was metered when the
/// result was created, and must not be metered again.
const RESULT_ACTIONS: [&str; 2] = ["/v1/chat/completions/*", "/v1/responses/*/cancel"];

/// POST requests that issue a credential for the operator's account at the backend. With the credential a
/// client could send requests to the backend directly, without metering.
const CREDENTIAL_ISSUERS: [&str; 4] = [
    "/v1/chatkit/sessions",
    "/v1/realtime/client_secrets",
    "/v1/realtime/sessions",
    "/v1/realtime/transcription_sessions",
];

/// Collections whose member names may contain an encoded slash (`%2F`): models and files.
const WITH_SLASHES: [&str; 2] = ["/v1/models/", "/v1/files/"];

impl Endpoint {
    /// Endpoint of a request that llmlb does not serve. The other endpoints change some of its
    /// fields and keep the rest.
    pub(crate) const NOT_SERVED: Self = Self {
        service: Service::NotServed,
        api: Api::Other,
        body: BodyFormat::Unread,
        issues: IssuedIds::None,
        dialect: Dialect::OpenAi,
        is_inference: false,
        is_known: false,
    };

    const fn own(page: Page) -> Self {
        Self {
            service: Service::Own(page),
            is_known: true,
            ..Self::NOT_SERVED
        }
    }

    const fn inference(api: Api) -> Self {
        Self {
            service: Service::Backend,
            api,
            body: BodyFormat::Json,
            is_inference: true,
            is_known: true,
            ..Self::NOT_SERVED
        }
    }

    const fn ollama(api: Api) -> Self {
        Self {
            service: Service::Ollama,
            dialect: Dialect::Ollama,
            ..Self::inference(api)
        }
    }

    /// Returns an audio or image endpoint. It does not count as inference, so its POST requests are
    /// not retried once a backend has received them.
    const fn media(api: Api) -> Self {
        Self {
            body: BodyFormat::MultipartOrJson,
            issues: IssuedIds::Own,
            is_inference: false,
            ..Self::inference(api)
        }
    }

    /// Returns the endpoint of stored objects such as files, batches and conversations. It is not
    /// metered, and llmlb remembers the ids in its responses: only the backend that issued an id
    /// can serve later requests for the object.
    const fn stored() -> Self {
        Self {
            service: Service::Backend,
            body: BodyFormat::JsonIfLabelled,
            issues: IssuedIds::Own,
            is_known: true,
            ..Self::NOT_SERVED
        }
    }

    const fn anthropic(self) -> Self {
        Self {
            dialect: Dialect::Anthropic,
            ..self
        }
    }

    const fn reading(self, body: BodyFormat) -> Self {
        Self { body, ..self }
    }

    const fn issuing(self, issues: IssuedIds) -> Self {
        Self { issues, ..self }
    }

    /// True if the request can be sent again to another backend, because a second execution changes
    /// nothing.
    pub(crate) fn is_repeatable(self, method: &Method) -> bool {
        method.is_safe() || self.is_inference
    }

    /// True if successful requests are written to the access log. Requests to admin pages, such as
    /// health checks, are too many.
    pub(crate) fn is_logged(self) -> bool {
        !matches!(self.service, Service::Own(Page::Admin(_)))
    }
}

/// Returns the treatment of WebSocket handshakes on the path. They are rejected on endpoints that are metered
/// by request and response bodies, because the messages of a WebSocket would be neither routed nor metered.
pub(crate) fn websocket_use(endpoint: Endpoint, path: &str) -> WebSocketUse {
    match path {
        "/v1/realtime" => WebSocketUse::Always,
        // Clients such as Codex try a WebSocket on this path first, and use HTTP if it is rejected.
        "/v1/responses" => WebSocketUse::IfAccepted,
        _ if endpoint.is_known => WebSocketUse::Never,
        _ => WebSocketUse::Always,
    }
}

/// True if the path is that of a realtime session, whose model is named when it is opened.
pub(crate) fn is_realtime(path: &str) -> bool {
    path == "/v1/realtime"
}

/// True if a request may run a model, possibly one that its body names in a way that llmlb does not
/// read. A key for some models must then name one. False for reading and deleting stored objects,
/// for uploads of files, and for cancellations.
pub(crate) fn may_run_model(method: &Method, endpoint: Endpoint, path: &str) -> bool {
    let is_upload = path == "/v1/files" || is_below("/v1/uploads", path);
    match *method {
        // A backend that matches prefixes of paths could read an unknown path as an endpoint that
        // runs a model.
        _ if !endpoint.is_known => true,
        Method::POST | Method::PUT | Method::PATCH => !is_upload && !path.ends_with("/cancel"),
        _ => false,
    }
}

/// True if a request to create this object may run models that are not named by its field `model`: in a file, in
/// the requests of a batch, or in the settings of a run or a session.
pub(crate) fn may_run_several_models(path: &str) -> bool {
    const COLLECTIONS: [&str; 5] = [
        "/v1/batches",
        "/v1/evals",
        "/v1/fine_tuning/alpha",
        "/v1/messages/batches",
        "/v1/realtime",
    ];
    COLLECTIONS.iter().any(|one| is_below(one, path))
}

/// Returns the model that a request to this path changes or deletes, if the path names one.
pub(crate) fn model_changed_by(path: &str) -> Option<String> {
    path.starts_with("/v1/models/").then(|| model_in(path))
}

fn is_below(collection: &str, path: &str) -> bool {
    let rest = path.strip_prefix(collection);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// True if the response would contain a credential for the operator's account at the backend. Such
/// requests are rejected if a backend has a key: a client could use the credential without
/// metering.
pub(crate) fn issues_credentials(method: &Method, path: &str) -> bool {
    *method == Method::POST && CREDENTIAL_ISSUERS.contains(&path)
}

/// Parses a method and a path. Returns the endpoint and the path to forward, without repeated and trailing
/// slashes.
pub(crate) fn parse<'a>(
    method: &Method,
    path: &'a str,
) -> Result<(Endpoint, Cow<'a, str>), PathError> {
    // Fast path: nearly all paths equal a known path, so they need no check for other spellings.
    if let Some(endpoint) = literal(method, path) {
        return Ok((endpoint?, Cow::Borrowed(path)));
    }
    let path = without_extra_slashes(path);
    if is_ambiguous(&path) {
        return Err(PathError::Ambiguous);
    }
    if let Some(endpoint) = literal(method, &path) {
        return Ok((endpoint?, path));
    }
    if let Some(plain) = plain_spelling(&path) {
        return Err(PathError::Misspelled(plain));
    }
    Ok((other(method, &path), path))
}

/// Returns the endpoint of a path that equals a known path; `None` for all other paths.
fn literal(method: &Method, path: &str) -> Option<Result<Endpoint, PathError>> {
    let endpoint = if let Some(rest) = path.strip_prefix("/v1/") {
        under_v1(rest)?
    } else if let Some(rest) = path.strip_prefix("/api/") {
        under_api(rest)?
    } else {
        return match path {
            "/" => Some(admin(method, AdminPage::Greeting)),
            "/healthz" => Some(admin(method, AdminPage::Health)),
            "/readyz" => Some(admin(method, AdminPage::Ready)),
            "/status" => Some(admin(method, AdminPage::Status)),
            "/metrics" => Some(admin(method, AdminPage::Metrics)),
            EXPLAIN => Some(admin(method, AdminPage::Explain)),
            "/dashboard/snapshot" => Some(admin(method, AdminPage::Snapshot)),
            "/dashboard/events" => Some(admin(method, AdminPage::Events)),
            "/dashboard" => dashboard(method, "index.html"),
            _ => dashboard(method, path.strip_prefix("/dashboard/")?),
        };
    };
    Some(by_method(method, endpoint))
}

/// Returns the endpoint of a part of the dashboard.
fn dashboard(method: &Method, name: &str) -> Option<Result<Endpoint, PathError>> {
    let action = match name {
        "drain" => DashboardAction::Drain,
        "undrain" => DashboardAction::Undrain,
        "resend" => DashboardAction::Resend,
        "keys/create" => DashboardAction::CreateKey,
        "keys/revoke" => DashboardAction::RevokeKey,
        _ => {
            let page = match name {
                "session" => DashboardPage::Session,
                "keys" => DashboardPage::Keys,
                _ => DashboardPage::File(DASHBOARD_FILES.iter().find(|file| **file == name)?),
            };
            return Some(admin(method, AdminPage::Dashboard(page)));
        }
    };
    let page = AdminPage::Dashboard(DashboardPage::Action(action));
    Some(if *method == Method::POST {
        Ok(Endpoint::own(Page::Admin(page)))
    } else {
        Err(PathError::MethodNotAllowed("POST"))
    })
}

fn admin(method: &Method, page: AdminPage) -> Result<Endpoint, PathError> {
    if *method == Method::GET || *method == Method::HEAD {
        Ok(Endpoint::own(Page::Admin(page)))
    } else {
        Err(PathError::MethodNotAllowed("GET, HEAD"))
    }
}

fn under_v1(path: &str) -> Option<Endpoint> {
    use Endpoint as E;
    Some(match path {
        "chat/completions" => E::inference(Api::Chat).issuing(IssuedIds::IfStored),
        "completions" => E::inference(Api::Completions),
        "embeddings" => E::inference(Api::Embeddings),
        "responses" | "responses/compact" => E::inference(Api::Responses).issuing(IssuedIds::Own),
        "responses/input_tokens" => E::inference(Api::Other),
        "messages" => E::inference(Api::Messages).anthropic(),
        "messages/count_tokens" => E::inference(Api::Other).anthropic(),
        "rerank" | "reranking" => E::inference(Api::Rerank),
        "score" => E::inference(Api::Score),
        "moderations" => E::inference(Api::Moderations),
        "audio/speech" => E::media(Api::Audio).reading(BodyFormat::Json),
        "audio/transcriptions" | "audio/translations" => E::media(Api::Audio),
        "images/generations" => E::media(Api::Images).reading(BodyFormat::Json),
        "images/edits" | "images/variations" => E::media(Api::Images),
        "models" => E::own(Page::Models),
        "assistants" | "batches" | "containers" | "conversations" | "evals" | "files"
        | "uploads" | "vector_stores" => E::stored(),
        "realtime" => E {
            api: Api::Realtime,
            ..E::stored()
        },
        "messages/batches" => E::stored().anthropic(),
        _ => return None,
    })
}

/// Returns the known endpoint for a path after `/api/`, Ollama's native API. Paths that change a
/// backend (`pull`, `create`, `delete`) are not served, because clients must not do that.
fn under_api(path: &str) -> Option<Endpoint> {
    use Endpoint as E;
    Some(match path {
        "chat" => E::ollama(Api::OllamaChat),
        "generate" => E::ollama(Api::OllamaGenerate),
        "embed" | "embeddings" => E::ollama(Api::OllamaEmbed),
        "show" => E::ollama(Api::Other),
        "tags" => E {
            dialect: Dialect::Ollama,
            ..E::own(Page::OllamaTags)
        },
        "version" => E {
            service: Service::Ollama,
            dialect: Dialect::Ollama,
            is_known: true,
            ..E::NOT_SERVED
        },
        _ => return None,
    })
}

/// Returns the endpoint restricted to its methods. Reading a stored result is not metered: its
/// usage was metered when the result was created.
fn by_method(method: &Method, endpoint: Endpoint) -> Result<Endpoint, PathError> {
    let is_read = *method == Method::GET || *method == Method::HEAD;
    match endpoint.service {
        Service::Own(_) if is_read => Ok(endpoint),
        // Requests with another method than GET do not read the list of models, so they are
        // forwarded to a backend.
        Service::Own(Page::Models) => Ok(Endpoint::stored()),
        Service::Ollama if endpoint.is_inference && *method == Method::POST => Ok(endpoint),
        Service::Ollama if !endpoint.is_inference && is_read => Ok(endpoint),
        Service::Own(_) | Service::Ollama => Ok(Endpoint {
            dialect: endpoint.dialect,
            ..Endpoint::NOT_SERVED
        }),
        _ if *method == Method::POST || !takes_model(endpoint) => Ok(endpoint),
        _ if method.is_safe() => Ok(Endpoint {
            dialect: endpoint.dialect,
            issues: IssuedIds::None,
            ..Endpoint::stored()
        }),
        _ => Err(PathError::MethodNotAllowed("GET, HEAD, POST, OPTIONS")),
    }
}

fn takes_model(endpoint: Endpoint) -> bool {
    matches!(
        endpoint.body,
        BodyFormat::Json | BodyFormat::MultipartOrJson
    )
}

/// Returns the endpoint of a path that equals no known path: a stored object, or unknown.
fn other(method: &Method, path: &str) -> Endpoint {
    let is_read = *method == Method::GET || *method == Method::HEAD;
    let is_explain = |rest: &str| rest.starts_with('/');
    if is_read && path.strip_prefix(EXPLAIN).is_some_and(is_explain) {
        return Endpoint::own(Page::Admin(AdminPage::Explain));
    }
    if !path.starts_with("/v1/") {
        return Endpoint {
            dialect: dialect(path),
            ..Endpoint::NOT_SERVED
        };
    }
    let endpoint = Endpoint {
        dialect: dialect(path),
        ..Endpoint::stored()
    };
    let unknown = Endpoint {
        api: Api::Unknown,
        is_known: false,
        ..endpoint
    };
    let is_known = |actions: &[&str]| actions.iter().any(|shape| has_shape(path, shape));
    match family(path) {
        Some("/v1/models") if is_read => Endpoint::own(Page::Model),
        Some(_) if method.is_safe() || *method == Method::DELETE => endpoint,
        None if method.is_safe() => Endpoint {
            is_known: false,
            ..endpoint
        },
        Some(family) if *method == Method::POST && is_known(&MEMBER_ACTIONS) => match family {
            "/v1/uploads" => endpoint.issuing(IssuedIds::OwnAndFile),
            _ => endpoint,
        },
        Some(_) if *method == Method::POST && is_known(&RESULT_ACTIONS) => {
            endpoint.reading(BodyFormat::JsonWithoutPrompt)
        }
        _ => unknown,
    }
}

/// True if the segments of a path match the shape, in which `*` matches any one segment.
fn has_shape(path: &str, shape: &str) -> bool {
    let mut segments = path.split('/');
    let is_same = |part: &str| {
        segments
            .next()
            .is_some_and(|segment| part == "*" || part == segment)
    };
    shape.split('/').all(is_same) && segments.next().is_none()
}

fn dialect(path: &str) -> Dialect {
    if path.starts_with("/v1/messages") {
        Dialect::Anthropic
    } else if path.starts_with("/api/") {
        Dialect::Ollama
    } else {
        Dialect::OpenAi
    }
}

/// Returns the collection that contains the path, such as `/v1/files` for `/v1/files/file-1`.
/// `None` if the path is a collection itself, or in no known collection.
fn family(path: &str) -> Option<&'static str> {
    FAMILIES.into_iter().find(|family| {
        path.strip_prefix(family)
            .is_some_and(|rest| rest.starts_with('/'))
    })
}

/// Returns the path without repeated and trailing slashes, which many servers ignore.
fn without_extra_slashes(path: &str) -> Cow<'_, str> {
    if !path.contains("//") && (path.len() <= 1 || !path.ends_with('/')) {
        return Cow::Borrowed(path);
    }
    let mut plain = String::with_capacity(path.len());
    for segment in path.split('/').filter(|segment| !segment.is_empty()) {
        plain.push('/');
        plain.push_str(segment);
    }
    if plain.is_empty() {
        plain.push('/');
    }
    Cow::Owned(plain)
}

/// Path of [`AdminPage::Explain`], which a request id may follow.
const EXPLAIN: &str = "/explain";

/// Maximum number of times that a path is percent-decoded to find another meaning. A backend behind
/// a proxy may decode twice.
const DECODED: usize = 4;

/// True if a backend could resolve the path to another one: it has dot segments or control
/// characters, encoded or not, or escapes of characters that need none. Such a path is rejected.
fn is_ambiguous(path: &str) -> bool {
    let has_dots = |path: &str| {
        path.split(['/', '\\'])
            .map(|segment| segment.split(';').next().unwrap_or(segment).trim())
            .any(|segment| segment == "." || segment == "..")
    };
    let has_controls = |path: &str| path.chars().any(char::is_control);
    has_needless_escape(path)
        || decodings(path).any(|decoded| has_dots(&decoded) || has_controls(&decoded))
}

/// Iterates over the path as it is, decoded once, decoded twice and so on, until decoding changes
/// nothing.
fn decodings(path: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let mut next = Some(Cow::Borrowed(path));
    std::iter::from_fn(move || {
        let now = next.take()?;
        if now.contains('%') {
            let decoded = percent_decoded(&now);
            if decoded != *now {
                next = Some(Cow::Owned(decoded));
            }
        }
        Some(now)
    })
    .take(DECODED)
}

/// Returns the percent-decoded text. Malformed escapes stay unchanged, as lenient servers treat
/// them.
pub(crate) fn percent_decoded(text: &str) -> String {
    let decoded = percent_encoding::percent_decode_str(text);
    decoded.decode_utf8_lossy().into_owned()
}

pub(crate) fn decode_escape(text: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    match *text {
        [b'%', high, low, ..] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    }
}

/// True if the path escapes an unreserved character (RFC 3986, section 2.3) or a backslash. No
/// client needs such an escape, and servers treat it differently.
fn has_needless_escape(path: &str) -> bool {
    path.contains('%')
        && path.as_bytes().windows(3).any(|text| {
            decode_escape(text)
                .is_some_and(|byte| byte.is_ascii_alphanumeric() || b"-._~\\".contains(&byte))
        })
}

/// Returns the plain spelling of the known endpoint that some server would read this path as. `None` if the
/// path is no such endpoint, or is spelled plainly.
fn plain_spelling(path: &str) -> Option<String> {
    decodings(path).find_map(|decoded| {
        let reduced = reduced(&decoded);
        if literal(&Method::POST, &reduced).is_some() || literal(&Method::GET, &reduced).is_some() {
            return (reduced != path).then_some(reduced);
        }
        let family = family(&reduced)?;
        let member = path.strip_prefix(family).unwrap_or_default();
        let may_have_slashes = WITH_SLASHES.iter().any(|prefix| path.starts_with(prefix));
        let has_slashes = !may_have_slashes && {
            let member = member.to_ascii_lowercase();
            member.contains("%2f") || member.contains('\\')
        };
        (!member.starts_with('/') || has_slashes).then(|| format!("{family}/ID"))
    })
}

/// Returns the path as the most lenient server reads it: lower case, backslashes as slashes,
/// without `;parameters`, without blanks around segments, truncated at an encoded `?` or `#`.
fn reduced(path: &str) -> String {
    let path = path.split(['?', '#']).next().unwrap_or(path);
    let mut reduced = String::with_capacity(path.len());
    for segment in path.split(['/', '\\']) {
        let segment = segment.split(';').next().unwrap_or(segment).trim();
        if !segment.is_empty() {
            reduced.push('/');
            reduced.extend(segment.chars().flat_map(folded));
        }
    }
    if reduced.is_empty() {
        reduced.push('/');
    }
    reduced
}

/// Returns the text in lower case. Some letters beyond ASCII become ASCII letters, such as `ſ` and
/// `s`, as in lenient servers.
fn folded(letter: char) -> impl Iterator<Item = char> {
    letter.to_uppercase().flat_map(char::to_lowercase)
}

/// Returns the id of a stored object in a path: the first segment after the collection that
/// contains a digit, `-` or `_`. The request goes to the backend that issued the id.
pub(crate) fn id_in(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/")?
        .split('/')
        .skip(1)
        .find(|part| part.contains(['-', '_']) || part.bytes().any(|byte| byte.is_ascii_digit()))
        .filter(|_| literal(&Method::POST, path).is_none())
}

/// True if a path names a stored object, a member of a collection.
pub(crate) fn has_id(path: &str) -> bool {
    literal(&Method::POST, path).is_none() && (family(path).is_some() || id_in(path).is_some())
}

/// Returns the request id in the path of [`AdminPage::Explain`].
pub(crate) fn request_id_in(path: &str) -> Option<String> {
    let id = path.strip_prefix(EXPLAIN)?.strip_prefix('/')?;
    Some(percent_decoded(id))
}

/// Returns the model's name in the path of [`Page::Model`]. The name may contain slashes, encoded
/// or not.
pub(crate) fn model_in(path: &str) -> String {
    percent_decoded(path.strip_prefix("/v1/models/").unwrap_or_default())
}

/// Returns the path for records and metrics, without ids: `/v1/files` for `/v1/files/file-1`. Otherwise every
/// request would be a group of its own.
pub(crate) fn label(path: &str) -> Cow<'_, str> {
    let path = without_extra_slashes(path);
    if literal(&Method::POST, &path).is_some() {
        return path;
    }
    if let Some(family) = family(&path) {
        return Cow::Borrowed(family);
    }
    let is_plain = |part: &str| {
        let is_letter = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        (1..=32).contains(&part.len()) && part.bytes().all(is_letter)
    };
    let mut parts = path.split('/').skip(1);
    match (parts.next(), parts.next()) {
        (Some(root @ ("v1" | "api")), Some(kind)) if is_plain(kind) => {
            Cow::Owned(format!("/{root}/{kind}"))
        }
        _ => Cow::Borrowed("other"),
    }
}
