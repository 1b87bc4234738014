//! The configuration: read once at the start, and validated as a whole.
//!
//! The environment overrides the file, and flags override both. All errors are reported at once,
//! each with its file and line, variable or flag (promise L12). [`settings`] is the table of all
//! settings;
//! parsing, `llmlb check` and the table in `docs/configuration.md` are derived from it.

mod aliases;
mod backends;
pub(crate) mod data;
mod document;
mod effective;
pub(crate) mod env;
mod file;
mod fleet;
mod instance;
mod key_limits;
mod keys;
mod kind;
mod layers;
mod networks;
mod origin;
mod problems;
mod reload;
mod schema;
mod secret;
mod setting;
pub(crate) mod settings;
mod status;
mod suggest;
mod tables;
mod telemetry;
mod types;
mod url;
mod usage;
mod values;

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

pub(crate) use aliases::Alias;
pub(crate) use backends::is_among;
pub(crate) use instance::Instance;
pub(crate) use key_limits::{Budget, KeyLimits, Period};
pub(crate) use keys::fields::is_name as is_key_name;
pub(crate) use keys::fields::{model_patterns, parse_expiry};
pub(crate) use keys::{
    ConfiguredKey, ConfiguredSecret, KeyRights, MAX_SECRET, SecretHash, bytes_from_hex,
    bytes_to_hex,
};
pub(crate) use kind::Kind;
#[cfg(any(test, fuzzing))]
pub(crate) use networks::Network;
pub(crate) use networks::Networks;
pub(crate) use origin::{Origin, Origins};
pub(crate) use problems::Problems;
pub(crate) use reload::Changes;
pub(crate) use schema::schema;
pub(crate) use secret::Secret;
pub(crate) use settings::{
    FleetConfig, LimitMode, LogFormat, MAX_KEYS, MAX_TOKENS, MOST_CONNECTIONS, ServerConfig,
    TelemetryConfig, UnknownEndpoints,
};
pub(crate) use status::ConfigStatus;
pub(crate) use url::BackendUrl;
pub(crate) use usage::{Format, OnFailure, Receiver};
pub(crate) use values::span;

use spool::Token;

use document::TomlDocument;
use env::Environment;
use keys::ReadKeys;
use layers::Layers;
use problems::{ProblemList, one_line};
use setting::{Defaults, Section, Source};
use settings::{LogConfig, UpstreamConfig, UsageConfig};

/// The validated configuration.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    pub(crate) server: ServerConfig,
    pub(crate) upstream: UpstreamConfig,
    pub(crate) log: LogConfig,
    pub(crate) telemetry: TelemetryConfig,
    pub(crate) usage: UsageConfig,
    pub(crate) fleet: FleetConfig,
    /// Bearer token for the receiver of usage records, from the variable that `usage.token_env`
    /// names.
    pub(crate) usage_token: Option<Token>,
    /// Configured backends. If there are none, the server discovers backends on this machine.
    pub(crate) backends: Vec<Backend>,
    /// Sorted by name.
    pub(crate) aliases: Vec<Alias>,
    /// API keys of clients that the file declares. The data directory may contain more.
    pub(crate) keys: Vec<ConfiguredKey>,
    /// Path of the configuration file that was read, as the flag or variable names it, or the default.
    pub(crate) file: Option<PathBuf>,
    /// Short hash of the configuration file's content.
    pub(crate) file_hash: Option<String>,
    /// Origin of each value (file and line, variable or flag), shown by `llmlb check`.
    pub(crate) origins: Origins,
}

/// An LLM server that receives requests, as the configuration describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    /// Unique.
    pub(crate) name: String,
    /// Name that clients see in `x-llmlb-backend`. A default name is not shown to them, because it
    /// contains the backend's host and port.
    pub(crate) label: String,
    /// Unique.
    pub(crate) url: BackendUrl,
    /// Models that the configuration lists for the backend, used instead of the backend's own list.
    pub(crate) models: Option<Vec<String>>,
    pub(crate) api_key: Option<Secret>,
    /// Program or service that runs at the backend. `None` if the configuration names no kind:
    /// probes then detect the kind.
    pub(crate) kind: Option<Kind>,
    /// Share of requests that the backend gets, relative to the other backends.
    pub(crate) weight: u32,
    /// Maximum number of concurrent requests at the backend.
    pub(crate) max_concurrent: Option<u32>,
    /// Models of the backend that clients may use; others are hidden. A `*` at the end of a name
    /// matches any rest.
    pub(crate) only_models: Option<Vec<String>>,
    /// True if backend connections are also reused after an error response to a request with a body
    /// (`backend.reuse_after_errors`). Only safe for backends that always read the whole request.
    pub(crate) reuse_after_errors: bool,
    /// True if the backend accepts WebSockets on `/v1/responses`.
    pub(crate) websocket: bool,
}

