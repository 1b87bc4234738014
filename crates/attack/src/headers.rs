//! Items 12, 14l and 14m of docs/attacks.md: header fields that must not be forwarded, in both
//! directions.

use testkit::{FakeLlm, Reply, Request, chat_completion};

use crate::{Attack, Outcome, Target, listed, verdict};

/// Request fields with credentials, which must not reach a backend: its operator could use them.
/// Each group of fields has a name and is one attack.
const CREDENTIALS: &[(&str, &[&str])] = &[
    (
        "authorization",
        &["authorization", "proxy-authorization", "cookie"],
    ),
    (
        "api-keys",
        &[
            "x-api-key",
            "api-key",
            "x-goog-api-key",
            "apikey",
            "x-functions-key",
            "ocp-apim-subscription-key",
            "x-access-token",
            "x-csrf-token",
            "x-gitlab-token",
            "x-vault-token",
            "private-token",
            "openai-foo-key",
        ],
    ),
    (
        "azure",
        &[
            "x-ms-token-aad-access-token",
            "x-ms-token-aad-id-token",
            "x-ms-client-principal",
            "x-ms-client-principal-id",
            "x-ms-authorization-auxiliary",
        ],
    ),
    (
        "aws",
        &[
            "x-amz-security-token",
            "x-amz-date",
            "x-amz-content-sha256",
            "x-amzn-oidc-data",
            "x-amzn-oidc-accesstoken",
            "x-amzn-oidc-identity",
        ],
    ),
    (
        "cloudflare",
        &[
            "cf-access-jwt-assertion",
            "cf-access-client-id",
            "cf-access-client-secret",
            "cf-access-token",
            "cf-connecting-ip",
        ],
    ),
    (
        "iap",
        &[
            "x-goog-iap-jwt-assertion",
            "x-goog-authenticated-user-email",
            "x-goog-authenticated-user-id",
            "x-serverless-authorization",
        ],
    ),
    (
        "auth-proxies",
        &[
            "x-auth-token",
            "x-auth-request-access-token",
            "x-auth-request-user",
            "x-auth-request-email",
            "x-auth-username",
            "remote-user",
            "x-remote-user",
            "x-remote-group",
            "x-webauth-user",
            "x-jwt-assertion",
            "tailscale-user-login",
        ],
    ),
];

/// Request fields by which a client claims another address, method or path. These fields must not
/// reach a backend. Each group of fields has a name and is one attack.
const FORGED: &[(&str, &[&str])] = &[
    (
        "forwarded",
        &[
            "forwarded",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-forwarded-port",
            "x-forwarded-prefix",
            "x-forwarded-server",
            "x-forwarded-user",
            "x-forwarded-email",
            "x-forwarded-access-token",
            "x-forwarded-client-cert",
            "x-real-ip",
            "x-client-ip",
            "x-cluster-client-ip",
            "true-client-ip",
            "x-original-forwarded-for",
            "x-envoy-external-address",
        ],
    ),
    (
        "method-override",
        &[
            "x-http-method-override",
            "x-http-method",
            "x-method-override",
        ],
    ),
    (
        "url-override",
        &[
            "x-original-url",
            "x-rewrite-url",
            "x-original-uri",
            "x-original-host",
            "x-host",
            "x-accel-redirect",
        ],
    ),
];

