//! Table of all settings: names, defaults, allowed values and documentation. A test compares it with
//! `docs/configuration.md`.

use std::num::NonZero;
use std::thread;

/// Definition of one setting.
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "read only by the test that compares docs/configuration.md"
    )
)]
pub(crate) struct Setting {
    /// Section and key in the file.
    pub(crate) name: &'static str,
    pub(crate) variable: Option<&'static str>,
    pub(crate) flag: Option<Flag>,
    pub(super) default: DefaultValue,
    /// Description of the allowed values, for messages and the documentation.
    pub(super) allowed: &'static str,
    pub(super) about: &'static str,
}

#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "read only by the test that compares docs/configuration.md"
    )
)]
pub(crate) struct Flag {
    pub(crate) long: &'static str,
    pub(crate) short: Option<&'static str>,
}

/// Default value of a setting.
#[cfg_attr(
    not(test),
    expect(
        dead_code,
        reason = "read only by the test that compares docs/configuration.md"
    )
)]
pub(super) enum DefaultValue {
    /// Text that is parsed like any other value, so that the documented default is the effective one.
    Value(&'static str),
    /// Description, and the function that determines the value at the start.
    Computed(&'static str, fn() -> String),
    /// No value: the text describes what happens while the setting is not set.
    Words(&'static str),
}

pub(super) const CONFIG: &str = "LLMLB_CONFIG";
pub(super) const BACKENDS: &str = "LLMLB_BACKENDS";
pub(super) const LOCK_DIR: &str = "LLMLB_LOCK_DIR";
pub(super) const DATA_DIR: &str = "LLMLB_DATA_DIR";
pub(super) const URL_VARIABLE: &str = "LLMLB_USAGE_URL";
pub(super) const TOKEN_VARIABLE: &str = "LLMLB_USAGE_TOKEN";

pub(super) const CONFIG_FLAG: &str = "--config";
pub(super) const BACKEND_FLAG: &str = "--backend";

pub(super) const MOST_WORKERS: usize = 1024;
pub(super) const MOST_BACKENDS: usize = 65_535;
pub(super) const MOST_WAITING: usize = 1_000_000;
pub(super) const MOST_MODELS: usize = 1_000_000;
pub(crate) const MOST_CONNECTIONS: usize = 1_000_000;
pub(super) const MOST_STREAMS: u32 = 10_000;
pub(super) const MOST_RESETS: u32 = 1_000_000;
pub(super) const MOST_WEIGHT: u32 = 1000;
pub(super) const MOST_CONCURRENT: u32 = 100_000;

const FROM_A_MILLISECOND: &str = r#"text like "500ms", "30s", "5m" or "1h", from "1ms" to "24h""#;

pub(crate) const HOST: Setting = Setting {
    name: "server.host",
    variable: Some("LLMLB_HOST"),
    flag: flag("--host", Some("-H")),
    default: DefaultValue::Value("127.0.0.1"),
    allowed: "an IP address, or localhost",
    about: "Address to listen on.",
};
pub(crate) const PORT: Setting = Setting {
    name: "server.port",
    variable: Some("LLMLB_PORT"),
    flag: flag("--port", Some("-p")),
    default: DefaultValue::Value("32768"),
    allowed: "0 to 65535",
    about: "Port to listen on; 0 selects a free one.",
};
pub(crate) const ALLOW_PUBLIC: Setting = Setting {
    name: "server.allow_public",
    variable: Some("LLMLB_ALLOW_PUBLIC"),
    flag: flag("--allow-public", None),
    default: DefaultValue::Value("false"),
    allowed: "true or false",
    about: "Allow an address that other machines reach: every client there can use the backends.",
};
pub(crate) const HOSTS: Setting = Setting {
    name: "server.hosts",
    variable: Some("LLMLB_HOSTS"),
    flag: None,
    default: DefaultValue::Words("none"),
    allowed: "a list of host names and IP addresses, without ports",
    about: "Additional host names that a loopback server accepts in `Host`, and whose web pages may use it.",
};
pub(crate) const TRUSTED_PROXIES: Setting = Setting {
    name: "server.trusted_proxies",
    variable: Some("LLMLB_TRUSTED_PROXIES"),
    flag: None,
    default: DefaultValue::Words("none"),
    allowed: "a list of IP addresses and networks like 10.0.0.0/8",
    about: "Reverse proxies whose `X-Forwarded-For` or `Forwarded` is trusted for the client's address.",
};
pub(crate) const WORKERS: Setting = Setting {
    name: "server.workers",
    variable: Some("LLMLB_WORKERS"),
    flag: None,
    default: DefaultValue::Computed("the number of CPUs", cpus),
    allowed: "1 to 1024",
    about: "Number of threads that serve requests.",
};
pub(crate) const DRAIN_TIMEOUT: Setting = Setting {
    name: "server.drain_timeout",
    variable: Some("LLMLB_DRAIN_TIMEOUT"),
    flag: None,
    default: DefaultValue::Value("30s"),
    allowed: r#"text like "500ms", "30s", "5m" or "1h", from "0s" to "24h""#,
    about: "Maximum time for requests to complete after a signal; the rest is aborted.",
};
pub(crate) const MAX_BODY: Setting = Setting {
    name: "server.max_body",
    variable: Some("LLMLB_MAX_BODY"),
    flag: None,
    default: DefaultValue::Value("32MiB"),
    allowed: r#"a number of bytes, or text like "64KiB", "32MiB" or "1GiB" (also KB, MB, GB), from 1 to "2GiB""#,
    about: "Maximum size of a request body that is buffered to find its model.",
};
pub(crate) const BODY_MEMORY: Setting = Setting {
    name: "server.body_memory",
    variable: Some("LLMLB_BODY_MEMORY"),
    flag: None,
    default: DefaultValue::Value("1GiB"),
    allowed: r#"a number of bytes, or text like "64KiB", "32MiB" or "1GiB" (also KB, MB, GB), from "1MiB" to "1024GiB""#,
    about: "Maximum memory for connections, heads, buffered bodies and unsent responses of all clients.",
};
pub(crate) const BODY_TIMEOUT: Setting = Setting {
    name: "server.body_timeout",
    variable: Some("LLMLB_BODY_TIMEOUT"),
    flag: None,
    default: DefaultValue::Value("30s"),
    allowed: FROM_A_MILLISECOND,
    about: "Window over which a request body must arrive at `min_body_rate`.",
};
pub(crate) const MIN_BODY_RATE: Setting = Setting {
    name: "server.min_body_rate",
    variable: Some("LLMLB_MIN_BODY_RATE"),
    flag: None,
    default: DefaultValue::Value("1KiB"),
    allowed: r#"a number of bytes, or text like "64KiB", "32MiB" or "1GiB" (also KB, MB, GB), from 1 to "1GiB""#,
    about: "Minimum bytes per second of a request body, and of a response that waits for its client.",
};
pub(crate) const SEND_TIMEOUT: Setting = Setting {
    name: "server.send_timeout",
    variable: Some("LLMLB_SEND_TIMEOUT"),
    flag: None,
    default: DefaultValue::Value("1m"),
    allowed: FROM_A_MILLISECOND,
    about: "Close the connection if the client accepts a waiting response at less than `min_body_rate` for this long.",
};
pub(crate) const STALL_TIMEOUT: Setting = Setting {
    name: "server.stall_timeout",
    variable: Some("LLMLB_STALL_TIMEOUT"),
    flag: None,
    default: DefaultValue::Value("10s"),
    allowed: FROM_A_MILLISECOND,
    about: "Replaces `send_timeout`, and `body_timeout` of a streamed body, if it is shorter, while other requests wait for a slot.",
};
pub(crate) const TUNNEL_IDLE: Setting = Setting {
    name: "server.tunnel_idle",
    variable: Some("LLMLB_TUNNEL_IDLE"),
    flag: None,
    default: DefaultValue::Value("5m"),
    allowed: FROM_A_MILLISECOND,
    about: "Close a WebSocket on which neither side has sent data for this long.",
};
pub(crate) const MAX_RESETS: Setting = Setting {
    name: "server.max_resets",
    variable: Some("LLMLB_MAX_RESETS"),
    flag: None,
    default: DefaultValue::Value("1200"),
    allowed: "0 to 1000000",
    about: "Maximum number of requests per minute that a client may cancel on one HTTP/2 connection; 0 means no limit.",
};
pub(crate) const MAX_CONNECTIONS: Setting = Setting {
    name: "server.max_connections",
    variable: Some("LLMLB_MAX_CONNECTIONS"),
    flag: None,
    default: DefaultValue::Words("half of the open files that the reserve leaves"),
    allowed: "1 to 1000000",
    about: "Maximum number of client connections; docs/limits.md shows how the default is derived.",
};
pub(crate) const MAX_CONNECTIONS_PER_ADDRESS: Setting = Setting {
    name: "server.max_connections_per_address",
    variable: Some("LLMLB_MAX_CONNECTIONS_PER_ADDRESS"),
    flag: None,
    default: DefaultValue::Words("a quarter of `max_connections`"),
    allowed: "1 to 1000000",
    about: "Maximum number of connections of one client address, IPv6 per /64; unlimited for loopback and trusted proxies. Its requests may use as many backend connections, or a quarter of all if that is more.",
};
pub(crate) const CLIENT_IDLE_TIMEOUT: Setting = Setting {
    name: "server.idle_timeout",
    variable: Some("LLMLB_SERVER_IDLE_TIMEOUT"),
    flag: None,
    default: DefaultValue::Value("75s"),
    allowed: FROM_A_MILLISECOND,
    about: "Close a client connection that has had no request for this long; the head of a request must arrive within it.",
};
pub(crate) const MAX_HEADER: Setting = Setting {
    name: "server.max_header",
    variable: Some("LLMLB_MAX_HEADER"),
    flag: None,
    default: DefaultValue::Value("32KiB"),
    allowed: r#"a number of bytes, or text like "64KiB", "32MiB" or "1GiB" (also KB, MB, GB), from "8KiB" to "1MiB""#,
    about: "Maximum size of the head of a request, and of the trailers of its body.",
};
pub(crate) const MAX_STREAMS: Setting = Setting {
    name: "server.max_streams",
    variable: Some("LLMLB_MAX_STREAMS"),
    flag: None,
    default: DefaultValue::Value("128"),
    allowed: "1 to 10000",
    about: "Maximum number of requests at a time on one HTTP/2 connection.",
};
pub(crate) const QUEUE: Setting = Setting {
    name: "server.queue",
    variable: Some("LLMLB_QUEUE"),
    flag: None,
    default: DefaultValue::Value("1000"),
    allowed: "0 to 1000000",
    about: "Maximum number of requests that wait for a slot; with 0 none waits.",
};
pub(crate) const QUEUE_TIMEOUT: Setting = Setting {
    name: "server.queue_timeout",
    variable: Some("LLMLB_QUEUE_TIMEOUT"),
    flag: None,
    default: DefaultValue::Value("30s"),
    allowed: FROM_A_MILLISECOND,
    about: "Maximum time that a request waits for a slot.",
};
pub(crate) const UNKNOWN_ENDPOINTS: Setting = Setting {
    name: "server.unknown_endpoints",
    variable: Some("LLMLB_UNKNOWN_ENDPOINTS"),
    flag: None,
    default: DefaultValue::Value("forward"),
    allowed: "forward or reject",
    about: "Forward requests under /v1/ to endpoints that llmlb does not know, or reject them.",
};
pub(crate) const CONNECT_TIMEOUT: Setting = Setting {
    name: "upstream.connect_timeout",
    variable: Some("LLMLB_CONNECT_TIMEOUT"),
    flag: None,
    default: DefaultValue::Value("5s"),
    allowed: FROM_A_MILLISECOND,
    about: "Maximum time to connect to a backend.",
};
pub(crate) const FIRST_BYTE_TIMEOUT: Setting = Setting {
    name: "upstream.first_byte_timeout",
    variable: Some("LLMLB_FIRST_BYTE_TIMEOUT"),
    flag: None,
    default: DefaultValue::Value("10m"),
    allowed: FROM_A_MILLISECOND,
    about: "Maximum time to the first byte of a backend's response.",
};
pub(crate) const IDLE_TIMEOUT: Setting = Setting {
    name: "upstream.idle_timeout",
    variable: Some("LLMLB_IDLE_TIMEOUT"),
    flag: None,
    default: DefaultValue::Value("5m"),
    allowed: FROM_A_MILLISECOND,
    about: "Maximum pause within a backend's response.",
};
pub(crate) const FORWARD_HEADERS: Setting = Setting {
    name: "upstream.forward_headers",
    variable: Some("LLMLB_FORWARD_HEADERS"),
    flag: None,
    default: DefaultValue::Words("none"),
    allowed: "a list of header names; a * at the end of one matches any rest",
    about: "Request headers that are forwarded to backends in addition to the default ones.",
};
pub(crate) const PROBE_INTERVAL: Setting = Setting {
    name: "upstream.probe_interval",
    variable: Some("LLMLB_PROBE_INTERVAL"),
    flag: None,
    default: DefaultValue::Value("5s"),
    allowed: r#"text like "500ms", "30s", "5m" or "1h", from "100ms" to "24h""#,
    about: "Interval between probes of a backend.",
};
pub(crate) const PROBE_TIMEOUT: Setting = Setting {
    name: "upstream.probe_timeout",
    variable: Some("LLMLB_PROBE_TIMEOUT"),
    flag: None,
    default: DefaultValue::Value("5s"),
    allowed: FROM_A_MILLISECOND,
    about: "Maximum time for a backend's response to a probe.",
};
pub(crate) const MAX_MODELS: Setting = Setting {
    name: "upstream.max_models",
    variable: Some("LLMLB_MAX_MODELS"),
    flag: None,
    default: DefaultValue::Value("10000"),
    allowed: "1 to 1000000",
    about: "Maximum number of models of one backend; further ones are not used.",
};
pub(crate) const LOG_REQUESTS: Setting = Setting {
    name: "log.requests",
    variable: Some("LLMLB_LOG_REQUESTS"),
    flag: None,
    default: DefaultValue::Value("true"),
    allowed: "true or false",
    about: "Write one line for each request to stderr.",
};
pub(crate) const USAGE_ENABLED: Setting = Setting {
    name: "usage.enabled",
    variable: Some("LLMLB_USAGE"),
    flag: None,
    default: DefaultValue::Value("true"),
    allowed: "true or false",
    about: "Record the usage of every request.",
};
pub(crate) const USAGE_URL: Setting = Setting {
    name: "usage.url",
    variable: Some(URL_VARIABLE),
    flag: None,
    default: DefaultValue::Words("none: records are kept in archive/"),
    allowed: "https://HOST[:PORT][/PATH], or http://.. on this machine",
    about: "URL of the receiver of usage records; `usage deliver` uses the variable too.",
};
pub(crate) const USAGE_TOKEN_ENV: Setting = Setting {
    name: "usage.token_env",
    variable: None,
    flag: None,
    default: DefaultValue::Value(TOKEN_VARIABLE),
    allowed: "the name of an environment variable",
    about: "Name of the variable that contains the receiver's bearer token; the token itself is never in the file.",
};
pub(crate) const USAGE_EVERY: Setting = Setting {
    name: "usage.every",
    variable: Some("LLMLB_USAGE_EVERY"),
    flag: None,
    default: DefaultValue::Value("1m"),
    allowed: r#"text like "500ms", "30s", "5m" or "1h", from "1s" to "24h""#,
    about: "Interval between deliveries of usage records.",
};
pub(crate) const USAGE_FORMAT: Setting = Setting {
    name: "usage.format",
    variable: Some("LLMLB_USAGE_FORMAT"),
    flag: None,
    default: DefaultValue::Value("json"),
    allowed: "json or cloudevents",
    about: "Format of delivered batches: llmlb's JSON, or CloudEvents (for OpenMeter).",
};
pub(crate) const USAGE_ON_FAILURE: Setting = Setting {
    name: "usage.on_failure",
    variable: Some("LLMLB_USAGE_ON_FAILURE"),
    flag: None,
    default: DefaultValue::Value("serve"),
    allowed: "serve or refuse",
    about: "Serve or refuse requests while their usage cannot be recorded.",
};
pub(crate) const USAGE_ALLOW_HTTP: Setting = Setting {
    name: "usage.allow_http",
    variable: Some("LLMLB_USAGE_ALLOW_HTTP"),
    flag: None,
    default: DefaultValue::Value("false"),
    allowed: "true or false",
    about: "Allow http:// to other machines: the network can read records and token.",
};
pub(crate) const USAGE_ARCHIVE_MAX_AGE: Setting = Setting {
    name: "usage.archive_max_age",
    variable: Some("LLMLB_USAGE_ARCHIVE_MAX_AGE"),
    flag: None,
    default: DefaultValue::Words("no limit"),
    allowed: r#"text like "36h" or "90d", from "1h" to "3660d""#,
    about: "Delete files in archive/ that are older than this.",
};
pub(crate) const USAGE_ARCHIVE_MAX_SIZE: Setting = Setting {
    name: "usage.archive_max_size",
    variable: Some("LLMLB_USAGE_ARCHIVE_MAX_SIZE"),
    flag: None,
    default: DefaultValue::Words("no limit"),
    allowed: r#"a number of bytes, or text like "500MiB" or "20GiB", from "1MiB" to "1024GiB""#,
    about: "Delete the oldest files in archive/ beyond this total size.",
};
pub(crate) const USAGE_FAILED_MAX_AGE: Setting = Setting {
    name: "usage.failed_max_age",
    variable: Some("LLMLB_USAGE_FAILED_MAX_AGE"),
    flag: None,
    default: DefaultValue::Words("no limit"),
    allowed: r#"text like "36h" or "90d", from "1h" to "3660d""#,
    about: "Delete files in failed/ that are older than this.",
};
pub(crate) const USAGE_FAILED_MAX_SIZE: Setting = Setting {
    name: "usage.failed_max_size",
    variable: Some("LLMLB_USAGE_FAILED_MAX_SIZE"),
    flag: None,
    default: DefaultValue::Words("no limit"),
    allowed: r#"a number of bytes, or text like "500MiB" or "20GiB", from "1MiB" to "1024GiB""#,
    about: "Delete the oldest files in failed/ beyond this total size.",
};

/// All settings but those of backends and aliases, in the order of the documentation.
pub(crate) const ALL: &[Setting] = &[
    HOST,
    PORT,
    ALLOW_PUBLIC,
    HOSTS,
    TRUSTED_PROXIES,
    WORKERS,
    DRAIN_TIMEOUT,
    MAX_BODY,
    BODY_MEMORY,
    BODY_TIMEOUT,
    MIN_BODY_RATE,
    SEND_TIMEOUT,
    STALL_TIMEOUT,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_ADDRESS,
    CLIENT_IDLE_TIMEOUT,
    MAX_HEADER,
    MAX_STREAMS,
    TUNNEL_IDLE,
    MAX_RESETS,
    QUEUE,
    QUEUE_TIMEOUT,
    UNKNOWN_ENDPOINTS,
    CONNECT_TIMEOUT,
    FIRST_BYTE_TIMEOUT,
    IDLE_TIMEOUT,
    FORWARD_HEADERS,
    PROBE_INTERVAL,
    PROBE_TIMEOUT,
    MAX_MODELS,
    LOG_REQUESTS,
    USAGE_ENABLED,
    USAGE_URL,
    USAGE_TOKEN_ENV,
    USAGE_EVERY,
    USAGE_FORMAT,
    USAGE_ON_FAILURE,
    USAGE_ALLOW_HTTP,
    USAGE_ARCHIVE_MAX_AGE,
    USAGE_ARCHIVE_MAX_SIZE,
    USAGE_FAILED_MAX_AGE,
    USAGE_FAILED_MAX_SIZE,
];

pub(super) const BACKEND_NAME: Setting = Setting {
    name: "backend.name",
    variable: None,
    flag: None,
    default: DefaultValue::Words("host:port of the URL"),
    allowed: "1 to 64 of a-z A-Z 0-9 . _ : -",
    about: "Name of the backend in logs, `/status` and records; unique.",
};
pub(super) const BACKEND_URL: Setting = Setting {
    name: "backend.url",
    variable: Some(BACKENDS),
    flag: flag(BACKEND_FLAG, None),
    default: DefaultValue::Words("required"),
    allowed: "http://HOST[:PORT][/PREFIX] or https://..",
    about: "URL of the backend; unique. A trailing /v1 is optional.",
};
pub(super) const BACKEND_MODELS: Setting = Setting {
    name: "backend.models",
    variable: None,
    flag: None,
    default: DefaultValue::Words("the backend's own list"),
    allowed: "a list of names, at least one",
    about: "Models of the backend, used instead of its own list.",
};
pub(super) const BACKEND_KEY: Setting = Setting {
    name: "backend.api_key_env",
    variable: None,
    flag: None,
    default: DefaultValue::Words("no key"),
    allowed: "the name of an environment variable",
    about: "Name of the variable that contains the backend's key; the key itself is never in the file.",
};
pub(super) const BACKEND_KIND: Setting = Setting {
    name: "backend.kind",
    variable: None,
    flag: None,
    default: DefaultValue::Words("detected"),
    allowed: "ollama, vllm, llama.cpp, lm-studio, openai or anthropic",
    about: "Program or service that the backend runs.",
};
pub(super) const BACKEND_WEIGHT: Setting = Setting {
    name: "backend.weight",
    variable: None,
    flag: None,
    default: DefaultValue::Words("1"),
    allowed: "1 to 1000",
    about: "Share of requests, relative to the other backends.",
};
pub(super) const BACKEND_LIMIT: Setting = Setting {
    name: "backend.max_concurrent",
    variable: None,
    flag: None,
    default: DefaultValue::Words("no limit"),
    allowed: "1 to 100000",
    about: "Maximum number of concurrent requests; further ones wait.",
};
pub(super) const BACKEND_ONLY: Setting = Setting {
    name: "backend.only_models",
    variable: None,
    flag: None,
    default: DefaultValue::Words("all"),
    allowed: "a list of names, at least one; a * at the end of one matches any rest",
    about: "Models of the backend's list that are used.",
};

pub(super) const BACKEND_REUSE: Setting = Setting {
    name: "backend.reuse_after_errors",
    variable: None,
    flag: None,
    default: DefaultValue::Words("false"),
    allowed: "true or false",
    about: "Reuse connections after error responses too: only for servers that always read the whole request.",
};

pub(super) const BACKEND: &[Setting] = &[
    BACKEND_NAME,
    BACKEND_URL,
    BACKEND_MODELS,
    BACKEND_KEY,
    BACKEND_KIND,
    BACKEND_WEIGHT,
    BACKEND_LIMIT,
    BACKEND_ONLY,
    BACKEND_REUSE,
];

/// Section whose keys are names chosen by the operator.
pub(super) const ALIASES: &str = "aliases";
/// Definition of an entry in that section.
pub(super) const ALIAS: Setting = Setting {
    name: "aliases.NAME",
    variable: None,
    flag: None,
    default: DefaultValue::Words("none"),
    allowed: "the name of a model, or a list of names",
    about: "Additional name for a model, or common name for a model that backends name differently.",
};

/// Environment variables without a setting in the file.
pub(super) const OTHER_VARIABLES: [(&str, &str); 4] = [
    (CONFIG, "Configuration file; the flag is `--config`."),
    (
        LOCK_DIR,
        "Lock directory, if not in the temporary directory.",
    ),
    (
        DATA_DIR,
        "Data directory, if not in the user's own; the flag of `usage` is `--data`. A demo uses `demo` in it.",
    ),
    (
        TOKEN_VARIABLE,
        "Bearer token of the receiver of usage records, unless `usage.token_env` names another variable.",
    ),
];

pub(super) const SECTIONS: [&str; 6] = ["server", "upstream", "log", "usage", "backend", ALIASES];

impl Setting {
    pub(super) fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    pub(super) fn key(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, key)| key)
    }
}

/// Returns the keys that the configuration file may have in a section.
pub(super) fn keys_of(section: &str) -> Vec<&'static str> {
    let all = ALL.iter().chain(BACKEND);
    all.filter(|setting| setting.section() == section)
        .map(Setting::key)
        .collect()
}

/// Returns the names of all environment variables that llmlb reads.
pub(super) fn variables() -> impl Iterator<Item = &'static str> {
    let settings = ALL
        .iter()
        .chain(BACKEND)
        .filter_map(|setting| setting.variable);
    settings.chain(OTHER_VARIABLES.iter().map(|(name, _)| *name))
}

const fn flag(long: &'static str, short: Option<&'static str>) -> Option<Flag> {
    Some(Flag { long, short })
}

fn cpus() -> String {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    cpus.min(MOST_WORKERS).to_string()
}
