//! The section `[server]`.

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZero;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use super::super::instance::Instance;
use super::super::networks::Networks;
use super::super::setting::DefaultValue::{Constant, Described};
use super::super::setting::Reload::{AfterRestart, Applies};
use super::super::setting::{Flag, Setting, section};
use super::super::types::{
    Boolean, ByteSize, DAY, FilePath, HostNames, InstanceName, IpAddress, MINUTE, NetworkList,
    Number, Optional, SECOND, TIMEOUT, TimeSpan, Word,
};

section! {
    /// The section `[server]`.
    ServerConfig {
        host: IpAddr = HOST,
        /// Port to listen on. 0 selects any free port.
        port: u16 = PORT,
        allow_public: bool = ALLOW_PUBLIC,
        /// Additional host names and addresses that requests may have in `Host`, in lower case.
        hosts: Vec<String> = HOSTS,
        /// Proxies whose `X-Forwarded-For` and `Forwarded` are trusted.
        trusted_proxies: Networks = TRUSTED_PROXIES,
        /// Path of the server's certificate chain, in PEM. `None`: clients connect without TLS.
        tls_cert: Option<PathBuf> = TLS_CERT,
        tls_key: Option<PathBuf> = TLS_KEY,
        /// Path of the authorities of client certificates. `None`: clients need no certificate.
        tls_client_ca: Option<PathBuf> = TLS_CLIENT_CA,
        workers: usize = WORKERS,
        drain_timeout: Duration = DRAIN_TIMEOUT,
        /// Maximum size of a buffered request body, in bytes.
        max_body: usize = MAX_BODY,
        /// Maximum memory for connections, heads, bodies and unsent responses of all clients, in bytes.
        body_memory: usize = BODY_MEMORY,
        /// Window over which a request body must reach `min_body_rate`.
        body_timeout: Duration = BODY_TIMEOUT,
        /// Minimum rate of request bodies, and over HTTP/2 of responses that wait for the client,
        /// in bytes per second.
        min_body_rate: usize = MIN_BODY_RATE,
        /// Maximum time for which a client may stall a response: over HTTP/1.1 it accepts no bytes,
        /// over HTTP/2 fewer bytes than `min_body_rate`. Then the connection is closed, or the
        /// HTTP/2 stream reset.
        send_timeout: Duration = SEND_TIMEOUT,
        /// Replaces `send_timeout`, and `body_timeout` of streamed bodies, while other requests
        /// wait for a slot: a client that stalls must not occupy a slot that others need.
        stall_timeout: Duration = STALL_TIMEOUT,
        /// Maximum number of client connections. `None`: derived from the limit of open files.
        max_connections: Option<usize> = MAX_CONNECTIONS,
        /// Maximum number of connections of one client address. `None`: a quarter of all
        /// connections.
        max_connections_per_address: Option<usize> = MAX_CONNECTIONS_PER_ADDRESS,
        /// Maximum time for which a client connection may have no request, and for the head of a
        /// request to arrive.
        idle_timeout: Duration = CLIENT_IDLE_TIMEOUT,
        /// Maximum size of the head of a request, and of the trailers of its body, in bytes.
        max_header: usize = MAX_HEADER,
        /// Maximum number of concurrent streams on one HTTP/2 connection.
        max_streams: u32 = MAX_STREAMS,
        /// Maximum time without data in either direction of a tunnel, such as a WebSocket.
        tunnel_idle: Duration = TUNNEL_IDLE,
        /// Maximum number of requests per minute that a client may cancel on one HTTP/2 connection.
        max_resets: u32 = MAX_RESETS,
        /// Maximum number of requests that wait for a backend's slot.
        queue: usize = QUEUE,
        queue_timeout: Duration = QUEUE_TIMEOUT,
        unknown_endpoints: UnknownEndpoints = UNKNOWN_ENDPOINTS,
        limits: LimitMode = LIMITS,
        /// Name of this server in its usage records. `None`: host name and port.
        instance: Option<Instance> = INSTANCE,
    }
}

/// Treatment of requests to endpoints that llmlb does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnknownEndpoints {
    Forward,
    Reject,
}

/// Treatment of requests beyond a limit of their API key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitMode {
    Enforce,
    /// Serve the requests, and count and log those that would be refused.
    DryRun,
}

