//! Everything that can be set: read once, checked whole.
//!
//! A file, then the environment, then flags; each replaces what the one before it says. Nothing is
//! guessed: whatever is wrong anywhere is reported, all of it at once, each with its place (L12).
//! [`settings`] is the one table of what can be set; the page `docs/configuration.md` comes from it.

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
pub(crate) use usage::{Format, OnFailure, Receiver, Usage};
pub(crate) use values::span;

use spool::Keep;

use crate::headers::HeaderPatterns;
use document::Document;
use env::Environment;
use layers::Layers;
use problems::Gathered;

/// What the server runs with.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) server: Server,
    pub(crate) upstream: Upstream,
    pub(crate) log: Log,
    pub(crate) usage: Usage,
    /// Empty if none was set: then the caller looks for some.
    pub(crate) backends: Vec<Backend>,
    /// In the order of their names.
    pub(crate) aliases: Vec<Alias>,
    /// The file that was read, as it was named.
    pub(crate) file: Option<PathBuf>,
    /// Where each value came from.
    pub(crate) origins: Origins,
}

#[derive(Debug, Clone)]
pub(crate) struct Server {
    pub(crate) host: IpAddr,
    /// 0 asks for any free port.
    pub(crate) port: u16,
    pub(crate) allow_public: bool,
    /// Further names and addresses by which the server may be called, in lower case.
    pub(crate) hosts: Vec<String>,
    /// The peers whose word on a client's address counts.
    pub(crate) trusted_proxies: Networks,
    pub(crate) workers: usize,
    pub(crate) drain_timeout: Duration,
    /// In bytes.
    pub(crate) max_body: usize,
    /// In bytes, for all clients together.
    pub(crate) body_memory: usize,
    /// Until a client has sent enough of its request's body.
    pub(crate) body_timeout: Duration,
    /// In bytes per second.
    pub(crate) min_body_rate: usize,
    /// Until a client has taken enough of its answer.
    pub(crate) send_timeout: Duration,
    /// The same, and for the body of a request that is passed on, while other requests wait.
    pub(crate) stall_timeout: Duration,
    /// `None`: derived from the limit of open files.
    pub(crate) max_connections: Option<usize>,
    /// `None`: a part of all connections.
    pub(crate) max_connections_per_address: Option<usize>,
    /// For a connection without a request, and for the head of one.
    pub(crate) idle_timeout: Duration,
    /// In bytes.
    pub(crate) max_header: usize,
    /// On one HTTP/2 connection.
    pub(crate) max_streams: u32,
    /// Between two pieces that either side of a tunnel sends.
    pub(crate) tunnel_idle: Duration,
    /// Requests per minute that one HTTP/2 connection may cancel.
    pub(crate) max_resets: u32,
    /// How many requests may wait for a backend.
    pub(crate) queue: usize,
    pub(crate) queue_timeout: Duration,
    /// Forward requests to endpoints that are not known.
    pub(crate) unknown_endpoints: UnknownEndpoints,
}

/// What is done with a request to an endpoint that is not known.
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
pub(crate) struct Upstream {
    pub(crate) connect_timeout: Duration,
    /// Until an answer begins.
    pub(crate) first_byte_timeout: Duration,
    /// Between two pieces of an answer.
    pub(crate) idle_timeout: Duration,
    /// Clients' fields that are forwarded besides the usual ones.
    pub(crate) forward_headers: HeaderPatterns,
    pub(crate) probe_interval: Duration,
    pub(crate) probe_timeout: Duration,
    /// Of one backend.
    pub(crate) max_models: usize,
}

#[derive(Debug, Clone)]
pub(crate) struct Log {
    /// One line for each request.
    pub(crate) requests: bool,
}