impl Backend {
    pub(crate) fn new(name: String, url: BackendUrl) -> Self {
        Self {
            label: name.clone(),
            name,
            url,
            models: None,
            api_key: None,
            kind: None,
            weight: Defaults.get(&settings::BACKEND_WEIGHT),
            max_concurrent: None,
            only_models: None,
            reuse_after_errors: Defaults.get(&settings::BACKEND_REUSE),
            websocket: Defaults.get(&settings::BACKEND_WEBSOCKET),
        }
    }

    /// True if the backend's URL names this address, which is the server's own: requests to such a
    /// backend would loop.
    pub(crate) fn leads_to(&self, own: SocketAddr) -> bool {
        let authority = self.url.authority();
        let host = match authority.host() {
            "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            host => match host.trim_matches(['[', ']']).parse() {
                Ok(host) => host,
                Err(_) => return false,
            },
        };
        let own_ip = own.ip().to_canonical();
        let is_own_host =
            host.to_canonical() == own_ip || (own_ip.is_unspecified() && is_loopback(host));
        authority.port_u16() == Some(own.port()) && is_own_host
    }
}

/// Flags of the command line that override settings. A flag that is not given is `None`, false or an
/// empty list.
#[derive(Debug, Default, Clone)]
pub(crate) struct Flags {
    pub(crate) config: Option<PathBuf>,
    /// True to accept a file named by `config` although other users can write it.
    pub(crate) allow_shared_config: bool,
    pub(crate) port: Option<u16>,
    pub(crate) host: Option<String>,
    pub(crate) backends: Vec<String>,
    /// True to use the demo's backends instead of the configured ones.
    pub(crate) demo: bool,
    pub(crate) allow_public: bool,
    /// Function that returns true if this data directory, or the user's own, has API keys (`llmlb
    /// key`). A public address needs keys.
    pub(crate) has_stored_keys: Option<fn(Option<&Path>) -> bool>,
    pub(crate) tls_cert: Option<String>,
    pub(crate) tls_key: Option<String>,
}

/// Reads the configuration from the file, the environment and the flags. The error contains all
/// problems.
pub(crate) fn load(flags: &Flags) -> Result<Config, Problems> {
    read(flags, &Environment::from_process(), Path::new(""))
}

/// Reads the configuration of a running server again. If the file is missing now, that is a problem
/// and not an empty configuration, which would discard all settings. A pipe is a problem too: its content was read at the start, and waiting
/// for more could take forever.
pub(crate) fn load_again(flags: &Flags, had_file: bool) -> Result<Config, Problems> {
    if let Some(path) = watched_path(flags).filter(|path| is_pipe(path)) {
        let mut problems = ProblemList::default();
        let why = "a pipe cannot be read again; restart the server to change its configuration";
        problems.add_file(&one_line(&path.to_string_lossy()), why);
        problems.into_result()?;
    }
    let mut config = load(flags)?;
    if flags.demo {
        config.adapt_to_demo();
    }
    if had_file && config.file.is_none() {
        let mut problems = ProblemList::default();
        problems.add_file(file::DEFAULT_NAME, "the file does not exist any more");
        problems.into_result()?;
    }
    Ok(config)
}

impl Config {
    /// Removes settings that a demo does not use. Its usage records are never delivered, its data directory
    /// belongs to this machine, and the ids of its backends are not shared with other servers. Returns the
    /// receiver of usage records that the configuration names.
    pub(crate) fn adapt_to_demo(&mut self) -> Option<Receiver> {
        self.fleet.store = None;
        self.usage.url.take()
    }
}

/// Returns the path of the configuration file that a running server watches. `None` for a demo
/// without `--config`.
pub(crate) fn watched_path(flags: &Flags) -> Option<PathBuf> {
    file::path(flags, &Environment::from_process()).map(|(path, _)| path)
}

/// True if the file is a pipe, such as a shell's `<(…)`, or a device: it can be read only once.
pub(crate) fn is_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Returns the API keys that the configuration file declares, without their secrets. Problems in
/// other sections of the file are not reported.
pub(crate) fn declared_keys(flags: &Flags) -> Result<Vec<(KeyRights, Origin)>, Problems> {
    let env = Environment::from_process();
    let mut problems = ProblemList::default();
    let source = file::find(flags, &env, Path::new(""), &mut problems);
    let mut keys = Vec::new();
    if let Some(document) = source.as_ref().map(TomlDocument::parse) {
        keys = keys::read_rights(&document, &mut problems);
        problems = document.all_problems(problems);
    }
    problems.into_result()?;
    Ok(keys)
}

/// Like [`load`], but ignores environment variables, so that tests of other modules do not depend
/// on them.
#[cfg(test)]
pub(crate) fn load_without_environment(flags: &Flags) -> Result<Config, Problems> {
    read(flags, &Environment::new([]), Path::new(""))
}

