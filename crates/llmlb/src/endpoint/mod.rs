//! The meaning of a request's method and path, read once, here. No other module compares paths.
//!
//! Servers disagree about spellings: some decode `%2F`, some ignore case, `;parameters` or repeated
//! slashes. A spelling that one of them could take for a known endpoint, and that is not the plain
//! one, is rejected; otherwise a backend would serve what llmlb neither routes nor meters.

mod api;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use http::Method;

pub(crate) use api::Api;

/// What a method and a path ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) service: Service,
    /// How usage is reported, and the name in records.
    pub(crate) api: Api,
    /// How the request's body is read.
    pub(crate) body: BodyFormat,
    pub(crate) issues: IssuedIds,
    /// The form of errors.
    pub(crate) dialect: Dialect,
    /// A request to a model: sending it twice does no harm.
    pub(crate) is_inference: bool,
    /// llmlb knows what the endpoint does.
    pub(crate) is_known: bool,
}

/// Who answers a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// llmlb itself.
    Own(Page),
    /// A backend that serves the model.
    Backend,
    /// A backend that is Ollama: the path belongs to Ollama's own API.
    Ollama,
    /// Nobody: the path is not served.
    Nothing,
}

/// The pages that llmlb answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Page {
    Admin(AdminPage),
    /// The list of models, and the description of one.
    Models,
    Model,
    OllamaTags,
}

/// The pages about the server itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AdminPage {
    Greeting,
    Health,
    Ready,
    Status,
}

/// How the body of a request is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    /// A JSON object, whatever its Content-Type.
    Json,
    /// Multipart if its Content-Type is that, else a JSON object.
    MultipartOrJson,
    /// A JSON object without a prompt, whatever its Content-Type, or nothing. With a prompt, a server
    /// that matches prefixes of paths could take the request for inference.
    JsonWithoutPrompt,
    /// JSON if its Content-Type is that; anything else is streamed unread.
    JsonIfLabelled,
    /// Streamed unread.
    Unread,
}

/// The ids in a response that later requests may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IssuedIds {
    None,
    /// The response's own id, if the request asks for the response to be stored.
    IfStored,
    Own,
    /// Its own, and that of the `file` that an upload becomes.
    OwnAndFile,
}

/// Whose clients send the request, and must understand errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

/// Why a method and a path are rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PathError {
    /// Some servers would take the path for this endpoint, whose plain spelling it is not.
    Misspelled(String),
    /// The path has dot segments, control characters, or escapes of characters that need none.
    Ambiguous,
    /// The endpoint has other methods.
    MethodNotAllowed(&'static str),
}

/// The methods that are served at all.
pub(crate) const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// The collections whose members are addressed by further path segments. A member that is read or
/// deleted reports no usage that was not metered when it was created.
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

/// The POST requests to members that run no model; `*` stands for one segment. Any other POST may be
/// inference under another spelling: servers that match prefixes take `/v1/responses/x` for a request
/// to a model. Those are metered by the usage in their responses.
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

/// The same for results of inference, whose usage was metered when they were created and is repeated
/// in the responses.
const RESULT_ACTIONS: [&str; 2] = ["/v1/chat/completions/*", "/v1/responses/*/cancel"];

/// The POST requests by which a client gets a credential for the account at the backend: with it, it
/// could ask the backend directly and unmetered.
const CREDENTIAL_ISSUERS: [&str; 4] = [
    "/v1/chatkit/sessions",
    "/v1/realtime/client_secrets",
    "/v1/realtime/sessions",
    "/v1/realtime/transcription_sessions",
];

/// Families in whose last part an encoded slash is usual: names of models and of files.
const WITH_SLASHES: [&str; 2] = ["/v1/models/", "/v1/files/"];

impl Endpoint {
    /// A path that is not served.
    pub(crate) const NOTHING: Self = Self {
        service: Service::Nothing,
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
            ..Self::NOTHING
        }
    }

    const fn inference(api: Api) -> Self {
        Self {
            service: Service::Backend,
            api,
            body: BodyFormat::Json,
            is_inference: true,
            is_known: true,
            ..Self::NOTHING
        }
    }

    const fn ollama(api: Api) -> Self {
        Self {
            service: Service::Ollama,
            dialect: Dialect::Ollama,
            ..Self::inference(api)
        }
    }

    /// Multipart uploads to a model: not sent twice.
    const fn media(api: Api) -> Self {
        Self {
            body: BodyFormat::MultipartOrJson,
            issues: IssuedIds::Own,
            is_inference: false,
            ..Self::inference(api)
        }
    }

    /// Stored things: files, batches, conversations.
    const fn stored() -> Self {
        Self {
            service: Service::Backend,
            body: BodyFormat::JsonIfLabelled,
            issues: IssuedIds::Own,
            is_known: true,
            ..Self::NOTHING
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

    /// True if a backend may receive the same request twice.
    pub(crate) fn is_repeatable(self, method: &Method) -> bool {
        method.is_safe() || self.is_inference
    }

    /// True for requests that are logged when all is well: those that concern a model.
    pub(crate) fn is_logged(self) -> bool {
        !matches!(self.service, Service::Own(Page::Admin(_)))
    }
}

/// True if a WebSocket may be opened on the path. On an endpoint whose requests are metered by their
/// bodies, what a WebSocket carries would be neither routed nor metered.
pub(crate) fn may_be_websocket(endpoint: Endpoint, path: &str) -> bool {
    path == "/v1/realtime" || !endpoint.is_known
}

/// True if the response gives the client a credential of the backend's account.
pub(crate) fn issues_credentials(method: &Method, path: &str) -> bool {
    *method == Method::POST && CREDENTIAL_ISSUERS.contains(&path)
}

/// Reads a method and a path. Returns the endpoint, and the path as it is forwarded: without
/// repeated and trailing slashes.
pub(crate) fn parse<'a>(
    method: &Method,
    path: &'a str,
) -> Result<(Endpoint, Cow<'a, str>), PathError> {
    // Nearly all requests are spelled plainly.
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

/// The endpoint of exactly this path, if there is one.
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
            _ => None,
        };
    };
    Some(by_method(method, endpoint))
}

