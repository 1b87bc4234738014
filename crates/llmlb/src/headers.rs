//! Rules for the header fields that pass between clients and backends, one table for each
//! direction.
//!
//! Request fields are forwarded by an allow list, because clients send credentials and proxy instructions
//! under ever new names. Response fields are removed by a deny list, because clients read fields that no
//! list could cover.

use std::fmt;

use http::{HeaderName, HeaderValue, Method};

/// Field with the id of a request, sent to the backend and returned to the client.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Header field with the code of an error in every error response that llmlb itself sends. It is
/// removed from responses of backends, so that clients can distinguish the two.
pub(crate) const ERROR_CODE: HeaderName = HeaderName::from_static("x-llmlb-error");

/// Field of a request that asks why its backend is selected, with the value `1`, and of the response with the
/// reason.
pub(crate) const WHY: HeaderName = HeaderName::from_static("x-llmlb-why");

/// True if this field asks why the request's backend is selected.
pub(crate) fn asks_why(name: &str, value: &HeaderValue) -> bool {
    name == "x-llmlb-why" && value == "1"
}

/// Returns the media type of a Content-Type, without its parameters.
pub(crate) fn media_type(content_type: &str) -> &str {
    let end = memchr::memchr(b';', content_type.as_bytes());
    content_type[..end.unwrap_or(content_type.len())].trim()
}

/// Treatment of a header field that a client sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderAction {
    Forward,
    /// The field is neither sent to the backend nor counted as dropped: it concerns only llmlb or
    /// the client's connection, or llmlb writes it itself.
    Consume,
    /// The field is not sent to the backend, because no rule forwards it. Its name is counted in
    /// the metrics.
    Drop,
}

/// Properties of a request that determine, besides a field's name, if the field is forwarded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestContext<'a> {
    pub(crate) method: &'a Method,
    /// True if the client requests a WebSocket, for which the `sec-websocket-*` fields are
    /// forwarded.
    pub(crate) is_upgrade: bool,
    /// True if llmlb streams the body to the backend without parsing it. Only then may the body be
    /// compressed, so only then is `Content-Encoding` forwarded.
    pub(crate) is_unread: bool,
    pub(crate) extra: &'a HeaderPatterns,
}

/// Set of header field names in lower case. A `*` at the end of a name matches any suffix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeaderPatterns(Vec<String>);

impl RequestContext<'_> {
    /// Returns the treatment of a client's header field with this name, which must be in lower
    /// case.
    pub(crate) fn action(&self, name: &str) -> HeaderAction {
        if is_consumed(name) {
            return HeaderAction::Consume;
        }
        let is_forwarded = is_forwarded(name)
            || (*self.method == Method::GET && is_conditional(name))
            || (self.is_upgrade && name.starts_with("sec-websocket-"))
            || (self.is_unread && name == "content-encoding")
            || self.extra.matches(name);
        if is_forwarded {
            HeaderAction::Forward
        } else if is_added_by_intermediaries(name) {
            HeaderAction::Consume
        } else {
            HeaderAction::Drop
        }
    }
}

/// True for header fields that the backend must not get: fields of one connection (RFC 9110,
/// section 7.6.1, and older ones), fields that frame the message, which llmlb frames again, and
/// fields with credentials for llmlb.
fn is_consumed(name: &str) -> bool {
    matches!(
        name,
        "accept-encoding"
            | "api-key"
            | "authorization"
            | "connection"
            | "content-length"
            | "cookie"
            | "expect"
            | "host"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            // Remove the extensions of a WebSocket, such as compression, so that the meter can read
            // its messages.
            | "sec-websocket-extensions"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
            | "via"
            | "x-api-key"
            | "x-goog-api-key"
            | "x-llmlb-why"
            | "x-request-id"
    )
}

