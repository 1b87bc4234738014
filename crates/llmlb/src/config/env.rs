//! All access to environment variables, so that every variable that llmlb reads is found here.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::net::IpAddr;
use std::path::PathBuf;

use super::origin::Origin;
use super::problems::ProblemList;
use super::settings;
use super::suggest::did_you_mean;

const PREFIX: &str = "LLMLB_";

/// Returns the lock directory that `LLMLB_LOCK_DIR` names; `None` if the variable is not set.
pub(crate) fn lock_dir() -> Option<PathBuf> {
    set(settings::LOCK_DIR).map(PathBuf::from)
}

/// Returns the absolute path that a variable such as `HOME` contains.
pub(crate) fn directory(name: &str) -> Option<PathBuf> {
    // Ignore a relative path in the variable: it would depend on the current directory.
    set(name)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
}

/// Returns the value of an environment variable; `None` if it is not set or not UTF-8.
pub(crate) fn text(name: &str) -> Option<String> {
    set(name)?.into_string().ok()
}

/// Returns the socket to which systemd expects a message when the server is ready
/// (`NOTIFY_SOCKET`).
pub(crate) fn notify_socket() -> Option<OsString> {
    set("NOTIFY_SOCKET")
}

fn set(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// True if Kubernetes set this variable for a Service, so that the variable is not reported as an
/// unknown setting. Kubernetes does so in every pod, for each Service of the namespace:
/// `llmlb-internal` yields `LLMLB_INTERNAL_SERVICE_HOST`, `LLMLB_INTERNAL_PORT=tcp://..`,
/// `LLMLB_INTERNAL_PORT_80_TCP_ADDR` and so on. Name and value must both have this form, so that a
/// misspelt setting is still reported.
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
    // Kubernetes names a variable after its Service, with a suffix such as `SERVICE_HOST` or
    // `PORT`. The Service's own name may contain words such as `PORT`, so each word is tried as the
    // start of the suffix.
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

/// Snapshot of the environment variables, instead of which tests use their own. An empty variable
/// counts as not set.
pub(super) struct Environment(BTreeMap<String, OsString>);

impl Environment {
    pub(super) fn from_process() -> Self {
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

    /// Returns the value of an environment variable. The error for a value that is not UTF-8 never
    /// contains the value, which may be a secret.
    pub(super) fn text(&self, name: &str) -> Option<Result<&str, &'static str>> {
        let value = self.0.get(name)?;
        Some(value.to_str().ok_or("is not UTF-8 text"))
    }

    /// Reports unknown variables that begin with `LLMLB_`: otherwise a misspelt setting would be
    /// ignored silently. `keys` are the variables that contain keys and tokens; their names are
    /// free.
    pub(super) fn check_names(&self, keys: &[String], problems: &mut ProblemList) {
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
