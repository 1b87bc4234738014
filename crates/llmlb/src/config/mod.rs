//! The configuration: read once at the start, and validated as a whole.
//!
//! The environment overrides the file, and flags override both. All errors are reported at once,
//! each with its file and line, variable or flag (L12). [`settings`] is the table of all settings;
//! the table in `docs/configuration.md` is generated from it.

mod aliases;
mod backends;
mod document;
mod effective;
pub(crate) mod env;
mod file;
mod kind;
mod layers;
mod networks;
mod origin;
mod problems;
mod secret;
pub(crate) mod settings;
mod suggest;
mod url;
mod usage;
mod values;

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use aliases::Alias;
pub(crate) use backends::is_among;
pub(crate) use kind::Kind;
#[cfg(any(test, fuzzing))]
pub(crate) use networks::Network;
pub(crate) use networks::Networks;
pub(crate) use origin::{Origin, Origins};
pub(crate) use problems::Problems;
pub(crate) use secret::Secret;
pub(crate) use settings::MOST_CONNECTIONS;
pub(crate) use url::BackendUrl;
pub(crate) use usage::{Format, OnFailure, Receiver, UsageConfig};
pub(crate) use values::span;

use spool::Keep;

use crate::headers::HeaderPatterns;
use document::TomlDocument;
use env::Environment;
use layers::Layers;
use problems::ProblemList;

/// The validated configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) server: ServerConfig,
    pub(crate) upstream: UpstreamConfig,
    pub(crate) log: LogConfig,
    pub(crate) usage: UsageConfig,
    /// Empty if none is configured: the server then discovers backends on this machine.
    pub(crate) backends: Vec<Backend>,
    /// Sorted by name.
    pub(crate) aliases: Vec<Alias>,
    /// Path of the file that was read, as the flag or variable names it.
    pub(crate) file: Option<PathBuf>,
    /// Origin of each value.
    pub(crate) origins: Origins,
}

#[derive(Debug, Clone)]
pub(crate) struct ServerConfig {
    pub(crate) host: IpAddr,
    /// 0 selects any free port.
    pub(crate) port: u16,
    pub(crate) allow_public: bool,
    /// Additional host names and addresses that are accepted in `Host`, in lower case.
    pub(crate) hosts: Vec<String>,
    /// Proxies whose `X-Forwarded-For` and `Forwarded` are trusted.
    pub(crate) trusted_proxies: Networks,
    pub(crate) workers: usize,
    pub(crate) drain_timeout: Duration,
    /// In bytes.
    pub(crate) max_body: usize,
    /// In bytes, for all clients.
    pub(crate) body_memory: usize,
    /// Window over which a request body must reach `min_body_rate`.
    pub(crate) body_timeout: Duration,
    /// In bytes per second.
    pub(crate) min_body_rate: usize,
    /// Window over which a client must accept response bytes at `min_body_rate`.
    pub(crate) send_timeout: Duration,
    /// Replaces `send_timeout`, and `body_timeout` of streamed bodies, while other requests wait.
    pub(crate) stall_timeout: Duration,
    /// Maximum number of client connections. `None`: derived from the limit of open files.
    pub(crate) max_connections: Option<usize>,
    /// Maximum number of connections of one client address. `None`: a quarter of all connections.
    pub(crate) max_connections_per_address: Option<usize>,
    /// Maximum time of a connection without a request, and for the head of a request to arrive.
    pub(crate) idle_timeout: Duration,
    /// In bytes.
    pub(crate) max_header: usize,
    /// Maximum number of concurrent streams on one HTTP/2 connection.
    pub(crate) max_streams: u32,
    /// Maximum time without data in either direction of a tunnel.
    pub(crate) tunnel_idle: Duration,
    /// Maximum number of requests per minute that a client may cancel on one HTTP/2 connection.
    pub(crate) max_resets: u32,
    /// Maximum number of requests that wait for a slot.
    pub(crate) queue: usize,
    pub(crate) queue_timeout: Duration,
    pub(crate) unknown_endpoints: UnknownEndpoints,
}

/// Treatment of requests to endpoints that llmlb does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownEndpoints {
    Forward,
    Reject,
}