/// True for header fields that are forwarded with every request.
fn is_forwarded(name: &str) -> bool {
    let is_listed = matches!(
        name,
        "accept"
            | "accept-language"
            | "baggage"
            | "content-type"
            | "http-referer"
            | "idempotency-key"
            | "traceparent"
            | "tracestate"
            | "user-agent"
            | "x-title"
            // Forward the session ids of Claude Code, Codex, OpenCode and Open WebUI, by which a
            // backend recognizes the requests of one session.
            | "conversation_id"
            | "session_id"
            | "thread-id"
            | "x-claude-code-agent-id"
            | "x-claude-code-session-id"
            | "x-opencode-session"
            | "x-openwebui-chat-id"
            | "x-session-affinity"
            | "x-session-id"
    );
    let has_sdk_prefix = || {
        ["openai-", "anthropic-", "x-stainless-"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    is_listed || (has_sdk_prefix() && !may_be_credential(name))
}

/// True for `Range` and the `If-` fields of conditional requests. They are forwarded with GET only,
/// where they select a part or a version of a stored object.
fn is_conditional(name: &str) -> bool {
    name == "range" || name.starts_with("if-")
}

/// True if a header field or a query parameter with this name, in lower case, may contain a secret
/// of the client. Such a field or parameter is not forwarded, so that backends do not learn the
/// secret.
pub(crate) fn may_be_credential(name: &str) -> bool {
    const WORDS: [&str; 15] = [
        "apikey",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "jwt",
        "key",
        "pass",
        "passwd",
        "password",
        "pwd",
        "secret",
        "sig",
        "signature",
        "token",
    ];
    // Strings that mark a secret anywhere in a header field's name, as in `x-myapikey`.
    const PARTS: [&str; 5] = ["apikey", "accesskey", "password", "secret", "signature"];
    let mut words = name.split(['-', '_', '.']);
    // The names `author` and `pagetoken` match the patterns of secrets but are none, so they are
    // exempt.
    let is_auth = |word: &str| word.contains("auth") && word != "author" && word != "authors";
    let is_secret = |word: &str| {
        WORDS.contains(&word)
            || is_auth(word)
            || PARTS.iter().any(|part| word.contains(part))
            || word.ends_with("token") && word != "pagetoken"
    };
    words.any(is_secret) && !name.ends_with("page_token") && !name.ends_with("page-token")
}

/// Returns the client's key in an entry of `Sec-WebSocket-Protocol`. Browsers cannot set other header
/// fields of a WebSocket request, so OpenAI's clients put the key there.
pub(crate) fn secret_of_protocol(protocol: &[u8]) -> Option<&[u8]> {
    const PREFIX: &[u8] = b"openai-insecure-api-key.";
    let (prefix, secret) = protocol.trim_ascii().split_at_checked(PREFIX.len())?;
    prefix.eq_ignore_ascii_case(PREFIX).then_some(secret)
}

/// True for fields that browsers and reverse proxies add to every request. They are not forwarded, and not
/// counted as dropped, because they would hide unexpected names.
fn is_added_by_intermediaries(name: &str) -> bool {
    matches!(name, "forwarded" | "origin" | "referer" | "x-real-ip")
        || ["x-forwarded-", "sec-fetch-", "sec-ch-"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
}

/// True for a backend's field that is not sent to clients: a field of the connection, a field about the
/// operator's account at the backend, a policy of the backend for browsers, or an extension of a WebSocket.
pub(crate) fn is_removed_from_responses(name: &str) -> bool {
    match name.as_bytes().first() {
        Some(b'a') => {
            const ACCOUNT: [&str; 4] = ["fast-", "organization-", "priority-", "workspace-"];
            let of_anthropic = name.strip_prefix("anthropic-");
            matches!(name, "alt-svc" | "api-key" | "authorization")
                || of_anthropic.is_some_and(|rest| {
                    is_rate_limit(rest) || ACCOUNT.iter().any(|word| rest.starts_with(word))
                })
        }
        Some(b'c') => name == "clear-site-data",
        Some(b'e') => name == "expect-ct",
        Some(b'k') => name == "keep-alive",
        Some(b'l') => name.starts_with("llm_provider-"),
        Some(b'n') => name == "nel",
        Some(b'o') => {
            matches!(name, "openai-organization" | "openai-project") || is_rate_limit(name)
        }
        Some(b'p') => matches!(
            name,
            "proxy-authenticate" | "proxy-authentication-info" | "proxy-connection"
        ),
        Some(b'r') => matches!(name, "report-to" | "reporting-endpoints") || is_rate_limit(name),
        Some(b's') => matches!(
            name,
            "sec-websocket-extensions" | "set-cookie" | "set-cookie2" | "strict-transport-security"
        ),
        Some(b't') => name == "te",
        Some(b'u') => name == "upgrade",
        Some(b'x') => {
            matches!(name, "x-api-key" | "x-llmlb-error" | "x-llmlb-why")
                || name.starts_with("x-litellm-")
                || is_rate_limit(name)
        }
        _ => false,
    }
}

/// True for names of response fields that report the rate limits of the operator's account at a
/// backend. They are not sent to clients, whose limits are others.
fn is_rate_limit(name: &str) -> bool {
    ["ratelimit", "rate-limit", "tokenlimit"]
        .iter()
        .any(|word| name.contains(word))
}

/// Returns a client's `Accept` value if it is well-formed, else `*/*`. A backend that rejects a
/// malformed value may leave the request body unread, and the next request on the connection would
/// be misread.
pub(crate) fn accept(value: &[u8]) -> &[u8] {
    let is_usual = matches!(value, b"*/*" | b"application/json" | b"text/event-stream");
    if is_usual || std::str::from_utf8(value).is_ok_and(is_accept) {
        value
    } else {
        b"*/*"
    }
}

fn is_accept(value: &str) -> bool {
    value.split(',').all(|range| {
        let mut parts = range.split(';').map(|part| part.trim_matches([' ', '\t']));
        let is_media_range = parts.next().is_some_and(|media| {
            media
                .split_once('/')
                .is_some_and(|(kind, subtype)| is_token(kind) && is_token(subtype))
        });
        is_media_range && parts.all(is_accept_parameter)
    })
}

fn is_accept_parameter(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else {
        return false;
    };
    match name {
        "q" | "Q" => is_weight(value),
        _ => is_token(name) && is_token(value),
    }
}

/// True for a valid weight in `Accept` (RFC 9110, section 12.4.2): 0 to 1 with at most three
/// decimals.
fn is_weight(value: &str) -> bool {
    let (whole, decimals) = value.split_once('.').unwrap_or((value, ""));
    let is_short = decimals.len() <= 3 && decimals.bytes().all(|byte| byte.is_ascii_digit());
    match whole {
        "0" => is_short,
        "1" => is_short && decimals.bytes().all(|byte| byte == b'0'),
        _ => false,
    }
}

/// True for a valid token, such as a header field's name (RFC 9110, section 5.6.2).
pub(crate) fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(is_allowed)
}

impl HeaderPatterns {
    /// Parses one name or pattern of `upstream.forward_headers`. The error is the reason for its
    /// rejection: the name is not valid, or the field must never be forwarded.
    pub(crate) fn parse_one(text: &str) -> Result<String, &'static str> {
        let name = text.to_ascii_lowercase();
        let bare = name.strip_suffix('*').unwrap_or(&name);
        if bare.contains('*') || !is_token(bare) {
            return Err("is not the name of a header field, with or without a * at its end");
        }
        if is_consumed(&name) || name.starts_with("sec-websocket-") {
            return Err("is never forwarded");
        }
        Ok(name)
    }

    pub(crate) fn new(patterns: Vec<String>) -> Self {
        Self(patterns)
    }

    fn matches(&self, name: &str) -> bool {
        self.0
            .iter()
            .any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => pattern == name,
            })
    }
}