/// Request fields that must reach a backend. A server that drops all unknown fields would otherwise
/// pass the other attacks of this module.
const ALLOWED: &[(&str, &str)] = &[
    ("accept", "application/json"),
    ("accept-language", "de"),
    ("user-agent", "OpenAI/Python 3.49.0"),
    ("idempotency-key", "i-1"),
    ("openai-organization", "org-1"),
    ("openai-beta", "assistants=v2"),
    ("anthropic-version", "2023-06-01"),
    ("anthropic-beta", "b-1"),
    ("x-stainless-lang", "python"),
    (
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
    ("tracestate", "a=b"),
    ("baggage", "c=d"),
    ("http-referer", "https://app.example"),
    ("x-title", "App"),
];

/// Response fields of cloud backends that belong to the operator's account, such as rate limits and
/// cookies. They must not reach a client.
const ACCOUNT_FIELDS: &[&str] = &[
    "x-ratelimit-limit-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-requests-limit",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-priority-input-tokens-limit",
    "x-ratelimitbysize-remaining",
    "ratelimitbysize-remaining",
    "x-ms-ratelimit-remaining-tokens",
    "x-tokenlimit-remaining",
    "x-litellm-key-spend",
    "llm_provider-x-ratelimit-remaining-tokens",
    "openai-organization",
    "openai-project",
    "anthropic-organization-id",
    "set-cookie",
];

pub(crate) fn attacks() -> Vec<Attack> {
    let mut attacks = Vec::new();
    for (name, fields) in CREDENTIALS {
        attacks.push(Attack::fast(
            format!("12-credentials-{name}"),
            "credentials of clients reach backends",
            |target| reach_backend(target, fields),
        ));
    }
    for (name, fields) in FORGED {
        attacks.push(Attack::fast(
            format!("12-{name}"),
            "addresses, methods and paths that clients invent reach backends",
            |target| reach_backend(target, fields),
        ));
    }
    attacks.push(Attack::fast(
        "12-credentials-in-query",
        "credentials in a query reach backends",
        in_query,
    ));
    attacks.push(Attack::fast(
        "12-credentials-in-websocket-protocol",
        "a key among the protocols of a WebSocket reaches backends",
        in_websocket_protocol,
    ));
    attacks.push(Attack::fast(
        "12-range-on-get-only",
        "Range and If-* reach backends with a POST, or do not with a GET",
        range_on_get,
    ));
    attacks.push(Attack::fast(
        "12-allowed-fields-arrive",
        "fields that clients need do not reach backends",
        allowed,
    ));
    attacks.push(Attack::fast(
        "14l-account-headers",
        "rate limits and organisation of the operator's account reach clients",
        account_fields,
    ));
    attacks.push(Attack::fast(
        "14m-backend-address",
        "x-llmlb-backend shows host and port of a backend without a name",
        backend_address,
    ));
    attacks
}

/// Value of each forged field. The attack recognizes the field by it among those that reached the
/// backend.
const MARK: &str = "mark-of-the-client";

fn reach_backend(target: &Target, fields: &[&str]) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let mut reached = Vec::new();
    for field in fields {
        // One request per field, since some fields cause the request to be rejected.
        let request = Request::chat("m", "hello").field(field, MARK);
        server.send(&request)?;
    }
    let requests = llm.requests();
    let forwarded = requests.len();
    for request in requests {
        let marked = request.head.fields.clone().into_iter();
        let marked = marked.filter(|(_, value)| value.contains(MARK));
        reached.extend(marked.map(|(name, _)| name));
    }
    let evidence = if reached.is_empty() {
        let count = fields.len();
        format!("none of {count} fields reached the backend, {forwarded} requests did")
    } else {
        format!("reached the backend: {}", listed(&reached))
    };
    verdict(reached.is_empty() && forwarded > 0, evidence)
}

fn in_query(target: &Target) -> Outcome {
    let names = [
        "api_key",
        "api-key",
        "apikey",
        "key",
        "access_token",
        "token",
        "auth",
        "api_token",
        "x-goog-api-key",
        "openai_api_key",
        "accessToken",
        "subscription_key",
        "password",
        "secret",
        "sig",
        "bearer",
        "a=1;api_key",
    ];
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let mut reached = Vec::new();
    for name in names {
        let before = llm.requests().len();
        let path = format!("/v1/chat/completions?{name}={MARK}&keep=1");
        let body = r#"{"model":"m","messages":[]}"#;
        server.send(&Request::post(&path, body))?;
        let requests = llm.requests();
        let targets = requests[before..]
            .iter()
            .map(|one| one.head.target().to_owned());
        if targets.into_iter().any(|target| target.contains(MARK)) {
            reached.push(name);
        }
    }
    let evidence = if reached.is_empty() {
        "no credential reached the backend".to_owned()
    } else {
        format!("reached the backend: {}", listed(&reached))
    };
    verdict(reached.is_empty(), evidence)
}

