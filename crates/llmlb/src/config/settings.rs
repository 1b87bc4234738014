//! The table of everything that can be set. The parser takes names, defaults and the words for what
//! is allowed from here, and `docs/configuration.md` is held against it by a test.

use std::num::NonZero;
use std::thread;

/// One thing that can be set.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "for the page, which a test compares")
)]
pub(crate) struct Setting {
    /// Section and key in the file.
    pub(crate) name: &'static str,
    pub(crate) variable: Option<&'static str>,
    pub(crate) flag: Option<Flag>,
    pub(super) default: Default,
    /// In words, for messages and for the page.
    pub(super) allowed: &'static str,
    pub(super) about: &'static str,
}

#[cfg_attr(
    not(test),
    expect(dead_code, reason = "for the page, which a test compares")
)]
pub(crate) struct Flag {
    pub(crate) long: &'static str,
    pub(crate) short: Option<&'static str>,
}

/// What holds if nothing is set.
#[cfg_attr(
    not(test),
    expect(dead_code, reason = "for the page, which a test compares")
)]
pub(super) enum Default {
    /// Read like any other value, so that what is documented is what is done.
    Value(&'static str),
    /// Found out at start.
    Found(&'static str, fn() -> String),
    /// Nothing to read: the words say what happens.
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
    default: Default::Value("127.0.0.1"),
    allowed: "an IP address, or localhost",
    about: "The address to serve on.",
};
pub(crate) const PORT: Setting = Setting {
    name: "server.port",
    variable: Some("LLMLB_PORT"),
    flag: flag("--port", Some("-p")),
    default: Default::Value("32768"),
    allowed: "0 to 65535",
    about: "The port to serve on; 0 takes any free one.",
};
pub(crate) const ALLOW_PUBLIC: Setting = Setting {
    name: "server.allow_public",
    variable: Some("LLMLB_ALLOW_PUBLIC"),
    flag: flag("--allow-public", None),
    default: Default::Value("false"),
    allowed: "true or false",
    about: "Serve on an address that other machines reach, although anyone may then use it.",
};
pub(crate) const HOSTS: Setting = Setting {
    name: "server.hosts",
    variable: Some("LLMLB_HOSTS"),
    flag: None,
    default: Default::Words("none"),
    allowed: "a list of host names and IP addresses, without ports",
    about: "Further names by which a private server may be called, and whose web pages may use it.",
};
pub(crate) const TRUSTED_PROXIES: Setting = Setting {
    name: "server.trusted_proxies",
    variable: Some("LLMLB_TRUSTED_PROXIES"),
    flag: None,
    default: Default::Words("none"),
    allowed: "a list of IP addresses and networks like 10.0.0.0/8",
    about: "Reverse proxies whose `X-Forwarded-For` or `Forwarded` names the client.",
};
pub(crate) const WORKERS: Setting = Setting {
    name: "server.workers",
    variable: Some("LLMLB_WORKERS"),
    flag: None,
    default: Default::Found("the number of CPUs", cpus),
    allowed: "1 to 1024",
    about: "How many threads serve requests.",
};
pub(crate) const DRAIN_TIMEOUT: Setting = Setting {
    name: "server.drain_timeout",
    variable: Some("LLMLB_DRAIN_TIMEOUT"),
    flag: None,
    default: Default::Value("30s"),
    allowed: r#"text like "500ms", "30s", "5m" or "1h", from "0s" to "24h""#,
    about: "How long requests may go on once the server was told to stop.",
};
pub(crate) const MAX_BODY: Setting = Setting {
    name: "server.max_body",
    variable: Some("LLMLB_MAX_BODY"),
    flag: None,
    default: Default::Value("32MiB"),
    allowed: r#"a number of bytes, or text like "64KiB", "32MiB" or "1GiB" (also KB, MB, GB), from 1 to "2GiB""#,
    about: "The largest request body that is held in memory to find the model in it.",
};
pub(crate) const BODY_MEMORY: Setting = Setting {
    name: "server.body_memory",
    variable: Some("LLMLB_BODY_MEMORY"),
    flag: None,
    default: Default::Value("1GiB"),
    allowed: r#"a number of bytes, or text like "64KiB", "32MiB" or "1GiB" (also KB, MB, GB), from "1MiB" to "1024GiB""#,
    about: "Memory for what clients send and do not take: connections, heads, bodies and unsent responses.",
};
pub(crate) const BODY_TIMEOUT: Setting = Setting {
    name: "server.body_timeout",
    variable: Some("LLMLB_BODY_TIMEOUT"),
    flag: None,
    default: Default::Value("30s"),
    allowed: FROM_A_MILLISECOND,
    about: "Time within which a client must send enough of a request's body (`min_body_rate`).",
};
pub(crate) const MIN_BODY_RATE: Setting = Setting {
    name: "server.min_body_rate",
    variable: Some("LLMLB_MIN_BODY_RATE"),
    flag: None,
    default: Default::Value("1KiB"),
    allowed: r#"a number of bytes, or text like "64KiB", "32MiB" or "1GiB" (also KB, MB, GB), from 1 to "1GiB""#,
    about: "Bytes per second that a client must send of a body, and take of a response that waits for it.",
};
pub(crate) const SEND_TIMEOUT: Setting = Setting {
    name: "server.send_timeout",
    variable: Some("LLMLB_SEND_TIMEOUT"),
    flag: None,
    default: Default::Value("1m"),
    allowed: FROM_A_MILLISECOND,
    about: "Time within which a client must take enough of a response that waits for it (`min_body_rate`).",
};
pub(crate) const STALL_TIMEOUT: Setting = Setting {
    name: "server.stall_timeout",
    variable: Some("LLMLB_STALL_TIMEOUT"),
    flag: None,
    default: Default::Value("10s"),
    allowed: FROM_A_MILLISECOND,
    about: "Replaces `send_timeout`, and `body_timeout` of a body that is passed on, if it is shorter, while other requests wait for a slot.",
};
pub(crate) const TUNNEL_IDLE: Setting = Setting {
    name: "server.tunnel_idle",
    variable: Some("LLMLB_TUNNEL_IDLE"),
    flag: None,
    default: Default::Value("5m"),
    allowed: FROM_A_MILLISECOND,
    about: "Close a WebSocket on which neither side has sent anything for this long.",
};
pub(crate) const MAX_RESETS: Setting = Setting {
    name: "server.max_resets",
    variable: Some("LLMLB_MAX_RESETS"),
    flag: None,
    default: Default::Value("1200"),
    allowed: "0 to 1000000",
    about: "Requests per minute that a client may cancel on one HTTP/2 connection before the end of their response; 0 is no limit.",
};
pub(crate) const MAX_CONNECTIONS: Setting = Setting {
    name: "server.max_connections",
    variable: Some("LLMLB_MAX_CONNECTIONS"),
    flag: None,
    default: Default::Words("half of the open files that the reserve leaves"),
    allowed: "1 to 1000000",
    about: "Maximum number of client connections; docs/limits.md shows how the default is derived.",
};
pub(crate) const MAX_CONNECTIONS_PER_ADDRESS: Setting = Setting {
    name: "server.max_connections_per_address",
    variable: Some("LLMLB_MAX_CONNECTIONS_PER_ADDRESS"),
    flag: None,
    default: Default::Words("a quarter of `max_connections`"),
    allowed: "1 to 1000000",
    about: "Maximum number of connections of one client address, IPv6 per /64; none for loopback and trusted proxies. Its requests may use as many connections to backends, or a quarter of them if that is more.",
};
pub(crate) const CLIENT_IDLE_TIMEOUT: Setting = Setting {
    name: "server.idle_timeout",
    variable: Some("LLMLB_SERVER_IDLE_TIMEOUT"),
    flag: None,
    default: Default::Value("75s"),
    allowed: FROM_A_MILLISECOND,
    about: "Close a client connection that has had no request for this long; the head of a request must arrive within it.",
};
pub(crate) const MAX_HEADER: Setting = Setting {
    name: "server.max_header",
    variable: Some("LLMLB_MAX_HEADER"),
    flag: None,
    default: Default::Value("32KiB"),
    allowed: r#"a number of bytes, or text like "64KiB", "32MiB" or "1GiB" (also KB, MB, GB), from "8KiB" to "1MiB""#,
    about: "Maximum size of the head of a request, and of the trailers of its body.",
};
pub(crate) const MAX_STREAMS: Setting = Setting {
    name: "server.max_streams",
    variable: Some("LLMLB_MAX_STREAMS"),
    flag: None,
    default: Default::Value("128"),
    allowed: "1 to 10000",
    about: "Maximum number of requests at a time on one HTTP/2 connection.",
};
pub(crate) const QUEUE: Setting = Setting {
    name: "server.queue",
    variable: Some("LLMLB_QUEUE"),
    flag: None,
    default: Default::Value("1000"),
    allowed: "0 to 1000000",
    about: "How many requests may wait for a backend that is at its limit; with 0 none waits.",
};
pub(crate) const QUEUE_TIMEOUT: Setting = Setting {
    name: "server.queue_timeout",
    variable: Some("LLMLB_QUEUE_TIMEOUT"),
    flag: None,
    default: Default::Value("30s"),
    allowed: FROM_A_MILLISECOND,
    about: "How long a request may wait for a backend that is at its limit.",
};
pub(crate) const UNKNOWN_ENDPOINTS: Setting = Setting {
    name: "server.unknown_endpoints",
    variable: Some("LLMLB_UNKNOWN_ENDPOINTS"),
    flag: None,
    default: Default::Value("forward"),
    allowed: "forward or reject",
    about: "Forward requests under /v1/ to endpoints that llmlb does not know, or reject them.",
};
pub(crate) const CONNECT_TIMEOUT: Setting = Setting {
    name: "upstream.connect_timeout",
    variable: Some("LLMLB_CONNECT_TIMEOUT"),
    flag: None,
    default: Default::Value("5s"),
    allowed: FROM_A_MILLISECOND,
    about: "How long a backend may take to accept a connection.",
};
pub(crate) const FIRST_BYTE_TIMEOUT: Setting = Setting {
    name: "upstream.first_byte_timeout",
    variable: Some("LLMLB_FIRST_BYTE_TIMEOUT"),
    flag: None,
    default: Default::Value("10m"),
    allowed: FROM_A_MILLISECOND,
    about: "How long a backend may take until its answer begins.",
};
pub(crate) const IDLE_TIMEOUT: Setting = Setting {
    name: "upstream.idle_timeout",
    variable: Some("LLMLB_IDLE_TIMEOUT"),
    flag: None,
    default: Default::Value("5m"),
    allowed: FROM_A_MILLISECOND,
    about: "How long a backend may pause within an answer.",
};
pub(crate) const FORWARD_HEADERS: Setting = Setting {
    name: "upstream.forward_headers",
    variable: Some("LLMLB_FORWARD_HEADERS"),
    flag: None,
    default: Default::Words("none"),
    allowed: "a list of names of header fields; a * at the end of one stands for any rest",
    about: "Header fields of clients that backends receive besides the usual ones.",
};
pub(crate) const PROBE_INTERVAL: Setting = Setting {
    name: "upstream.probe_interval",
    variable: Some("LLMLB_PROBE_INTERVAL"),
    flag: None,
    default: Default::Value("5s"),
    allowed: r#"text like "500ms", "30s", "5m" or "1h", from "100ms" to "24h""#,
    about: "How often each backend is asked whether it is well and what it serves.",
};
pub(crate) const PROBE_TIMEOUT: Setting = Setting {
    name: "upstream.probe_timeout",
    variable: Some("LLMLB_PROBE_TIMEOUT"),
    flag: None,
    default: Default::Value("5s"),
    allowed: FROM_A_MILLISECOND,
    about: "How long a backend may take to answer when it is asked so.",
};
pub(crate) const MAX_MODELS: Setting = Setting {
    name: "upstream.max_models",
    variable: Some("LLMLB_MAX_MODELS"),
    flag: None,
    default: Default::Value("10000"),
    allowed: "1 to 1000000",
    about: "Maximum number of models of one backend; those that it lists beyond are not used.",
};
pub(crate) const LOG_REQUESTS: Setting = Setting {
    name: "log.requests",
    variable: Some("LLMLB_LOG_REQUESTS"),
    flag: None,
    default: Default::Value("true"),
    allowed: "true or false",
    about: "Write one line for each request to stderr.",
};
pub(crate) const USAGE_ENABLED: Setting = Setting {
    name: "usage.enabled",
    variable: Some("LLMLB_USAGE"),
    flag: None,
    default: Default::Value("true"),
    allowed: "true or false",
    about: "Record the usage of every request.",
};
pub(crate) const USAGE_URL: Setting = Setting {
    name: "usage.url",
    variable: Some(URL_VARIABLE),
    flag: None,
    default: Default::Words("none: records are kept in archive/"),
    allowed: "https://HOST[:PORT][/PATH], or http://.. on this machine",
    about: "Where usage records are sent to; `usage deliver` uses the variable too.",
};
pub(crate) const USAGE_TOKEN_ENV: Setting = Setting {
    name: "usage.token_env",
    variable: None,
    flag: None,
    default: Default::Value(TOKEN_VARIABLE),
    allowed: "the name of an environment variable",
    about: "The variable that holds the receiver's bearer token; the token itself is never in the file.",
};
pub(crate) const USAGE_EVERY: Setting = Setting {
    name: "usage.every",
    variable: Some("LLMLB_USAGE_EVERY"),
    flag: None,
    default: Default::Value("1m"),
    allowed: r#"text like "500ms", "30s", "5m" or "1h", from "1s" to "24h""#,
    about: "How often usage records are sent.",
};
pub(crate) const USAGE_FORMAT: Setting = Setting {
    name: "usage.format",
    variable: Some("LLMLB_USAGE_FORMAT"),
    flag: None,
    default: Default::Value("json"),
    allowed: "json or cloudevents",
    about: "What is posted: our own JSON, or CloudEvents as OpenMeter takes them.",
};
pub(crate) const USAGE_ON_FAILURE: Setting = Setting {
    name: "usage.on_failure",
    variable: Some("LLMLB_USAGE_ON_FAILURE"),
    flag: None,
    default: Default::Value("serve"),
    allowed: "serve or refuse",
    about: "What is done with requests while their usage cannot be recorded.",
};
pub(crate) const USAGE_ALLOW_HTTP: Setting = Setting {
    name: "usage.allow_http",
    variable: Some("LLMLB_USAGE_ALLOW_HTTP"),
    flag: None,
    default: Default::Value("false"),
    allowed: "true or false",
    about: "Allow http:// to other machines: anyone on the way can read records and token.",
};
pub(crate) const USAGE_ARCHIVE_MAX_AGE: Setting = Setting {
    name: "usage.archive_max_age",
    variable: Some("LLMLB_USAGE_ARCHIVE_MAX_AGE"),
    flag: None,
    default: Default::Words("no limit"),
    allowed: r#"text like "36h" or "90d", from "1h" to "3660d""#,
    about: "Delete files of archive/ that are older.",
};
pub(crate) const USAGE_ARCHIVE_MAX_SIZE: Setting = Setting {
    name: "usage.archive_max_size",
    variable: Some("LLMLB_USAGE_ARCHIVE_MAX_SIZE"),
    flag: None,
    default: Default::Words("no limit"),
    allowed: r#"a number of bytes, or text like "500MiB" or "20GiB", from "1MiB" to "1024GiB""#,
    about: "Delete the oldest files of archive/ beyond this size.",
};
pub(crate) const USAGE_FAILED_MAX_AGE: Setting = Setting {
    name: "usage.failed_max_age",
    variable: Some("LLMLB_USAGE_FAILED_MAX_AGE"),
    flag: None,
    default: Default::Words("no limit"),
    allowed: r#"text like "36h" or "90d", from "1h" to "3660d""#,
    about: "Delete files of failed/ that are older.",
};
pub(crate) const USAGE_FAILED_MAX_SIZE: Setting = Setting {
    name: "usage.failed_max_size",
    variable: Some("LLMLB_USAGE_FAILED_MAX_SIZE"),
    flag: None,
    default: Default::Words("no limit"),
    allowed: r#"a number of bytes, or text like "500MiB" or "20GiB", from "1MiB" to "1024GiB""#,
    about: "Delete the oldest files of failed/ beyond this size.",
};

/// In the order of the page.
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
    default: Default::Words("host:port of the URL"),
    allowed: "1 to 64 of a-z A-Z 0-9 . _ : -",
    about: "What the backend is called in reports; unique.",
};
pub(super) const BACKEND_URL: Setting = Setting {
    name: "backend.url",
    variable: Some(BACKENDS),
    flag: flag(BACKEND_FLAG, None),
    default: Default::Words("required"),
    allowed: "http://HOST[:PORT][/PREFIX] or https://..",
    about: "Where the backend is; unique. A trailing /v1 may be there or not.",
};
pub(super) const BACKEND_MODELS: Setting = Setting {
    name: "backend.models",
    variable: None,
    flag: None,
    default: Default::Words("the backend is asked"),
    allowed: "a list of names, at least one",
    about: "The models it serves, used instead of asking it.",
};
pub(super) const BACKEND_KEY: Setting = Setting {
    name: "backend.api_key_env",
    variable: None,
    flag: None,
    default: Default::Words("no key"),
    allowed: "the name of an environment variable",
    about: "The variable that holds the backend's key; the key itself is never in the file.",
};
pub(super) const BACKEND_KIND: Setting = Setting {
    name: "backend.kind",
    variable: None,
    flag: None,
    default: Default::Words("found out"),
    allowed: "ollama, vllm, llama.cpp, lm-studio, openai or anthropic",
    about: "Which program or service it is.",
};
pub(super) const BACKEND_WEIGHT: Setting = Setting {
    name: "backend.weight",
    variable: None,
    flag: None,
    default: Default::Words("1"),
    allowed: "1 to 1000",
    about: "Its share of the work, compared with the other backends.",
};
pub(super) const BACKEND_LIMIT: Setting = Setting {
    name: "backend.max_concurrent",
    variable: None,
    flag: None,
    default: Default::Words("no limit"),
    allowed: "1 to 100000",
    about: "How many requests it gets at a time; the others wait.",
};
pub(super) const BACKEND_ONLY: Setting = Setting {
    name: "backend.only_models",
    variable: None,
    flag: None,
    default: Default::Words("all"),
    allowed: "a list of names, at least one; a * at the end of one stands for any rest",
    about: "Which of the models that it tells are used.",
};

pub(super) const BACKEND_REUSE: Setting = Setting {
    name: "backend.reuse_after_errors",
    variable: None,
    flag: None,
    default: Default::Words("false"),
    allowed: "true or false",
    about: "Keep its connections after error responses too: only for servers that always read the whole request.",
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

/// The section whose keys are names that people choose.
pub(super) const ALIASES: &str = "aliases";
/// What may stand there.
pub(super) const ALIAS: Setting = Setting {
    name: "aliases.NAME",
    variable: None,
    flag: None,
    default: Default::Words("none"),
    allowed: "the name of a model, or a list of names",
    about: "A further name for a model, or for one that backends call differently.",
};

/// Variables that are no setting of the file.
pub(super) const OTHER_VARIABLES: [(&str, &str); 4] = [
    (CONFIG, "The configuration file; the flag is `--config`."),
    (
        LOCK_DIR,
        "Where the port locks lie, if not in the temporary directory.",
    ),
    (
        DATA_DIR,
        "Where usage data lies, if not in the user's data directory; the flag of `usage` is `--data`. A demo uses `demo` in it.",
    ),
    (
        TOKEN_VARIABLE,
        "The bearer token of the receiver of usage records, unless `usage.token_env` names another variable.",
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

/// The keys that a section may have.
pub(super) fn keys_of(section: &str) -> Vec<&'static str> {
    let all = ALL.iter().chain(BACKEND);
    all.filter(|setting| setting.section() == section)
        .map(Setting::key)
        .collect()
}

/// Every variable that means something.
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