fn admin(method: &Method, page: AdminPage) -> Result<Endpoint, PathError> {
    if *method == Method::GET || *method == Method::HEAD {
        Ok(Endpoint::own(Page::Admin(page)))
    } else {
        Err(PathError::MethodNotAllowed("GET, HEAD"))
    }
}

/// What follows `/v1/`, spelled plainly.
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
        | "realtime" | "uploads" | "vector_stores" => E::stored(),
        "messages/batches" => E::stored().anthropic(),
        _ => return None,
    })
}

/// What follows `/api/`, spelled plainly: Ollama's own API as far as it is served. Requests that
/// change a backend (`pull`, `create`, `delete`) are not.
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
            ..E::NOTHING
        },
        _ => return None,
    })
}

/// A known endpoint under this method. What is fetched by its name or id was metered when it was
/// created.
fn by_method(method: &Method, endpoint: Endpoint) -> Result<Endpoint, PathError> {
    let is_read = *method == Method::GET || *method == Method::HEAD;
    match endpoint.service {
        Service::Own(_) if is_read => Ok(endpoint),
        // Backends may know more about models than a list.
        Service::Own(Page::Models) => Ok(Endpoint::stored()),
        Service::Ollama if endpoint.is_inference && *method == Method::POST => Ok(endpoint),
        Service::Ollama if !endpoint.is_inference && is_read => Ok(endpoint),
        Service::Own(_) | Service::Ollama => Ok(Endpoint {
            dialect: endpoint.dialect,
            ..Endpoint::NOTHING
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

/// The endpoint of a path that is none of the literal ones.
fn other(method: &Method, path: &str) -> Endpoint {
    if !path.starts_with("/v1/") {
        return Endpoint {
            dialect: dialect(path),
            ..Endpoint::NOTHING
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
    let is_read = *method == Method::GET || *method == Method::HEAD;
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

/// True if the segments of a path are those of the shape, in which `*` stands for any one.
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

/// The family of which this path names a member.
fn family(path: &str) -> Option<&'static str> {
    FAMILIES.into_iter().find(|family| {
        path.strip_prefix(family)
            .is_some_and(|rest| rest.starts_with('/'))
    })
}

/// The path without repeated and trailing slashes.
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

/// How often a path is decoded in search of another meaning: a backend behind a proxy decodes twice.
const DECODED: usize = 4;

/// True if the path could be resolved to another one: it has dot segments or control characters,
/// encoded or not, or escapes of characters that stand for themselves.
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

/// The path, decoded once, twice and so on, until that changes nothing.
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

/// The text without percent-encoding; what is not well encoded stays as it is.
pub(crate) fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let decoded = escape(rest);
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The byte that an escape at the beginning of the text stands for.
pub(crate) fn escape(text: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    match *text {
        [b'%', high, low, ..] => u8::try_from(digit(high)? * 16 + digit(low)?).ok(),
        _ => None,
    }
}

/// True if a character is escaped that stands for itself (RFC 3986, section 2.3), or a backslash.
fn has_needless_escape(path: &str) -> bool {
    path.contains('%')
        && path.as_bytes().windows(3).any(|text| {
            escape(text)
                .is_some_and(|byte| byte.is_ascii_alphanumeric() || b"-._~\\".contains(&byte))
        })
}

/// The plain spelling of the known endpoint that some server would take this path for. `None` if
/// there is none, or if the path is spelled plainly.
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

/// The path as the most lenient server reads it: lower case, without `;parameters`, with backslashes
/// as slashes, without blanks around segments and whatever follows an encoded `?` or `#`.
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

/// Letters beyond ASCII, such as `ſ`, may become one that is within.
fn folded(letter: char) -> impl Iterator<Item = char> {
    letter.to_uppercase().flat_map(char::to_lowercase)
}

/// The id that a path names: the first part that is no word, after what it is the id of.
pub(crate) fn id_in(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/")?
        .split('/')
        .skip(1)
        .find(|part| part.contains(['-', '_']) || part.bytes().any(|byte| byte.is_ascii_digit()))
        .filter(|_| literal(&Method::POST, path).is_none())
}

/// True if a path names a member of a collection, and not an endpoint alone.
pub(crate) fn has_id(path: &str) -> bool {
    literal(&Method::POST, path).is_none() && (family(path).is_some() || id_in(path).is_some())
}

/// The name of the model in the path of [`Page::Model`], which may contain slashes, encoded or not.
pub(crate) fn model_in(path: &str) -> String {
    percent_decoded(path.strip_prefix("/v1/models/").unwrap_or_default())
}

/// The path for records and reports: without what belongs to one request alone. `/v1/files/file-1`
/// is reported as `/v1/files`.
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