/// An LLM server to send requests to.
#[derive(Debug, Clone)]
pub(crate) struct Backend {
    /// Unique.
    pub(crate) name: String,
    /// What clients see instead: the name only if the configuration gives it. Otherwise it would
    /// tell them host and port.
    pub(crate) label: String,
    /// Unique.
    pub(crate) url: BackendUrl,
    /// Used instead of asking the backend.
    pub(crate) models: Option<Vec<String>>,
    pub(crate) api_key: Option<Secret>,
    /// Otherwise it is found out.
    pub(crate) kind: Option<Kind>,
    /// Its share of the work.
    pub(crate) weight: u32,
    /// How many requests it gets at a time.
    pub(crate) max_concurrent: Option<u32>,
    /// Which of its models are used; a `*` at the end of one stands for any rest.
    pub(crate) only_models: Option<Vec<String>>,
    /// Its connections are kept after error responses too.
    pub(crate) reuse_after_errors: bool,
}

impl Backend {
    /// One of which nothing else is known.
    pub(crate) fn at(name: String, url: BackendUrl) -> Self {
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

/// What was typed. A flag that was not typed is empty.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    pub(crate) config: Option<PathBuf>,
    /// The file that `config` names may be one that others can write.
    pub(crate) allow_shared_config: bool,
    pub(crate) port: Option<u16>,
    pub(crate) host: Option<String>,
    pub(crate) backends: Vec<String>,
    /// The caller brings the backends: none of the configured ones is used.
    pub(crate) demo: bool,
    pub(crate) allow_public: bool,
}

/// Reads the file, the environment and the flags, and reports all that is wrong with any of them.
pub(crate) fn load(flags: &Flags) -> Result<Config, Problems> {
    read(flags, &Environment::of_this_process(), Path::new(""))
}

/// Bounds for `archive/` and `failed/` that the environment sets.
pub(crate) fn usage_bounds() -> Result<(Keep, Keep), Problems> {
    usage::read_bounds(&Environment::of_this_process())
}

/// [`load`] for tests elsewhere in this crate: whatever the environment says.
#[cfg(test)]
pub(crate) fn load_without_environment(flags: &Flags) -> Result<Config, Problems> {
    read(flags, &Environment::new([]), Path::new(""))
}

/// [`load`] with everything it depends on, so that tests need not change their process.
fn read(flags: &Flags, env: &Environment, directory: &Path) -> Result<Config, Problems> {
    let mut problems = Gathered::default();
    let source = file::find(flags, env, directory, &mut problems);
    let document = source.as_ref().map(Document::parse);
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
        problems = document.settle(problems);
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
        // A value is missing only if a problem says why.
        (Ok(()), ..) => Err(Problems::one("the configuration could not be read".into())),
    }
}

// Every setting is read before the first missing one ends the function: all problems at once.

fn server(layers: &mut Layers<'_>, flags: &Flags) -> Option<Server> {
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
    Some(Server {
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

fn upstream(layers: &mut Layers<'_>) -> Option<Upstream> {
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
    Some(Upstream {
        connect_timeout: connect?,
        first_byte_timeout: first_byte?,
        idle_timeout: idle?,
        forward_headers: HeaderPatterns::new(forward_headers.ok()?.unwrap_or_default()),
        probe_interval: interval?,
        probe_timeout: probe?,
        max_models: max_models?,
    })
}

fn log(layers: &mut Layers<'_>) -> Option<Log> {
    let requests = layers.setting(&settings::LOG_REQUESTS, None, values::boolean);
    Some(Log {
        requests: requests?,
    })
}

/// Whether only this machine reaches an address, also if IPv4 is written as IPv6.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Closed by default (L11).
fn check_reach(host: IpAddr, layers: &mut Layers<'_>) {
    if is_loopback(host) {
        return;
    }
    let what = format!(
        "{host} is not a loopback address: anyone who reaches it could use the backends; \
         keep 127.0.0.1, or set server.allow_public = true, LLMLB_ALLOW_PUBLIC=true or \
         --allow-public if that is meant"
    );
    layers.refuse(&settings::HOST, &what);
}
