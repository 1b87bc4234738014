//! Finding LLM servers on this machine by their usual ports.

use std::sync::Arc;

use http::header;

use super::probe::{self, Answer};
use crate::balance::{Backend, Model, Pool, State};
use crate::config::{self, Kind};
use crate::sys::{self, ListenerOwner};
use crate::upstream::Connector;

/// Where LLM servers listen unless told otherwise.
pub(crate) const USUAL: [(u16, &str); 4] = [
    (11434, "ollama"),
    (1234, "lm-studio"),
    (8000, "vllm"),
    (8080, "llama.cpp"),
];

/// What is on a port.
pub(super) enum Found {
    /// Nothing new.
    Nothing,
    /// An LLM server, which was added. `is_checked`: it is known to be this user's or root's.
    Added {
        backend: Arc<Backend>,
        is_checked: bool,
    },
    /// An LLM server that is not used, for this reason.
    Foreign(String),
}

/// Looks at one of the usual ports. Adds the server that is there, if it was not known yet.
pub(super) async fn look(
    (port, usual): (u16, &'static str),
    pool: &Pool,
    connector: &Connector,
    limits: probe::Limits,
) -> Found {
    let Ok(url) = config::BackendUrl::parse(&format!("http://127.0.0.1:{port}")) else {
        return Found::Nothing;
    };
    if pool.knows(&url) {
        return Found::Nothing;
    }
    let mut candidate = config::Backend::at(usual.to_owned(), url);
    let probed = probe::ask(&Backend::new(candidate.clone()), connector, limits).await;
    let Ok(answer) = probed else {
        return Found::Nothing;
    };
    // One of us would send requests in circles.
    if is_ourselves(&answer) {
        return Found::Nothing;
    }
    let is_checked = match check_owner(port) {
        Ok(is_checked) => is_checked,
        Err(why) => return Found::Foreign(why),
    };
    let kind = kind(&answer).map_or(usual, Kind::name);
    candidate.kind = Kind::named(kind);
    let known = &pool.table().backends;
    candidate.name = free_name(kind, port, known);
    candidate.label = free_label(kind, known);
    let Some(backend) = pool.add(Backend::discovered(candidate)) else {
        return Found::Nothing;
    };
    pool.note(&backend, State::Up(Arc::new(answer.models)));
    Found::Added {
        backend,
        is_checked,
    }
}

/// A server that no one named is used only if this user or root runs it: any other user could read
/// the prompts. `Ok(false)`: this system does not tell.
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
        ListenerOwner::None => Err("no listening socket is visible on its port".to_owned()),
    }
}

fn is_ourselves(answer: &Answer) -> bool {
    server(answer).starts_with("llmlb")
}

fn server(answer: &Answer) -> &str {
    let server = answer.headers.get(header::SERVER);
    server.and_then(|value| value.to_str().ok()).unwrap_or("")
}

/// What kind of server this is, if what it says tells.
pub(super) fn kind(answer: &Answer) -> Option<Kind> {
    if server(answer).starts_with("llama.cpp") {
        return Some(Kind::LlamaCpp);
    }
    answer.kind
}

fn free_name(kind: &str, port: u16, taken: &[Arc<Backend>]) -> String {
    if taken.iter().any(|backend| backend.name == kind) {
        format!("{kind}-{port}")
    } else {
        kind.to_owned()
    }
}

/// What clients see: the kind, with a number if there are several.
fn free_label(kind: &str, taken: &[Arc<Backend>]) -> String {
    let numbered = (2..).map(|number| format!("{kind}-{number}"));
    let mut labels = std::iter::once(kind.to_owned()).chain(numbered);
    let is_free = |label: &String| taken.iter().all(|backend| backend.label() != label);
    labels.find(is_free).unwrap_or_default()
}

/// The names of a few models, for people.
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

    fn answer(server: &str, owner: &str) -> Answer {
        let mut headers = HeaderMap::new();
        headers.insert(header::SERVER, server.parse().unwrap());
        Answer {
            models: Models::default(),
            total: 0,
            kind: Kind::of_owner(owner),
            headers,
        }
    }

    #[test]
    fn a_server_is_known_by_what_it_says() {
        assert_eq!(kind(&answer("uvicorn", "vllm")), Some(Kind::Vllm));
        assert_eq!(kind(&answer("llama.cpp", "x")), Some(Kind::LlamaCpp));
        assert_eq!(kind(&answer("", "library")), Some(Kind::Ollama));
        assert_eq!(kind(&answer("", "me")), None);
    }

    #[test]
    fn another_llmlb_is_known() {
        assert!(is_ourselves(&answer("llmlb/0.1.0", "vllm")));
        assert!(!is_ourselves(&answer("uvicorn", "vllm")));
    }

    #[test]
    fn models_are_told_in_short() {
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
