//! A server in front of seven backends.

use std::fmt::Write as _;
use std::fs;

use serde_json::{Value, json};
use testkit::{
    LlmlbServer, Sandbox,
    api_server::{Backend, Reports, Sort},
    certificates::{Authority, LOCAL},
    until,
};

/// Two backends that share a model, and five that report usage in unusual ways. The first backend
/// requires a key that only llmlb has.
const SORTS: [Sort; 7] = [
    Sort {
        name: "first",
        models: &["chat", "embed", "acme/chat:7b", "shared"],
        reports: Reports::IfAsked,
        key: Some(KEY),
    },
    Sort {
        name: "second",
        models: &["other", "shared"],
        reports: Reports::IfAsked,
        key: None,
    },
    reporting("refuses", &["refuses"], Reports::Refuses),
    reporting("never", &["never"], Reports::Never),
    reporting("so-far", &["so-far"], Reports::SoFar),
    reporting("twice", &["twice"], Reports::Twice),
    reporting(
        "with-the-reason",
        &["with-the-reason"],
        Reports::WithTheReason,
    ),
];

const KEY: &str = "key-of-the-first-backend";

const fn reporting(name: &'static str, models: &'static [&'static str], reports: Reports) -> Sort {
    Sort {
        name,
        models,
        reports,
        key: None,
    }
}

pub(crate) struct World<'a> {
    sandbox: &'a Sandbox,
    pub(crate) server: LlmlbServer,
    backends: Vec<Backend>,
    /// Authority of the server's certificate, if it serves https.
    pub(crate) authority: Option<Authority>,
}

impl<'a> World<'a> {
    /// Starts the backends and the server in front of them, and waits until the server knows every
    /// model.
    pub(crate) fn start(sandbox: &'a Sandbox) -> Self {
        Self::start_with(sandbox, None)
    }

    /// Like [`World::start`], but the server serves https. Returns `None` if there is no openssl.
    pub(crate) fn start_https(sandbox: &'a Sandbox) -> Option<Self> {
        let authority = Authority::create(sandbox.root(), "private")?;
        Some(Self::start_with(sandbox, Some(authority)))
    }

    fn start_with(sandbox: &'a Sandbox, authority: Option<Authority>) -> Self {
        let backends: Vec<_> = SORTS.into_iter().map(Backend::start).collect();
        let mut config = String::new();
        if let Some(authority) = &authority {
            authority.issue("server", LOCAL, 2);
            config += "[server]\ntls_cert = \"server.pem\"\ntls_key = \"server.key\"\n";
        }
        for Backend { mock, state } in &backends {
            let name = state.sort.name;
            writeln!(
                config,
                "[[backend]]\nname = \"{name}\"\nurl = \"{}\"",
                mock.url()
            )
            .unwrap();
            if state.sort.key.is_some() {
                config += "api_key_env = \"KEY_OF_A_BACKEND\"\n";
            }
        }
        fs::write(sandbox.path("llmlb.toml"), config).unwrap();
        let mut command = sandbox.command("serve -p 0 --config llmlb.toml");
        let server = sandbox.serve_with(command.env("KEY_OF_A_BACKEND", KEY));
        let world = Self {
            sandbox,
            server,
            backends,
            authority,
        };
        until("every model is known", || {
            let status = world.status();
            let known = status["backends"]["list"].as_array().unwrap().iter();
            let mut known = known.map(|backend| backend["models"].as_u64().unwrap());
            world
                .backends
                .iter()
                .all(|backend| known.next() == u64::try_from(backend.state.sort.models.len()).ok())
        });
        world
    }

    /// State of the server as `llmlb status` reports it.
    fn status(&self) -> Value {
        self.sandbox.status(self.server.port()).0
    }

    /// Waits until no request is in flight.
    pub(crate) fn until_idle(&self) {
        until("no request is in flight", || {
            self.status()["in_flight"] == 0
        });
    }

    /// Returns the URLs and the key that scripts need, as JSON.
    pub(crate) fn description(&self) -> Value {
        let backends: serde_json::Map<_, _> = self
            .backends
            .iter()
            .map(|Backend { mock, state }| (state.sort.name.to_owned(), json!(mock.url())))
            .collect();
        let scheme = if self.authority.is_some() {
            "https"
        } else {
            "http"
        };
        json!({
            "url": format!("{scheme}://{}", self.server.address),
            "backends": backends,
            "secret": KEY,
        })
    }
}
