//! A server with TLS, its certificates and a fake backend.

use std::net::SocketAddr;

use testkit::backends::{self, CHAT};
use testkit::certificates::{Authority, Issued, LOCAL};
use testkit::{Answer, FakeLlm, LlmlbServer, Sandbox};

use crate::tunnel::{self, H1, Options};

pub(crate) struct World {
    pub(crate) authority: Authority,
    pub(crate) server: LlmlbServer,
    /// Port of a tunnel to the server, over HTTP/1.1.
    pub(crate) tunnel: SocketAddr,
    pub(crate) _backend: FakeLlm,
}

/// Starts a server with a certificate for this machine. Returns `None` if there is no openssl.
pub(crate) fn start(sandbox: &Sandbox, settings: &[(&str, &str)]) -> Option<World> {
    start_before(sandbox, settings, backends::backend(backends::ok))
}

/// Starts a server with a certificate for this machine in front of this backend.
pub(crate) fn start_before(
    sandbox: &Sandbox,
    settings: &[(&str, &str)],
    backend: FakeLlm,
) -> Option<World> {
    let authority = Authority::create(sandbox.root(), "ours")?;
    let issued = authority.issue("server", LOCAL, 2);
    let server = serve(sandbox, &issued, &backend.url(), settings);
    let tunnel = open(&authority, &server, &H1);
    Some(World {
        authority,
        server,
        tunnel,
        _backend: backend,
    })
}

/// Starts a server with this certificate in front of the backend at this URL.
pub(crate) fn serve(
    sandbox: &Sandbox,
    issued: &Issued,
    backend: &str,
    settings: &[(&str, &str)],
) -> LlmlbServer {
    let quoted = |path: &std::path::Path| format!("\"{}\"", path.display());
    let mut server = sandbox
        .server()
        .backend(backend)
        .setting("server.tls_cert", &quoted(&issued.cert))
        .setting("server.tls_key", &quoted(&issued.key));
    for (name, value) in settings {
        server = server.setting(name, value);
    }
    server.start().unwrap()
}

/// Opens a tunnel to a server for clients that trust the authority.
pub(crate) fn open(
    authority: &Authority,
    server: &LlmlbServer,
    options: &Options<'_>,
) -> SocketAddr {
    let config = tunnel::client_config(&authority.certificate, options);
    tunnel::open(server.address, config)
}

impl World {
    pub(crate) fn post(&self, body: &str) -> Answer {
        testkit::post(self.tunnel, CHAT, body)
    }

    pub(crate) fn failed_handshakes(&self) -> u64 {
        self.tls_status()["failed_handshakes"].as_u64().unwrap()
    }

    pub(crate) fn tls_status(&self) -> serde_json::Value {
        testkit::get(self.tunnel, "/status").json()["tls"].take()
    }
}

impl World {
    pub(crate) fn until_in_flight(&self, count: u64) {
        testkit::until("that many requests are in flight", || {
            testkit::get(self.tunnel, "/status").json()["in_flight"] == count
        });
    }
}
