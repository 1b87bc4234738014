//! The only place that reads the environment.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::PathBuf;

use super::origin::Origin;
use super::problems::Gathered;
use super::secret::Secret;
use super::settings;
use super::suggest::did_you_mean;

const PREFIX: &str = "LLMLB_";

/// Where the port locks lie, if not in the usual place.
pub(crate) fn lock_dir() -> Option<PathBuf> {
    set(settings::LOCK_DIR).map(PathBuf::from)
}

/// Where usage data lies, if not in the usual place.
pub(crate) fn data_dir() -> Option<PathBuf> {
    set(settings::DATA_DIR).map(PathBuf::from)
}

/// Where usage is delivered to. There may be a key in it.
pub(crate) fn usage_url() -> Option<Result<Secret, &'static str>> {
    secret(settings::URL_VARIABLE)
}

/// The bearer token of that receiver.
pub(crate) fn usage_token() -> Option<Result<Secret, &'static str>> {
    secret(settings::TOKEN_VARIABLE)
}

/// A directory that the system or the user has set, such as `HOME`.
pub(crate) fn directory(name: &str) -> Option<PathBuf> {
    // A relative one would be another one in every directory.
    set(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

/// What the system says about itself in the environment, if that is text.
pub(crate) fn text(name: &str) -> Option<String> {
    set(name)?.into_string().ok()
}

/// Fails if the value is not text; the value itself is not told.
fn secret(name: &'static str) -> Option<Result<Secret, &'static str>> {
    let text = set(name)?.into_string();
    Some(text.map(Secret::new).map_err(|_| name))
}

/// The socket on which systemd wants to hear that the server is ready.
pub(crate) fn notify_socket() -> Option<OsString> {
    set("NOTIFY_SOCKET")
}

fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// True if Kubernetes set this variable for a Service: it does so in every pod of a namespace, for
/// each of its Services. One called `llmlb-internal` adds `LLMLB_INTERNAL_SERVICE_HOST`,
/// `LLMLB_INTERNAL_PORT=tcp://..`, `LLMLB_INTERNAL_PORT_80_TCP_ADDR` and so on. Name and value must
/// both have the form of such a link, so that a misspelt setting is still reported.
fn is_service_link(name: &str, value: &OsStr) -> bool {
    let Some(value) = value.to_str().filter(|_| name.starts_with(PREFIX)) else {
        return false;
    };
    let is_url = || {
        let schemes = ["tcp://", "udp://", "sctp://"];
        schemes.iter().any(|scheme| value.starts_with(scheme))
    };
    let is_address = || value.parse::<IpAddr>().is_ok();
    let is_number = |text: &str| text.parse::<u16>().is_ok();
    let words: Vec<&str> = name.split('_').collect();
    // The words before these are the Service's name, which may contain them too.
    (1..words.len()).any(|start| match &words[start..] {
        ["PORT"] => is_url(),
        ["SERVICE", "HOST"] => is_address(),
        ["SERVICE", "PORT"] => is_number(value),
        ["SERVICE", "PORT", name, ..] => !name.is_empty() && is_number(value),
        ["PORT", port, protocol @ ("TCP" | "UDP" | "SCTP"), what @ ..] if is_number(port) => {
            match what {
                [] => is_url(),
                ["PROTO"] => value.eq_ignore_ascii_case(protocol),
                ["PORT"] => is_number(value),
                ["ADDR"] => is_address(),
                _ => false,
            }
        }
        _ => false,
    })
}

/// The variables of a process, as one saw them. An empty one is as good as none.
pub(super) struct Environment(BTreeMap<String, OsString>);

impl Environment {
    pub(super) fn of_this_process() -> Self {
        Self::new(
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value))),
        )
    }

    pub(super) fn new(variables: impl IntoIterator<Item = (String, OsString)>) -> Self {
        let variables = variables.into_iter().filter(|(_, value)| !value.is_empty());
        Self(
            variables
                .filter(|(name, value)| !is_service_link(name, value))
                .collect(),
        )
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.get(name).map(PathBuf::from)
    }

    /// Fails if the value is not text; the value itself is not told, it may be a secret.
    pub(super) fn text(&self, name: &str) -> Option<Result<&str, &'static str>> {
        let value = self.0.get(name)?;
        Some(value.to_str().ok_or("is not UTF-8 text"))
    }

    /// A variable that is ours by its name but means nothing is a slip that would go unnoticed.
    /// `keys` are the names that keys and tokens are taken from; those may be called anything.
    pub(super) fn check_names(&self, keys: &[String], problems: &mut Gathered) {
        for name in self.0.keys().filter(|name| name.starts_with(PREFIX)) {
            if keys.contains(name) || settings::variables().any(|known| known == name) {
                continue;
            }
            let near = did_you_mean(name, settings::variables());
            let known: Vec<&str> = settings::variables().collect();
            let what = format!("unknown variable{near}; allowed: {}", known.join(", "));
            problems.add(&Origin::Variable(name.clone().into()), "", &what);
        }
    }
}