pub(crate) const MOST_CONNECTIONS: usize = 1_000_000;
const MAX_WORKERS: usize = 1024;
const FILE: Optional<FilePath> = Optional {
    of: FilePath,
    unset: "-",
};

pub(crate) static HOST: Setting<IpAddr> = Setting {
    name: "server.host",
    reload: AfterRestart,
    variable: Some("LLMLB_HOST"),
    flag: Some(Flag {
        long: "--host",
        short: Some("-H"),
        text: |flags| flags.host.clone(),
    }),
    default: Constant(|| Ipv4Addr::LOCALHOST.into()),
    value: &IpAddress,
    about: "Address to listen on.",
};
pub(crate) static PORT: Setting<u16> = Setting {
    name: "server.port",
    reload: AfterRestart,
    variable: Some("LLMLB_PORT"),
    flag: Some(Flag {
        long: "--port",
        short: Some("-p"),
        text: |flags| flags.port.map(|port| port.to_string()),
    }),
    default: Constant(|| 32_768),
    value: &Number {
        range: 0..=u16::MAX,
    },
    about: "Port to listen on; 0 selects a free one.",
};
pub(crate) static ALLOW_PUBLIC: Setting<bool> = Setting {
    name: "server.allow_public",
    reload: AfterRestart,
    variable: Some("LLMLB_ALLOW_PUBLIC"),
    flag: Some(Flag {
        long: "--allow-public",
        short: None,
        text: |flags| flags.allow_public.then(|| "true".to_owned()),
    }),
    default: Constant(|| false),
    value: &Boolean,
    about: "Allow a listen address that other machines reach even if there are no API keys: then every client that reaches it can use the backends. With `true`, `Host` and web pages are not checked.",
};
pub(crate) static HOSTS: Setting<Vec<String>> = Setting {
    name: "server.hosts",
    reload: Applies,
    variable: Some("LLMLB_HOSTS"),
    flag: None,
    default: Described("none", Vec::new),
    value: &HostNames,
    about: "Additional host names that a loopback server accepts in `Host`, and whose web pages may use it.",
};
pub(crate) static TRUSTED_PROXIES: Setting<Networks> = Setting {
    name: "server.trusted_proxies",
    reload: Applies,
    variable: Some("LLMLB_TRUSTED_PROXIES"),
    flag: None,
    default: Described("none", Networks::default),
    value: &NetworkList,
    about: "Reverse proxies whose `X-Forwarded-For` or `Forwarded` is trusted for the client's address.",
};
pub(crate) static TLS_CERT: Setting<Option<PathBuf>> = Setting {
    name: "server.tls_cert",
    reload: AfterRestart,
    variable: Some("LLMLB_TLS_CERT"),
    flag: Some(Flag {
        long: "--tls-cert",
        short: None,
        text: |flags| flags.tls_cert.clone(),
    }),
    default: Described("no TLS", || None),
    value: &FILE,
    about: "File with the certificate chain of the server, in PEM: clients then connect with https.",
};
pub(crate) static TLS_KEY: Setting<Option<PathBuf>> = Setting {
    name: "server.tls_key",
    reload: AfterRestart,
    variable: Some("LLMLB_TLS_KEY"),
    flag: Some(Flag {
        long: "--tls-key",
        short: None,
        text: |flags| flags.tls_key.clone(),
    }),
    default: Described("no TLS", || None),
    value: &FILE,
    about: "File with the private key of `server.tls_cert`, in PEM and without a passphrase.",
};
pub(crate) static TLS_CLIENT_CA: Setting<Option<PathBuf>> = Setting {
    name: "server.tls_client_ca",
    reload: AfterRestart,
    variable: Some("LLMLB_TLS_CLIENT_CA"),
    flag: None,
    default: Described("none", || None),
    value: &FILE,
    about: "File with the certificates of authorities, in PEM: requests then need a client certificate that one of these authorities has signed.",
};
pub(crate) static WORKERS: Setting<usize> = Setting {
    name: "server.workers",
    reload: AfterRestart,
    variable: Some("LLMLB_WORKERS"),
    flag: None,
    default: Described("the number of CPUs", cpus),
    value: &Number {
        range: 1..=MAX_WORKERS,
    },
    about: "Number of threads that serve requests.",
};
pub(crate) static DRAIN_TIMEOUT: Setting<Duration> = Setting {
    name: "server.drain_timeout",
    reload: Applies,
    variable: Some("LLMLB_DRAIN_TIMEOUT"),
    flag: None,
    default: Constant(|| 30 * SECOND),
    value: &TimeSpan {
        range: Duration::ZERO..=DAY,
    },
    about: "Maximum time for requests to complete after a signal; the rest is aborted.",
};
pub(crate) static MAX_BODY: Setting<usize> = Setting {
    name: "server.max_body",
    reload: Applies,
    variable: Some("LLMLB_MAX_BODY"),
    flag: None,
    default: Constant(|| 32 << 20),
    value: &ByteSize::in_memory(1..=2 << 30),
    about: "Maximum size of a request body that is buffered to find its model.",
};
// The minimum is 1 MiB, since less would not suffice for a few connections.
pub(crate) static BODY_MEMORY: Setting<usize> = Setting {
    name: "server.body_memory",
    reload: Applies,
    variable: Some("LLMLB_BODY_MEMORY"),
    flag: None,
    default: Constant(|| 1 << 30),
    value: &ByteSize::in_memory(1 << 20..=1 << 40),
    about: "Maximum memory for connections, heads, buffered bodies and unsent responses of all clients.",
};
pub(crate) static BODY_TIMEOUT: Setting<Duration> = Setting {
    name: "server.body_timeout",
    reload: Applies,
    variable: Some("LLMLB_BODY_TIMEOUT"),
    flag: None,
    default: Constant(|| 30 * SECOND),
    value: &TIMEOUT,
    about: "Window over which a request body must arrive at `min_body_rate`.",
};
pub(crate) static MIN_BODY_RATE: Setting<usize> = Setting {
    name: "server.min_body_rate",
    reload: Applies,
    variable: Some("LLMLB_MIN_BODY_RATE"),
    flag: None,
    default: Constant(|| 1 << 10),
    value: &ByteSize::in_memory(1..=1 << 30),
    about: "Minimum bytes per second of a request body, and over HTTP/2 of a response that waits for its client.",
};
pub(crate) static SEND_TIMEOUT: Setting<Duration> = Setting {
    name: "server.send_timeout",
    reload: Applies,
    variable: Some("LLMLB_SEND_TIMEOUT"),
    flag: None,
    default: Constant(|| MINUTE),
    value: &TIMEOUT,
    about: "Close the connection if the client accepts no bytes of a waiting response for this long; over HTTP/2 reset the stream, also if it accepts less than `min_body_rate`.",
};
pub(crate) static STALL_TIMEOUT: Setting<Duration> = Setting {
    name: "server.stall_timeout",
    reload: Applies,
    variable: Some("LLMLB_STALL_TIMEOUT"),
    flag: None,
    default: Constant(|| 10 * SECOND),
    value: &TIMEOUT,
    about: "Replaces `send_timeout`, and `body_timeout` of a streamed body, if it is shorter, while other requests wait for a slot.",
};
pub(crate) static MAX_CONNECTIONS: Setting<Option<usize>> = Setting {
    name: "server.max_connections",
    reload: AfterRestart,
    variable: Some("LLMLB_MAX_CONNECTIONS"),
    flag: None,
    default: Described(
        "half of the file descriptors that the server does not reserve for itself",
        || None,
    ),
    value: &Optional {
        of: Number {
            range: 1..=MOST_CONNECTIONS,
        },
        unset: "by ulimit -Hn",
    },
    about: "Maximum number of client connections; docs/limits.md shows how the default is derived.",
};
pub(crate) static MAX_CONNECTIONS_PER_ADDRESS: Setting<Option<usize>> = Setting {
    name: "server.max_connections_per_address",
    reload: AfterRestart,
    variable: Some("LLMLB_MAX_CONNECTIONS_PER_ADDRESS"),
    flag: None,
    default: Described("a quarter of `max_connections`", || None),
    value: &Optional {
        of: Number {
            range: 1..=MOST_CONNECTIONS,
        },
        unset: "by ulimit -Hn",
    },
    about: "Maximum number of connections of one client address, IPv6 per /64; unlimited for loopback and trusted proxies. Requests of one address may use as many connections to backends, or a quarter of all connections to backends if that is more.",
};
pub(crate) static CLIENT_IDLE_TIMEOUT: Setting<Duration> = Setting {
    name: "server.idle_timeout",
    reload: Applies,
    variable: Some("LLMLB_SERVER_IDLE_TIMEOUT"),
    flag: None,
    default: Constant(|| 75 * SECOND),
    value: &TIMEOUT,
    about: "Close a client connection that has had no request for this long; the head of a request must arrive within it.",
};
// The minimum of 8 KiB is the smallest read buffer that hyper accepts.
pub(crate) static MAX_HEADER: Setting<usize> = Setting {
    name: "server.max_header",
    reload: Applies,
    variable: Some("LLMLB_MAX_HEADER"),
    flag: None,
    default: Constant(|| 32 << 10),
    value: &ByteSize::in_memory(8 << 10..=1 << 20),
    about: "Maximum size of the head of a request, and of the trailers of its body.",
};
pub(crate) static MAX_STREAMS: Setting<u32> = Setting {
    name: "server.max_streams",
    reload: Applies,
    variable: Some("LLMLB_MAX_STREAMS"),
    flag: None,
    default: Constant(|| 128),
    value: &Number { range: 1..=10_000 },
    about: "Maximum number of requests at a time on one HTTP/2 connection.",
};
pub(crate) static TUNNEL_IDLE: Setting<Duration> = Setting {
    name: "server.tunnel_idle",
    reload: Applies,
    variable: Some("LLMLB_TUNNEL_IDLE"),
    flag: None,
    default: Constant(|| 5 * MINUTE),
    value: &TIMEOUT,
    about: "Close a WebSocket on which neither side has sent data for this long.",
};
pub(crate) static MAX_RESETS: Setting<u32> = Setting {
    name: "server.max_resets",
    reload: Applies,
    variable: Some("LLMLB_MAX_RESETS"),
    flag: None,
    default: Constant(|| 1200),
    value: &Number {
        range: 0..=1_000_000,
    },
    about: "Maximum number of requests per minute that a client may cancel on one HTTP/2 connection; 0 means no limit.",
};
pub(crate) static QUEUE: Setting<usize> = Setting {
    name: "server.queue",
    reload: Applies,
    variable: Some("LLMLB_QUEUE"),
    flag: None,
    default: Constant(|| 1000),
    value: &Number {
        range: 0..=1_000_000,
    },
    about: "Maximum number of requests that wait for a slot; with 0 none waits.",
};
pub(crate) static QUEUE_TIMEOUT: Setting<Duration> = Setting {
    name: "server.queue_timeout",
    reload: Applies,
    variable: Some("LLMLB_QUEUE_TIMEOUT"),
    flag: None,
    default: Constant(|| 30 * SECOND),
    value: &TIMEOUT,
    about: "Maximum time that a request waits for a slot.",
};
pub(crate) static UNKNOWN_ENDPOINTS: Setting<UnknownEndpoints> = Setting {
    name: "server.unknown_endpoints",
    reload: Applies,
    variable: Some("LLMLB_UNKNOWN_ENDPOINTS"),
    flag: None,
    default: Constant(|| UnknownEndpoints::Forward),
    value: &Word {
        words: &[
            ("forward", UnknownEndpoints::Forward),
            ("reject", UnknownEndpoints::Reject),
        ],
        noun: "a word",
    },
    about: "Forward requests under /v1/ to endpoints that llmlb does not know, or reject them.",
};
pub(crate) static LIMITS: Setting<LimitMode> = Setting {
    name: "server.limits",
    reload: Applies,
    variable: Some("LLMLB_LIMITS"),
    flag: None,
    default: Constant(|| LimitMode::Enforce),
    value: &Word {
        words: &[
            ("enforce", LimitMode::Enforce),
            ("dry-run", LimitMode::DryRun),
        ],
        noun: "a word",
    },
    about: "Refuse requests beyond the limits of their key, or serve them and count what would be refused.",
};

pub(crate) static INSTANCE: Setting<Option<Instance>> = Setting {
    name: "server.instance",
    reload: AfterRestart,
    variable: Some("LLMLB_INSTANCE"),
    flag: None,
    default: Described("host name and port, such as `gpu-1:32768`", || None),
    value: &Optional {
        of: InstanceName,
        unset: "HOST:PORT",
    },
    about: "Name of this server in the field `instance` of its usage records.",
};

fn cpus() -> usize {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    cpus.min(MAX_WORKERS)
}