impl fmt::Display for HeaderPatterns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [] => f.write_str("-"),
            patterns => f.write_str(&patterns.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action_on(method: &Method, name: &str, is_upgrade: bool) -> HeaderAction {
        let context = RequestContext {
            method,
            is_upgrade,
            is_unread: false,
            extra: &HeaderPatterns::new(vec!["x-team".to_owned(), "x-corp-*".to_owned()]),
        };
        context.action(name)
    }

    #[test]
    fn credentials_and_proxy_instructions_are_not_forwarded() {
        for name in [
            "authorization",
            "proxy-authorization",
            "cookie",
            "x-api-key",
            "api-key",
            "x-goog-api-key",
            "x-goog-iap-jwt-assertion",
            "x-amz-security-token",
            "x-amzn-oidc-data",
            "x-ms-token-aad-access-token",
            "x-ms-client-principal",
            "cf-access-jwt-assertion",
            "cf-access-client-secret",
            "ocp-apim-subscription-key",
            "x-auth-token",
            "x-auth-request-access-token",
            "x-forwarded-for",
            "x-forwarded-access-token",
            "x-forwarded-host",
            "forwarded",
            "x-real-ip",
            "x-http-method-override",
            "x-original-url",
            "x-rewrite-url",
            "openai-api-key",
            "openai-foo-key",
            "openai-apikey",
            "anthropic-auth-token",
            "sec-websocket-key",
            "range",
            "if-match",
            "te",
            "origin",
            "content-encoding",
            "x-anything-else",
        ] {
            assert_ne!(
                action_on(&Method::POST, name, false),
                HeaderAction::Forward,
                "{name}"
            );
        }
    }

    #[test]
    fn fields_that_backends_need_are_forwarded() {
        for name in [
            "accept",
            "accept-language",
            "content-type",
            "user-agent",
            "idempotency-key",
            "openai-organization",
            "openai-beta",
            "anthropic-version",
            "anthropic-beta",
            "x-stainless-lang",
            "traceparent",
            "tracestate",
            "baggage",
            "http-referer",
            "x-title",
            "x-claude-code-session-id",
            "session_id",
            "x-session-id",
            "x-openwebui-chat-id",
            "x-team",
            "x-corp-anything",
        ] {
            assert_eq!(
                action_on(&Method::POST, name, false),
                HeaderAction::Forward,
                "{name}"
            );
        }
        assert_eq!(
            action_on(&Method::GET, "range", false),
            HeaderAction::Forward
        );
        assert_eq!(
            action_on(&Method::GET, "if-none-match", false),
            HeaderAction::Forward
        );
        assert_eq!(
            action_on(&Method::GET, "sec-websocket-key", true),
            HeaderAction::Forward
        );
        assert_eq!(
            action_on(&Method::GET, "sec-websocket-extensions", true),
            HeaderAction::Consume
        );
    }

    #[test]
    fn account_and_browser_policies_of_a_backend_do_not_reach_clients() {
        for name in [
            "sec-websocket-extensions",
            "set-cookie",
            "x-llmlb-error",
            "x-ratelimit-remaining-tokens",
            "anthropic-ratelimit-requests-limit",
            "x-ratelimitbysize-limit",
            "x-rate-limit-remaining",
            "x-ms-ratelimit-remaining-tokens",
            "x-tokenlimit-remaining",
            "x-litellm-key-spend",
            "llm_provider-x-ratelimit-remaining-tokens",
            "anthropic-priority-input-tokens-limit",
            "ratelimit",
            "ratelimit-policy",
            "ratelimitbysize-limit",
            "openai-organization",
            "openai-project",
            "openai-ratelimit-reset",
            "anthropic-organization-id",
            "strict-transport-security",
            "alt-svc",
            "keep-alive",
            "upgrade",
            "te",
            "proxy-authenticate",
            "x-api-key",
            "authorization",
        ] {
            assert!(is_removed_from_responses(name), "{name}");
        }
        for name in [
            "content-type",
            "content-length",
            "retry-after",
            "retry-after-ms",
            "x-request-id",
            "request-id",
            "openai-processing-ms",
            "openai-version",
            "openai-model",
            "server",
            "date",
            "etag",
            "location",
            "access-control-allow-origin",
            "cache-control",
        ] {
            assert!(!is_removed_from_responses(name), "{name}");
        }
    }

    #[test]
    fn malformed_accept_is_replaced() {
        for value in [
            "*/*",
            "application/json",
            "text/event-stream, */*;q=0.1",
            "a/b;v=1;q=1.000",
            "application/json;charset=utf-8 , text/*; q=0",
        ] {
            assert_eq!(accept(value.as_bytes()), value.as_bytes(), "{value}");
        }
        for value in [
            "",
            ",",
            "a",
            "a/",
            "/b",
            "a/b/c",
            "a/b,",
            "a/b;",
            "a/b;q",
            "a/b;q=",
            "a/b;q=2",
            "a/b;q=1.001",
            "a/b;q=0.1234",
            "a/b;q=.5",
            "a/b;q=-1",
            "a b/c",
            "a/b;x=\"y\"",
        ] {
            assert_eq!(accept(value.as_bytes()), b"*/*", "{value}");
        }
        assert_eq!(accept(b"a/\xff"), b"*/*");
    }

    #[test]
    fn pattern_must_be_a_name_that_may_be_forwarded() {
        for (text, expected) in [
            ("X-Team", Ok("x-team")),
            ("x-corp-*", Ok("x-corp-*")),
            ("*", Err(())),
            ("x*y", Err(())),
            ("x y", Err(())),
            ("Authorization", Err(())),
            ("Content-Length", Err(())),
        ] {
            let parsed = HeaderPatterns::parse_one(text);
            assert_eq!(parsed.as_deref().map_err(|_| ()), expected, "{text}");
        }
    }
}