/// Like [`load`], but with all of its inputs as parameters, so that tests need not change the
/// environment or the current directory of their process.
fn read(flags: &Flags, env: &Environment, directory: &Path) -> Result<Config, Problems> {
    let mut problems = ProblemList::default();
    let source = file::find(flags, env, directory, &mut problems);
    let document = source.as_ref().map(TomlDocument::parse);
    if let Some(document) = &document {
        document.check_names(|_| true, &mut problems);
    }

    let keys = document
        .as_ref()
        .map_or_else(ReadKeys::default, |document| {
            keys::read(document, env, &mut problems)
        });
    let mut layers = Layers::new(document.as_ref(), env, flags, &mut problems);
    let server = ServerConfig::read(&mut layers);
    check_tls(&server, &mut layers);
    let upstream = UpstreamConfig::read(&mut layers);
    let log = LogConfig::read(&mut layers);
    let telemetry = TelemetryConfig::read(&mut layers);
    let usage = UsageConfig::read_from(&mut layers);
    usage.check_reach(&mut layers);
    let has_stored_keys = || {
        let has_keys = flags.has_stored_keys;
        has_keys.is_some_and(|has_keys| has_keys(usage.data_dir.as_deref()))
    };
    check_reach(&server, &mut layers, flags, || {
        keys.is_declared || has_stored_keys()
    });
    let usage_token = usage.token(&mut layers, env);
    let fleet = FleetConfig::read(&mut layers);
    let mut origins = layers.into_origins();
    let found = backends::read(flags, env, document.as_ref(), &mut problems);
    let aliases = document.as_ref().map_or_else(Vec::new, |document| {
        aliases::read(document, &mut origins, &mut problems)
    });
    let mut variables = found.key_variables;
    variables.push(usage.token_env.clone());
    variables.extend(keys.variables);
    env.check_names(&variables, &mut problems);
    origins.backends = found.origins;
    origins.keys = keys.origins;

    if let Some(document) = document {
        problems = document.all_problems(problems);
    }
    let file_hash = source.as_ref().map(file::ConfigFile::hash);
    problems
        .into_result()
        .map_err(|problems| problems.of_file(file_hash.clone()))?;
    Ok(Config {
        file_hash,
        server,
        upstream,
        log,
        telemetry,
        usage,
        fleet,
        usage_token,
        backends: found.backends,
        aliases,
        keys: keys.keys,
        file: source.map(|source| source.name),
        origins,
    })
}

/// True for a loopback address, even for an IPv4 address written as IPv6.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Rejects a listen address that is not loopback, unless clients need an API key or
/// `server.allow_public` is set. By default only this machine can reach the server (promise L11).
fn check_reach(
    server: &ServerConfig,
    layers: &mut Layers<'_>,
    flags: &Flags,
    has_keys: impl FnOnce() -> bool,
) {
    let is_known = layers.is_valid(&settings::HOST) && layers.is_valid(&settings::ALLOW_PUBLIC);
    if !is_known || server.allow_public || is_loopback(server.host) || has_keys() {
        return;
    }
    let host = server.host;
    // Name the file in the suggested command: the file may name the data directory, and the key
    // must be created in that one.
    let file = flags.config.as_ref();
    let file = file.map_or_else(String::new, |file| format!(" --config {}", file.display()));
    let what = format!(
        "{host} is not a loopback address: every client that reaches it could use the backends; \
         create an API key (llmlb key add NAME{file}), or keep 127.0.0.1, or to run without keys set \
         server.allow_public = true, LLMLB_ALLOW_PUBLIC=true or --allow-public"
    );
    layers.reject(&settings::HOST, &what);
}

/// Rejects a certificate without its private key, a private key without its certificate, and
/// authorities of client certificates on a server without TLS. The files themselves are read by
/// `tls/`.
fn check_tls(server: &ServerConfig, layers: &mut Layers<'_>) {
    let is_known = layers.is_valid(&settings::TLS_CERT) && layers.is_valid(&settings::TLS_KEY);
    if !is_known {
        return;
    }
    let needs = |other: &str| {
        format!("this setting needs {other}: set server.tls_cert and server.tls_key, or neither")
    };
    match (&server.tls_cert, &server.tls_key) {
        (Some(_), None) => layers.reject(&settings::TLS_CERT, &needs("server.tls_key")),
        (None, Some(_)) => layers.reject(&settings::TLS_KEY, &needs("server.tls_cert")),
        (None, None) if server.tls_client_ca.is_some() => {
            let what = "client certificates need TLS: set server.tls_cert and server.tls_key too";
            layers.reject(&settings::TLS_CLIENT_CA, what);
        }
        _ => {}
    }
}