/// Sends an API key as a WebSocket protocol, as browsers do, which cannot set header fields. llmlb
/// holds if the key does not reach the backend.
fn in_websocket_protocol(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let protocols = format!("realtime, openai-insecure-api-key.{MARK}");
    let upgrade = Request::get("/v1/realtime?model=m")
        .field("connection", "upgrade")
        .field("upgrade", "websocket")
        .field("sec-websocket-version", "13")
        .field("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
        .field("sec-websocket-protocol", protocols);
    let status = server.send(&upgrade)?.status();
    let Some(received) = llm.requests().pop() else {
        return verdict(false, format!("WebSocket rejected with {status}"));
    };
    let protocols = received.head.field("sec-websocket-protocol");
    let protocols = protocols.unwrap_or("nothing");
    let evidence = format!("backend got the protocols {protocols}");
    verdict(protocols == "realtime", evidence)
}

fn range_on_get(target: &Target) -> Outcome {
    let fields = ["range", "if-none-match", "if-modified-since", "if-range"];
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    for request in [
        Request::get("/v1/files/f/content"),
        Request::chat("m", "hi"),
    ] {
        let request = request
            .field("range", "bytes=0-9")
            .field("if-none-match", "\"x\"")
            .field("if-modified-since", "Wed, 21 Oct 2026 07:28:00 GMT")
            .field("if-range", "\"x\"");
        server.send(&request)?;
    }
    let arrived = |method: &str| {
        let requests = llm.requests();
        let found = requests.iter().find(|one| one.head.method() == method);
        let head = found.map(|one| one.head.clone()).unwrap_or_default();
        fields
            .iter()
            .filter(|name| head.field(name).is_some())
            .count()
    };
    let (on_get, on_post) = (arrived("GET"), arrived("POST"));
    let evidence = format!("{on_get} of 4 fields arrived with a GET, {on_post} with a POST");
    verdict(on_get == fields.len() && on_post == 0, evidence)
}

fn allowed(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let mut request = Request::chat("m", "hello");
    for (name, value) in ALLOWED {
        request = request.field(name, value);
    }
    let status = server.send(&request)?.status();
    let Some(received) = llm.requests().pop() else {
        return verdict(false, format!("rejected with {status}"));
    };
    let missing: Vec<_> = ALLOWED
        .iter()
        .filter(|(name, value)| received.head.field(name) != Some(value))
        .map(|(name, _)| *name)
        .collect();
    let evidence = if missing.is_empty() {
        format!("all {} fields arrived", ALLOWED.len())
    } else {
        format!("did not arrive: {}", listed(&missing))
    };
    verdict(missing.is_empty(), evidence)
}

fn account_fields(target: &Target) -> Outcome {
    let llm = FakeLlm::start("m", |_| {
        let fields: Vec<_> = ACCOUNT_FIELDS.iter().map(|name| (*name, MARK)).collect();
        Reply::response(200, &fields, chat_completion("ok", 100, 50))
    })?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let response = server.send(&Request::chat("m", "hello"))?;
    let fields = response.head.fields.iter();
    let reached: Vec<_> = fields
        .filter(|(_, value)| value.contains(MARK))
        .map(|(name, _)| name.as_str())
        .collect();
    let evidence = if reached.is_empty() {
        format!("none of {} fields reached the client", ACCOUNT_FIELDS.len())
    } else {
        format!("reached the client: {}", listed(&reached))
    };
    verdict(reached.is_empty() && response.status() == 200, evidence)
}

fn backend_address(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let response = server.send(&Request::chat("m", "hello"))?;
    let shown = response.head.field("x-llmlb-backend").unwrap_or("nothing");
    let port = llm.address.port().to_string();
    let is_hidden = !shown.contains(&port) && !shown.contains("127.0.0.1");
    verdict(is_hidden, format!("x-llmlb-backend: {shown}"))
}
