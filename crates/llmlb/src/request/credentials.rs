//! Authentication of clients by their API keys, and checks of the models that a key may use.
//!
//! Clients send a key in the field of the API that they speak: OpenAI's and Ollama's clients in
//! `Authorization`, Anthropic's in `x-api-key`, Azure's in `api-key`. Browsers cannot set fields of a
//! WebSocket handshake, so OpenAI's clients put the key among its subprotocols.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, request};

use super::{ParsedRequest, Payload, Refusal, other_models};
use crate::endpoint::{self, Endpoint};
use crate::headers::secret_of_protocol;
use crate::keys::{ApiKey, KeyTable, RejectedSecret, SecretMemo};
use crate::text;

/// Maximum number of characters of a model's name in an error message. Clients can send names of
/// any length.
const MAX_MODEL: usize = 200;
/// Header fields whose whole value is a key, unlike `Authorization`, which names a scheme.
pub(super) static KEY_FIELDS: [HeaderName; 2] = [
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
];

/// Returns the API key with which the client authenticates; `None` if the server needs no keys.
///
/// Some clients send an account's token in one field and the key in another. So every field is
/// tried until one contains the secret of a valid key.
pub(crate) fn authenticate(
    table: &KeyTable,
    memo: &SecretMemo,
    headers: &HeaderMap,
    is_upgrade: bool,
) -> Result<Option<Arc<ApiKey>>, RejectedKey> {
    if !table.is_required() {
        return Ok(None);
    }
    let mut secrets = Secrets::default();
    secrets.read(headers, is_upgrade);
    if secrets.has_repeated {
        return Err(RejectedKey::Repeated);
    }
    let mut rejected = RejectedKey::Missing;
    for secret in secrets.found.iter().filter(|secret| !secret.is_empty()) {
        match (table.find(secret, memo), &rejected) {
            (Ok(key), _) => return Ok(Some(key)),
            (Err(RejectedSecret::Expired(key)), _) => rejected = RejectedKey::Expired(key),
            (Err(RejectedSecret::Unknown), RejectedKey::Missing) => rejected = RejectedKey::Unknown,
            (Err(RejectedSecret::Unknown), _) => {}
        }
    }
    Err(rejected)
}

#[derive(Clone, Debug)]
pub(crate) enum RejectedKey {
    Missing,
    Unknown,
    /// A header field with a secret occurs twice. Servers disagree about which one counts, so the
    /// request is rejected.
    Repeated,
    Expired(Arc<ApiKey>),
}

impl RejectedKey {
    pub(crate) fn refusal(&self) -> Refusal {
        let (code, message) = match self {
            Self::Missing => (
                "invalid_api_key",
                "This server needs an API key: send it as `Authorization: Bearer KEY`, or in \
                 `x-api-key`."
                    .to_owned(),
            ),
            Self::Unknown => (
                "invalid_api_key",
                "The API key is not valid: it is misspelt, or it was revoked.".to_owned(),
            ),
            Self::Repeated => (
                "invalid_api_key",
                "The request has two API keys in fields of the same name; send one.".to_owned(),
            ),
            Self::Expired(key) => (
                "expired_api_key",
                format!("The API key `{}` has expired.", key.name),
            ),
        };
        let refusal = Refusal::new(StatusCode::UNAUTHORIZED, code, message);
        refusal.unrecorded().asking_for_key()
    }
}

/// Secrets that a request contains, each of which may be the client's API key.
#[derive(Default)]
struct Secrets<'a> {
    /// One for each field that can have a secret; empty if the request has none there.
    found: [&'a [u8]; 4],
    has_repeated: bool,
}

impl<'a> Secrets<'a> {
    fn read(&mut self, headers: &'a HeaderMap, is_upgrade: bool) {
        if let Some(value) = self.only(headers, &header::AUTHORIZATION) {
            // Ignore other schemes, such as `Basic`: such a credential is for a proxy in front of
            // this server.
            self.found[0] = bearer(value.as_bytes()).unwrap_or_default();
        }
        for (at, name) in (1..).zip(&KEY_FIELDS) {
            if let Some(value) = self.only(headers, name) {
                self.found[at] = value.as_bytes().trim_ascii();
            }
        }
        if is_upgrade {
            let mut protocols = headers
                .get_all(header::SEC_WEBSOCKET_PROTOCOL)
                .iter()
                .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
                .filter_map(secret_of_protocol);
            self.found[3] = protocols.next().unwrap_or_default();
            self.has_repeated |= protocols.next().is_some();
        }
    }

    fn only(&mut self, headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
        let mut values = headers.get_all(name).iter();
        let value = values.next();
        self.has_repeated |= values.next().is_some();
        value
    }
}