impl UnknownEndpoints {
    const WORDS: [(&str, Self); 2] = [("forward", Self::Forward), ("reject", Self::Reject)];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Reject => "reject",
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct UpstreamConfig {
    pub(crate) connect_timeout: Duration,
    /// Maximum time to the first byte of a response.
    pub(crate) first_byte_timeout: Duration,
    /// Maximum pause within a response.
    pub(crate) idle_timeout: Duration,
    /// Request headers that are forwarded in addition to the default ones.
    pub(crate) forward_headers: HeaderPatterns,
    pub(crate) probe_interval: Duration,
    pub(crate) probe_timeout: Duration,
    /// Maximum number of models that are used of one backend.
    pub(crate) max_models: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct LogConfig {
    /// True if the access log is on.
    pub(crate) requests: bool,
}

/// An LLM server that receives requests.
#[derive(Debug, Clone)]
pub(crate) struct Backend {
    /// Unique.
    pub(crate) name: String,
    /// Name that clients see in `x-llmlb-backend`. A default name is not shown to them, because it
    /// contains the backend's host and port.
    pub(crate) label: String,
    /// Unique.
    pub(crate) url: BackendUrl,
    /// Configured models, used instead of the backend's own list.
    pub(crate) models: Option<Vec<String>>,
    pub(crate) api_key: Option<Secret>,
    /// `None`: detected by the first probe.
    pub(crate) kind: Option<Kind>,
    /// Share of requests, relative to the other backends.
    pub(crate) weight: u32,
    /// Maximum number of concurrent requests.
    pub(crate) max_concurrent: Option<u32>,
    /// Models of the backend that are used. A `*` at the end of a name matches any rest.
    pub(crate) only_models: Option<Vec<String>>,
    /// True if connections are reused after error responses too.
    pub(crate) reuse_after_errors: bool,
}

impl Backend {
    /// Returns a backend with default settings.
    pub(crate) fn new(name: String, url: BackendUrl) -> Self {
        Self {
            label: name.clone(),
            name,
            url,
            models: None,
            api_key: None,
            kind: None,
            weight: 1,
            max_concurrent: None,
            only_models: None,
            reuse_after_errors: false,
        }
    }
}

/// Flags of the command line. A missing flag is empty.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    pub(crate) config: Option<PathBuf>,
    /// Accepts a file named by `config` that other users can write.
    pub(crate) allow_shared_config: bool,
    pub(crate) port: Option<u16>,
    pub(crate) host: Option<String>,
    pub(crate) backends: Vec<String>,
    /// Uses the demo's backends instead of the configured ones.
    pub(crate) demo: bool,
    pub(crate) allow_public: bool,
}

/// Reads the file, the environment and the flags. The error contains all problems.
pub(crate) fn load(flags: &Flags) -> Result<Config, Problems> {
    read(flags, &Environment::from_process(), Path::new(""))
}

/// Returns the bounds of `archive/` and `failed/` from the environment.
pub(crate) fn usage_bounds() -> Result<(Keep, Keep), Problems> {
    usage::read_bounds(&Environment::from_process())
}

/// [`load`] without the environment, for tests of other modules.
#[cfg(test)]
pub(crate) fn load_without_environment(flags: &Flags) -> Result<Config, Problems> {
    read(flags, &Environment::new([]), Path::new(""))
}

/// [`load`] with all of its inputs as parameters, so that tests do not change their process.
fn read(flags: &Flags, env: &Environment, directory: &Path) -> Result<Config, Problems> {
    let mut problems = ProblemList::default();
    let source = file::find(flags, env, directory, &mut problems);
    let document = source.as_ref().map(TomlDocument::parse);
    if let Some(document) = &document {
        document.check_names(&mut problems);
    }

    let mut layers = Layers::new(document.as_ref(), env, &mut problems);
    let server = server(&mut layers, flags);
    let upstream = upstream(&mut layers);
    let log = log(&mut layers);
    let usage = usage::read(&mut layers, env);
    let mut origins = layers.into_origins();
    let found = backends::read(flags, env, document.as_ref(), &mut problems);
    let aliases = document.as_ref().map_or_else(Vec::new, |document| {
        aliases::read(document, &mut origins, &mut problems)
    });
    let mut variables = found.key_variables;
    variables.extend(usage.as_ref().map(|usage| usage.token_env.clone()));
    env.check_names(&variables, &mut problems);
    origins.backends = found.origins;

    if let Some(document) = document {
        problems = document.all_problems(problems);
    }
    match (problems.into_result(), server, upstream, log, usage) {
        (Ok(()), Some(server), Some(upstream), Some(log), Some(usage)) => Ok(Config {
            server,
            upstream,
            log,
            usage,
            backends: found.backends,
            aliases,
            file: source.map(|source| source.name),
            origins,
        }),
        (Err(problems), ..) => Err(problems),
        // Unreachable: a missing value always adds a problem.
        (Ok(()), ..) => Err(Problems::one("the configuration could not be read".into())),
    }
}

// Each function reads all of its settings first and applies `?` at the end, so that all problems are
// reported at once.

fn server(layers: &mut Layers<'_>, flags: &Flags) -> Option<ServerConfig> {
    let port = flags.port.map(|port| port.to_string());
    let allow_public = flags.allow_public.then_some("true");

    let host = layers.setting(&settings::HOST, flags.host.as_deref(), values::host);
    let port = layers.setting(&settings::PORT, port.as_deref(), values::port);
    let allow_public = layers.setting(&settings::ALLOW_PUBLIC, allow_public, values::boolean);
    let hosts = layers.optional(&settings::HOSTS, values::hosts);
    let proxies = layers.optional(&settings::TRUSTED_PROXIES, values::networks);
    let workers = layers.setting(&settings::WORKERS, None, values::workers);
    let drain_timeout = layers.setting(&settings::DRAIN_TIMEOUT, None, values::drain_timeout);
    let max_body = layers.setting(&settings::MAX_BODY, None, values::max_body);
    let body_memory = layers.setting(&settings::BODY_MEMORY, None, values::body_memory);
    let body_timeout = layers.setting(&settings::BODY_TIMEOUT, None, values::timeout);
    let min_body_rate = layers.setting(&settings::MIN_BODY_RATE, None, values::body_rate);
    let send_timeout = layers.setting(&settings::SEND_TIMEOUT, None, values::timeout);
    let stall_timeout = layers.setting(&settings::STALL_TIMEOUT, None, values::timeout);
    let max_connections = layers.optional(&settings::MAX_CONNECTIONS, values::connections);
    let per_address = &settings::MAX_CONNECTIONS_PER_ADDRESS;
    let max_connections_per_address = layers.optional(per_address, values::connections);
    let idle_timeout = layers.setting(&settings::CLIENT_IDLE_TIMEOUT, None, values::timeout);
    let max_header = layers.setting(&settings::MAX_HEADER, None, values::max_header);
    let max_streams = layers.setting(&settings::MAX_STREAMS, None, values::streams);
    let tunnel_idle = layers.setting(&settings::TUNNEL_IDLE, None, values::timeout);
    let max_resets = layers.setting(&settings::MAX_RESETS, None, values::resets);
    let queue = layers.setting(&settings::QUEUE, None, values::queue);
    let queue_timeout = layers.setting(&settings::QUEUE_TIMEOUT, None, values::timeout);
    let unknown_endpoints = layers.setting(&settings::UNKNOWN_ENDPOINTS, None, |raw| {
        values::word(raw, &UnknownEndpoints::WORDS)
    });
    if let (Some(host), Some(false)) = (host, allow_public) {
        check_reach(host, layers);
    }
    Some(ServerConfig {
        host: host?,
        port: port?,
        allow_public: allow_public?,
        hosts: hosts.ok()?.unwrap_or_default(),
        trusted_proxies: proxies.ok()?.unwrap_or_default(),
        workers: workers?,
        drain_timeout: drain_timeout?,
        max_body: max_body?,
        body_memory: body_memory?,
        body_timeout: body_timeout?,
        min_body_rate: min_body_rate?,
        send_timeout: send_timeout?,
        stall_timeout: stall_timeout?,
        max_connections: max_connections.ok()?,
        max_connections_per_address: max_connections_per_address.ok()?,
        idle_timeout: idle_timeout?,
        max_header: max_header?,
        max_streams: max_streams?,
        tunnel_idle: tunnel_idle?,
        max_resets: max_resets?,
        queue: queue?,
        queue_timeout: queue_timeout?,
        unknown_endpoints: unknown_endpoints?,
    })
}

fn upstream(layers: &mut Layers<'_>) -> Option<UpstreamConfig> {
    let connect = layers.setting(&settings::CONNECT_TIMEOUT, None, values::timeout);
    let first_byte = layers.setting(&settings::FIRST_BYTE_TIMEOUT, None, values::timeout);
    let idle = layers.setting(&settings::IDLE_TIMEOUT, None, values::timeout);
    let forward_headers = layers.optional(&settings::FORWARD_HEADERS, |raw| {
        values::list(raw, |name| {
            let refused = |why| format!("{} {why}", problems::quoted(name));
            HeaderPatterns::parse_one(name).map_err(refused)
        })
    });
    let interval = layers.setting(&settings::PROBE_INTERVAL, None, values::probe_interval);
    let probe = layers.setting(&settings::PROBE_TIMEOUT, None, values::timeout);
    let max_models = layers.setting(&settings::MAX_MODELS, None, values::max_models);
    Some(UpstreamConfig {
        connect_timeout: connect?,
        first_byte_timeout: first_byte?,
        idle_timeout: idle?,
        forward_headers: HeaderPatterns::new(forward_headers.ok()?.unwrap_or_default()),
        probe_interval: interval?,
        probe_timeout: probe?,
        max_models: max_models?,
    })
}

fn log(layers: &mut Layers<'_>) -> Option<LogConfig> {
    let requests = layers.setting(&settings::LOG_REQUESTS, None, values::boolean);
    Some(LogConfig {
        requests: requests?,
    })
}

/// True for a loopback address, also for IPv4 written as IPv6.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Rejects a public address without `allow_public`: closed by default (L11).
fn check_reach(host: IpAddr, layers: &mut Layers<'_>) {
    if is_loopback(host) {
        return;
    }
    let what = format!(
        "{host} is not a loopback address: every client that reaches it could use the backends; \
         keep 127.0.0.1, or if that is intended set server.allow_public = true, \
         LLMLB_ALLOW_PUBLIC=true or --allow-public"
    );
    layers.reject(&settings::HOST, &what);
}
