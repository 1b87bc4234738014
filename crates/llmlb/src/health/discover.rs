//! Discovery of LLM servers on this machine by their default ports.

use std::sync::Arc;

use http::header;

use super::probe::{self, ProbeResult};
use crate::balance::{Backend, BackendState, Model, Pool};
use crate::config::{self, Kind};
use crate::sys::{self, ListenerOwner};
use crate::upstream::Connector;

/// Ports on which LLM servers listen by default, with the kind of each server.
pub(crate) const DEFAULT_PORTS: [(u16, &str); 4] = [
    (11434, "ollama"),
    (1234, "lm-studio"),
    (8000, "vllm"),
    (8080, "llama.cpp"),
];

/// Result of the discovery on one port.
pub(super) enum Discovery {
    /// The port has no LLM server, or an LLM server that is already in the pool.
    Nothing,
    /// An LLM server that was added to the pool. `is_checked` is true if the system confirms that
    /// this user or root runs the server.
    Added {
        backend: Arc<Backend>,
        is_checked: bool,
    },
    /// An LLM server of another user, with the reason why the server is not used as a backend.
    Foreign(String),
}

/// Probes one of the default ports, and adds the LLM server on it to the pool if the server is new.
pub(super) async fn discover(
    (port, usual): (u16, &'static str),
    pool: &Pool,
    connector: &Connector,
    limits: probe::ProbeLimits,
) -> Discovery {
    let Ok(url) = config::BackendUrl::parse(&format!("http://127.0.0.1:{port}")) else {
        return Discovery::Nothing;
    };
    if pool.has_backend_at(&url) {
        return Discovery::Nothing;
    }
    let mut candidate = config::Backend::new(usual.to_owned(), url);
    let probed = probe::probe(&Backend::new(candidate.clone()), connector, limits).await;
    let Ok(response) = probed else {
        return Discovery::Nothing;
    };
    // Do not use another llmlb as a backend. Each of the two could discover the other, and requests
    // would be forwarded in a loop.
    if is_llmlb(&response) {
        return Discovery::Nothing;
    }
    let is_checked = match check_owner(port) {
        Ok(is_checked) => is_checked,
        Err(why) => return Discovery::Foreign(why),
    };
    let kind = kind(&response).map_or(usual, Kind::name);
    candidate.kind = Kind::from_name(kind);
    let known = &pool.table().backends;
    candidate.name = free_name(kind, port, known);
    candidate.label = free_label(kind, known);
    let Some(backend) = pool.add(Backend::discovered(candidate)) else {
        return Discovery::Nothing;
    };
    pool.set_state(&backend, BackendState::Up(Arc::new(response.models)));
    Discovery::Added {
        backend,
        is_checked,
    }
}

/// Checks that this user or root runs a discovered server: any other user could read the prompts
/// sent to it. `Ok(false)`: this system does not report the owner.
pub(super) fn check_owner(port: u16) -> Result<bool, String> {
    match sys::listener_owner(port) {
        ListenerOwner::Trusted => Ok(true),
        ListenerOwner::Unknown => Ok(false),
        ListenerOwner::Other(uid) => {
            let user = sys::users::shown(uid);
            Err(format!(
                "it belongs to {user}, neither to this user nor to root"
            ))
        }
        ListenerOwner::None => Err(
            "no listening socket is visible on its port, so its owner cannot be checked".to_owned(),
        ),
    }
}

fn is_llmlb(response: &ProbeResult) -> bool {
    server(response).starts_with("llmlb")
}

fn server(response: &ProbeResult) -> &str {
    let server = response.headers.get(header::SERVER);
    server.and_then(|value| value.to_str().ok()).unwrap_or("")
}

/// Returns the kind of a probed LLM server, from its `Server` header or the owner of its models.
pub(super) fn kind(response: &ProbeResult) -> Option<Kind> {
    if server(response).starts_with("llama.cpp") {
        return Some(Kind::LlamaCpp);
    }
    response.kind
}

fn free_name(kind: &str, port: u16, taken: &[Arc<Backend>]) -> String {
    if taken.iter().any(|backend| backend.name == kind) {
        format!("{kind}-{port}")
    } else {
        kind.to_owned()
    }
}

/// Returns a label for a discovered backend, which clients see: the kind of server, with a number
/// if another backend has that label.
fn free_label(kind: &str, taken: &[Arc<Backend>]) -> String {
    let numbered = (2..).map(|number| format!("{kind}-{number}"));
    let mut labels = std::iter::once(kind.to_owned()).chain(numbered);
    let is_free = |label: &String| taken.iter().all(|backend| backend.label() != label);
    labels.find(is_free).unwrap_or_default()
}

/// Formats a list of models for the log, as their number and the names of the first few.
pub(super) fn in_short(models: &[Model]) -> String {
    let names: Vec<&str> = models.iter().take(4).map(|model| &*model.id).collect();
    match names.as_slice() {
        [] => "no models yet".to_owned(),
        [one] => format!("1 model: {one}"),
        [a, b, c, _] => format!("{} models: {a}, {b}, {c}, ...", models.len()),
        few => format!("{} models: {}", few.len(), few.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::balance::Models;

    fn response(server: &str, owner: &str) -> ProbeResult {
        let mut headers = HeaderMap::new();
        headers.insert(header::SERVER, server.parse().unwrap());
        ProbeResult {
            models: Models::default(),
            total: 0,
            kind: Kind::from_owner(owner),
            headers,
        }
    }

    #[test]
    fn kind_is_derived_from_the_server_header_or_the_model_owner() {
        assert_eq!(kind(&response("uvicorn", "vllm")), Some(Kind::Vllm));
        assert_eq!(kind(&response("llama.cpp", "x")), Some(Kind::LlamaCpp));
        assert_eq!(kind(&response("", "library")), Some(Kind::Ollama));
        assert_eq!(kind(&response("", "me")), None);
    }

    #[test]
    fn another_llmlb_is_recognized_by_its_server_header() {
        assert!(is_llmlb(&response("llmlb/0.1.0", "vllm")));
        assert!(!is_llmlb(&response("uvicorn", "vllm")));
    }

    #[test]
    fn model_summary_names_at_most_three_models() {
        let models = |count: usize| -> Vec<_> {
            (0..count)
                .map(|n| Model::new(&format!("m{n}"), None, ""))
                .collect()
        };
        assert_eq!(in_short(&models(0)), "no models yet");
        assert_eq!(in_short(&models(1)), "1 model: m0");
        assert_eq!(in_short(&models(3)), "3 models: m0, m1, m2");
        assert_eq!(in_short(&models(9)), "9 models: m0, m1, m2, ...");
    }
}