/// Returns the token of a header value `Bearer TOKEN`. The scheme is not case-sensitive.
fn bearer(value: &[u8]) -> Option<&[u8]> {
    const SCHEME: &[u8] = b"bearer";
    let (scheme, token) = value.trim_ascii().split_at_checked(SCHEME.len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(SCHEME) && token.starts_with(b" ");
    is_bearer.then(|| token.trim_ascii())
}

/// Rejects a request that could run a model which the client's key may not use.
///
/// A key that is limited to some models must name one of them in every request that may run a
/// model. A body that llmlb does not read could name another model, and a backend could run its
/// default model for a request without a name.
pub(crate) fn check_model(
    key: Option<&ApiKey>,
    head: &request::Parts,
    endpoint: Endpoint,
    path: &str,
    parsed: &ParsedRequest,
    is_upgrade: bool,
) -> Result<(), Refusal> {
    let Some((key, models)) = key.and_then(|key| Some((key, key.models()?))) else {
        return Ok(());
    };
    let may_run = endpoint::may_run_model(&head.method, endpoint, path);
    let is_unread = matches!(parsed.payload, Payload::Passing(Some(_)));
    let why = match &parsed.model {
        Some(model) if !key.allows(model) => {
            format!(
                "may not use the model `{}`",
                text::shortened(model, MAX_MODEL)
            )
        }
        _ if is_upgrade && !endpoint::is_realtime(path) => {
            "may not open this WebSocket, whose messages could name other models".to_owned()
        }
        _ if may_run && is_unread => {
            "may not send this request, whose body could name another model".to_owned()
        }
        _ if may_run && endpoint::may_run_several_models(path) => {
            "may not send this request, which could run several models".to_owned()
        }
        None if may_run || is_upgrade => {
            "may be used only in requests that name their model".to_owned()
        }
        _ => match other_model(key, head, path, parsed) {
            Some(model) => {
                let model = text::shortened(&model, MAX_MODEL).into_owned();
                format!("may not use the model `{model}`")
            }
            None => return Ok(()),
        },
    };
    let message = format!(
        "The API key `{}` {why}. Allowed: {}.",
        key.name,
        models.join(", ")
    );
    let refusal = Refusal::new(StatusCode::FORBIDDEN, "model_not_allowed", message);
    Err(refusal.param("model").unrecorded())
}

/// Returns a model that the key may not use and that the request names outside of its field
/// `model`: in the path, or in another field of its body, such as a fallback.
fn other_model(
    key: &ApiKey,
    head: &request::Parts,
    path: &str,
    parsed: &ParsedRequest,
) -> Option<String> {
    if !head.method.is_safe()
        && let Some(model) = endpoint::model_changed_by(path)
        && !key.allows(&model)
    {
        return Some(model);
    }
    match &parsed.payload {
        Payload::Read(body) => other_models::find_refused(body, |name| key.allows(name)),
        Payload::Passing(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, Method, Request};

    use super::*;
    use crate::config::{ConfiguredKey, ConfiguredSecret, KeyRights, Secret};
    use crate::keys::test_key;

    const GOOD: &str = "sk-0123456789abcdef";

    fn table() -> KeyTable {
        let key = |name: &str, secret: &str, expires: Option<&str>| ConfiguredKey {
            rights: KeyRights {
                expires: expires.map(|time| time.parse().unwrap()),
                ..KeyRights::unlimited(name)
            },
            secret: ConfiguredSecret::Text(Secret::new(secret.to_owned())),
        };
        let keys = vec![
            key("alice", GOOD, None),
            key("old", "sk-expired-expired", Some("2020-01-01T00:00:00Z")),
        ];
        KeyTable::new(keys, None).unwrap()
    }

    fn found(fields: &[(&str, &[u8])], is_upgrade: bool) -> String {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        match authenticate(&table(), &SecretMemo::default(), &headers, is_upgrade) {
            Ok(key) => key.map_or_else(|| "none".to_owned(), |key| key.name.to_string()),
            Err(RejectedKey::Missing) => "missing".to_owned(),
            Err(RejectedKey::Unknown) => "unknown".to_owned(),
            Err(RejectedKey::Repeated) => "repeated".to_owned(),
            Err(RejectedKey::Expired(key)) => format!("{} expired", key.name),
        }
    }

    #[test]
    fn key_is_found_in_the_fields_of_all_apis() {
        let good = GOOD.as_bytes();
        let bearer = |text: &str| [text.as_bytes(), good].concat();
        for scheme in ["Bearer ", "bearer ", "BEARER   "] {
            assert_eq!(found(&[("authorization", &bearer(scheme))], false), "alice");
        }
        for name in ["x-api-key", "api-key"] {
            assert_eq!(found(&[(name, good)], false), "alice", "{name}");
        }
        let protocols = format!("realtime, openai-insecure-api-key.{GOOD}, x");
        let protocols = [("sec-websocket-protocol", protocols.as_bytes())];
        assert_eq!(found(&protocols, true), "alice");
        assert_eq!(found(&protocols, false), "missing", "no handshake");
    }

    #[test]
    fn wrong_missing_and_repeated_secrets_are_rejected() {
        let good = GOOD.as_bytes();
        let bearer = [b"Bearer ", good].concat();
        let long = [b"Bearer ".as_slice(), &vec![b'x'; 100_000]].concat();
        assert_eq!(found(&[], false), "missing");
        assert_eq!(found(&[("authorization", b"Basic YTpi")], false), "missing");
        assert_eq!(found(&[("authorization", good)], false), "missing");
        assert_eq!(found(&[("authorization", b"Bearer")], false), "missing");
        assert_eq!(found(&[("authorization", b"Bearer ")], false), "missing");
        assert_eq!(found(&[("x-api-key", b"")], false), "missing");
        assert_eq!(
            found(&[("authorization", b"Bearer \xff")], false),
            "unknown"
        );
        assert_eq!(found(&[("authorization", &long)], false), "unknown");
        let expired = b"sk-expired-expired";
        assert_eq!(found(&[("api-key", expired)], false), "old expired");
        let twice: [(&str, &[u8]); 2] = [("authorization", &bearer), ("authorization", &bearer)];
        assert_eq!(found(&twice, false), "repeated");
        assert_eq!(
            found(&[("x-api-key", good), ("x-api-key", b"b")], false),
            "repeated"
        );
    }

    /// Claude Code sends the token of a subscription in one field and the key of a gateway in
    /// another. The token must not hide the key.
    #[test]
    fn foreign_credential_in_another_field_does_not_hide_the_key() {
        let good = GOOD.as_bytes();
        for other in [&b"Bearer sk-ant-oat01-foreign"[..], b"Basic YTpi"] {
            let fields = [("authorization", other), ("x-api-key", good)];
            assert_eq!(found(&fields, false), "alice");
        }
        let fields: [(&str, &[u8]); 2] = [("x-api-key", b"sk-expired-expired"), ("api-key", good)];
        assert_eq!(found(&fields, false), "alice");
    }

    #[test]
    fn server_without_keys_reads_no_credentials() {
        let table = KeyTable::new(Vec::new(), None).unwrap();
        let key = authenticate(&table, &SecretMemo::default(), &HeaderMap::new(), false).unwrap();
        assert!(key.is_none());
    }

    fn refused(method: &Method, path: &str, model: Option<&str>, is_upgrade: bool) -> String {
        let (endpoint, path) = endpoint::parse(method, path).unwrap();
        let (head, ()) = Request::builder()
            .method(method)
            .body(())
            .unwrap()
            .into_parts();
        let key = test_key("alice", Some(&["fast", "llama*"]));
        let parsed = ParsedRequest::with_model(model);
        let checked = check_model(Some(&key), &head, endpoint, &path, &parsed, is_upgrade);
        checked.map_or_else(|refusal| refusal.message, |()| String::new())
    }

    #[test]
    fn key_for_some_models_must_name_one_of_them_where_a_model_may_run() {
        const CHAT: &str = "/v1/chat/completions";
        let post = |path: &str, model| refused(&Method::POST, path, model, false);
        for model in ["fast", "llama3:8b", "llama"] {
            assert_eq!(post(CHAT, Some(model)), "", "{model}");
        }
        let why = "The API key `alice` may not use the model `gpt`. Allowed: fast, llama*.";
        assert_eq!(post(CHAT, Some("gpt")), why);
        for (path, model) in [
            (CHAT, Some("FAST")),
            (CHAT, None),
            ("/api/chat", None),
            ("/v1/batches", None),
            ("/v1/files", Some("gpt")),
            ("/v1/responses/x", None),
            ("/infill", None),
        ] {
            assert_ne!(post(path, model), "", "{path}");
        }
        let get = |path: &str| refused(&Method::GET, path, None, false);
        assert_ne!(get("/unknown"), "");
        for path in ["/v1/files", "/v1/responses/resp_1", "/v1/batches/b"] {
            assert_eq!(get(path), "", "{path}");
        }
        for path in ["/v1/files", "/v1/responses/resp_1/cancel", "/v1/uploads"] {
            assert_eq!(post(path, None), "", "{path}");
        }
        let open = |path: &str, model| refused(&Method::GET, path, model, true);
        assert_eq!(open("/v1/realtime", Some("fast")), "");
        assert_ne!(open("/v1/realtime", Some("gpt")), "");
        assert_ne!(open("/v1/realtime", None), "");
        assert_ne!(open("/v1/stream", Some("fast")), "");
    }

    /// The allowed model in the field `model` must not hide the other models that this request
    /// runs.
    #[test]
    fn request_that_could_run_several_models_needs_a_key_for_all() {
        let post = |path: &str| refused(&Method::POST, path, Some("fast"), false);
        for path in [
            "/v1/batches",
            "/v1/messages/batches",
            "/v1/evals",
            "/v1/evals/eval_1/runs",
            "/v1/fine_tuning/alpha/graders/run",
            "/v1/realtime/calls",
            "/v1/realtime/sessions",
        ] {
            assert_ne!(post(path), "", "{path}");
        }
        for path in ["/v1/batches/b/cancel", "/v1/assistants", "/v1/embeddings"] {
            assert_eq!(post(path), "", "{path}");
        }
    }

    /// A server that matches prefixes of paths reads these paths as `/v1/responses` or `/v1/files`,
    /// so they may run a model.
    #[test]
    fn unknown_path_with_the_end_of_a_known_one_may_run_a_model() {
        let post = |path: &str| refused(&Method::POST, path, None, false);
        for path in ["/v1/responses/cancel", "/v1/x/cancel", "/v1/uploads/u/run"] {
            assert_ne!(post(path), "", "{path}");
        }
    }

    #[test]
    fn model_in_the_path_must_be_allowed() {
        let delete = |path: &str| refused(&Method::DELETE, path, None, false);
        assert_eq!(delete("/v1/models/fast"), "");
        assert_ne!(delete("/v1/models/gpt"), "");
        assert_ne!(delete("/v1/models/fast%2F..x"), "");
        assert_eq!(delete("/v1/files/file-1"), "");
    }

    #[test]
    fn further_models_in_a_body_must_be_allowed() {
        let why = |body: &str| {
            let key = test_key("alice", Some(&["fast", "llama*"]));
            let (endpoint, path) = endpoint::parse(&Method::POST, "/v1/chat/completions").unwrap();
            let (head, ()) = Request::post("/").body(()).unwrap().into_parts();
            let mut parsed = ParsedRequest::with_model(Some("fast"));
            parsed.payload = Payload::Read(body.to_owned().into());
            let checked = check_model(Some(&key), &head, endpoint, &path, &parsed, false);
            checked.map_or_else(|refusal| refusal.message, |()| String::new())
        };
        for body in [
            r#"{"model":"fast","models":["gpt"]}"#,
            r#"{"model":"fast","models":["llama","gpt"]}"#,
            r#"{"model":"fast","Models":["gpt"]}"#,
            r#"{"model":"fast","model\u0073":["gpt"]}"#,
            r#"{"model":"fast","models":[{"id":"gpt"}]}"#,
            r#"{"model":"fast","fallbacks":["gpt"]}"#,
            r#"{"model":"fast","fallbacks":[{"model":"gpt"}]}"#,
            r#"{"model":"fast","draft_model":"gpt"}"#,
            r#"{"model":"fast","tools":[{"type":"image_generation","model":"gpt"}]}"#,
            r#"{"model":"fast","tools":[ {"type":"x"} , {"MODEL":"gpt"}]}"#,
            r#"{"model":"fast","tools":[{"model":["gpt"]}]}"#,
            r#"{"model":"fast","tools":{"model":"gpt"}}"#,
        ] {
            assert_ne!(why(body), "", "{body}");
        }
        for body in [
            "",
            r#"{"model":"fast","models":null}"#,
            r#"{"model":"fast","models":["llama3","fast"],"fallbacks":[]}"#,
            r#"{"model":"fast","tools":[{"type":"image_generation","model":"llama3"}]}"#,
            r#"{"model":"fast","tools":[{"function":{"parameters":{"model":"gpt"}}}]}"#,
            r#"{"model":"fast","messages":[{"models":["gpt"],"tools":[{"model":"gpt"}]}]}"#,
            r#"{"model":"fast","tools":[]}"#,
        ] {
            assert_eq!(why(body), "", "{body}");
        }
    }

    #[test]
    fn key_for_all_models_needs_no_model() {
        let (endpoint, path) = endpoint::parse(&Method::POST, "/infill").unwrap();
        let (head, ()) = Request::post("/infill").body(()).unwrap().into_parts();
        let parsed = ParsedRequest::with_model(None);
        let key = test_key("alice", None);
        for key in [None, Some(&*key)] {
            check_model(key, &head, endpoint, &path, &parsed, true).unwrap();
        }
    }
}
