//! Settings that apply to single requests and connections. A reload of the configuration replaces all of
//! them at once, together with the backends and aliases, so that a request never gets a mixture.

use std::time::Duration;

use crate::body_deadline::BodyPace;
use crate::config::{self, Config, LimitMode, Networks, UnknownEndpoints};
use crate::headers::HeaderPatterns;
use crate::known_hosts::KnownHosts;

#[derive(Debug)]
pub(crate) struct RequestSettings {
    pub(crate) max_body: usize,
    /// Host names of a private server, which rejects requests of foreign web pages. `None` if the
    /// server is public: not bound to loopback, or with `server.allow_public`.
    pub(crate) private_hosts: Option<KnownHosts>,
    /// Host names of this server, for the dashboard: its data is also on a public server not for foreign web pages.
    pub(crate) hosts: KnownHosts,
    pub(crate) unknown_endpoints: UnknownEndpoints,
    pub(crate) limits: LimitMode,
    /// Reverse proxies whose reports of their clients' addresses are trusted
    /// (`server.trusted_proxies`).
    pub(crate) proxies: Networks,
    pub(crate) client_limits: ClientLimits,
    pub(crate) http: HttpLimits,
    pub(crate) timeouts: ForwardTimeouts,
    /// Client header fields that are forwarded in addition to the default ones
    /// (`upstream.forward_headers`).
    pub(crate) forward_headers: HeaderPatterns,
    /// True if every response of a backend has `x-llmlb-why`.
    pub(crate) why_header: bool,
}

/// Limits on clients that send or read slowly, or cancel many requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLimits {
    /// Minimum rate at which a client must send a request's body.
    pub(crate) body: BodyPace,
    /// Maximum time for which a client may read a waiting response too slowly
    /// (`server.send_timeout`). After that time its connection is closed, or its HTTP/2 stream is
    /// reset.
    pub(crate) send: Duration,
    /// Maximum number of requests per minute that a client may cancel on one HTTP/2 connection
    /// (`server.max_resets`).
    pub(crate) max_resets: u32,
}

/// Limits on a client connection, which keeps the limits with which it began, even after a reload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpLimits {
    /// Maximum time for which a connection may have no request, and for which a head may arrive
    /// (`server.idle_timeout`).
    pub(crate) idle: Duration,
    /// Maximum size of a request's head, in bytes (`server.max_header`).
    pub(crate) max_header: usize,
    /// Maximum number of streams that a client may have open on one HTTP/2 connection.
    pub(crate) max_streams: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct ForwardTimeouts {
    /// Maximum time until a backend's response begins (`upstream.first_byte_timeout`).
    pub(crate) first_byte: Duration,
    /// Maximum time between two chunks of a backend's response (`upstream.idle_timeout`).
    pub(crate) idle: Duration,
    /// Minimum rate at which a client must send a body that is forwarded as it arrives.
    pub(crate) body: BodyPace,
    /// Maximum time for which a tunnel may carry no bytes (`server.tunnel_idle`).
    pub(crate) tunnel_idle: Duration,
}

impl RequestSettings {
    /// Returns the settings of a configuration. `machine` is the name of this machine, which a
    /// private server accepts in `Host`.
    pub(crate) fn new(config: &Config, machine: Option<String>) -> Self {
        let server = &config.server;
        let is_private = config::is_loopback(server.host) && !server.allow_public;
        let body = BodyPace {
            window: server.body_timeout,
            rate: server.min_body_rate as u64,
        };
        Self {
            max_body: server.max_body,
            private_hosts: is_private.then(|| KnownHosts::new(&server.hosts, machine.clone())),
            hosts: KnownHosts::new(&server.hosts, machine),
            unknown_endpoints: server.unknown_endpoints,
            limits: server.limits,
            proxies: server.trusted_proxies.clone(),
            client_limits: ClientLimits {
                body,
                send: server.send_timeout,
                max_resets: server.max_resets,
            },
            http: HttpLimits {
                idle: server.idle_timeout,
                max_header: server.max_header,
                max_streams: server.max_streams,
            },
            timeouts: ForwardTimeouts {
                first_byte: config.upstream.first_byte_timeout,
                idle: config.upstream.idle_timeout,
                body,
                tunnel_idle: server.tunnel_idle,
            },
            forward_headers: config.upstream.forward_headers.clone(),
            why_header: config.telemetry.why_header,
        }
    }

    #[cfg(test)]
    pub(crate) fn default_for_tests() -> std::sync::Arc<Self> {
        let flags = config::Flags {
            demo: true, // Reads no `llmlb.toml` of the current directory.
            ..config::Flags::default()
        };
        let config = config::load_without_environment(&flags);
        std::sync::Arc::new(Self::new(&config.unwrap(), None))
    }
}
