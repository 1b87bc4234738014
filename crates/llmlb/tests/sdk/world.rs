//! A server in front of seven backends.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use serde_json::{Value, json};
use testkit::{
    LlmlbServer, Sandbox,
    api_server::{Backend, Reports, Sort},
    until,
};

/// Two backends that share a model, and five that report usage in unusual ways. The first backend
/// requires a key, which clients do not have.
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

pub(crate) struct World {
    pub(crate) server: LlmlbServer,
    backends: Vec<Backend>,
}

impl World {
    /// Starts the backends and the server in front of them, and waits until the server knows every
    /// model.
    pub(crate) fn start(sandbox: &Sandbox) -> Self {
        let backends: Vec<_> = SORTS.into_iter().map(Backend::start).collect();
        let mut config = String::new();
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
        let models: BTreeSet<_> = backends
            .iter()
            .flat_map(|backend| backend.state.sort.models)
            .collect();
        until("every model is known", || {
            server.get("/v1/models").json()["data"]
                .as_array()
                .map(Vec::len)
                == Some(models.len())
        });
        Self { server, backends }
    }

    /// Returns the URLs and the key that scripts need, as JSON.
    pub(crate) fn description(&self) -> Value {
        let backends: serde_json::Map<_, _> = self
            .backends
            .iter()
            .map(|Backend { mock, state }| (state.sort.name.to_owned(), json!(mock.url())))
            .collect();
        json!({
            "url": format!("http://{}", self.server.address),
            "backends": backends,
            "secret": KEY,
        })
    }
}
