//! The server whose snapshots are shown: one on this machine, found by the lock of its port, or one at a URL.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::super::args::Top;
use super::super::exit::{self, Failure};
use super::super::status_client::{self, Page};
use crate::config::{BackendUrl, env};
use crate::descriptors::Division;
use crate::lock::{self, LockInfo};
use crate::snapshot::format::Snapshot;
use crate::text;
use crate::upstream::{self, Connector};

/// Page with a snapshot.
const SNAPSHOT: Page = Page {
    path: "/dashboard/snapshot",
    max: 8 << 20,
};
/// Maximum time for a response.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Variable with the key of an admin, which is sent to `--url`.
const KEY_VARIABLE: &str = "LLMLB_ADMIN_KEY";

/// A snapshot, and the JSON that it was read from.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) snapshot: Snapshot,
    pub(super) json: Value,
}

/// Reason why there is no snapshot.
#[derive(Clone, Debug)]
pub(super) enum FetchError {
    /// No server runs on the port.
    NotRunning(u16),
    Failed(String),
}

/// A server.
#[derive(Debug)]
pub(super) enum Source {
    /// The server on a port of this machine.
    Local {
        port: u16,
    },
    Remote(Box<Remote>),
}

/// A server at a URL.
#[derive(Debug)]
pub(super) struct Remote {
    url: BackendUrl,
    head: Bytes,
    connector: Connector,
    runtime: Runtime,
}

impl Source {
    pub(super) fn new(args: &Top) -> Result<Self, Failure> {
        match &args.url {
            Some(url) => Ok(Self::Remote(Box::new(Remote::new(url)?))),
            None => Ok(Self::Local {
                port: match args.port {
                    Some(port) => port,
                    None => only_port()?,
                },
            }),
        }
    }

    /// Requests a snapshot.
    pub(super) fn fetch(&mut self) -> Result<Document, FetchError> {
        let body = match self {
            Self::Local { port } => fetch_local(*port)?,
            Self::Remote(remote) => remote.fetch().map_err(FetchError::Failed)?,
        };
        document(&body).map_err(FetchError::Failed)
    }
}

/// Returns the port of the only server on this machine.
fn only_port() -> Result<u16, Failure> {
    let found = lock::store()
        .list()
        .map_err(|error| Failure::new(exit::FAILED, error.to_string()))?;
    let mut ports: Vec<u16> = found
        .iter()
        .filter(|status| status.holder().is_some())
        .filter_map(|status| {
            let port = status.key().port_number()?;
            (*status.key() == lock::key(port)).then_some(port)
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    match ports[..] {
        [port] => Ok(port),
        [] => {
            Err(Failure::new(exit::NOT_RUNNING, "no server is running").hint("llmlb serve --demo"))
        }
        _ => {
            let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
            Err(Failure::new(
                exit::USAGE,
                "several servers are running: llmlb top -p PORT",
            )
            .hint(format!("servers are running on ports {}", ports.join(", "))))
        }
    }
}

/// Requests a snapshot from the server that holds the lock of a port. The server may have been restarted
/// since the last one, at another address.
fn fetch_local(port: u16) -> Result<Vec<u8>, FetchError> {
    let failed = FetchError::Failed;
    let status = lock::store()
        .status(&lock::key(port))
        .map_err(|error| failed(error.to_string()))?;
    let Some(holder) = status.holder() else {
        return Err(FetchError::NotRunning(port));
    };
    if holder.is_suspended() {
        return Err(failed("the process is suspended".to_owned()));
    }
    let record = holder.record();
    let info = record.and_then(|record| LockInfo::from_record(record, port).ok());
    let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let address = info.and_then(|info| info.address).unwrap_or(loopback);
    status_client::fetch_page(address, SNAPSHOT, TIMEOUT).map_err(failed)
}

impl Remote {
    fn new(url: &str) -> Result<Self, Failure> {
        let usage = |why: &str| Failure::new(exit::USAGE, format!("--url {url:?}: {why}"));
        let failed = |why: String| Failure::new(exit::FAILED, why);
        let url = BackendUrl::parse(url.trim_end_matches('/')).map_err(usage)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| failed(format!("cannot start the runtime: {error}")))?;
        let division = Division {
            connections: 1,
            per_address: 1,
            backend_connections: 2,
            probes: 2,
            lookups: 2,
        };
        let mut head = format!(
            "GET {}{} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\nConnection: close\r\n",
            url.prefix(),
            SNAPSHOT.path,
            url.authority()
        );
        if let Some(key) = env::text(KEY_VARIABLE) {
            if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(usage(
                    "the key in LLMLB_ADMIN_KEY has characters that no key has",
                ));
            }
            head.push_str("Authorization: Bearer ");
            head.push_str(&key);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        Ok(Self {
            url,
            head: head.into(),
            connector: Connector::new(TIMEOUT, &division),
            runtime,
        })
    }

    fn fetch(&self) -> Result<Vec<u8>, String> {
        self.runtime.block_on(async {
            let permit = self.connector.permit_for_probe().await;
            let permit = permit.map_err(|error| error.to_string())?;
            let head = self.head.clone();
            let get = upstream::get(
                &self.connector,
                permit,
                &self.url,
                SNAPSHOT.path,
                head,
                SNAPSHOT.max,
            );
            let response = timeout(TIMEOUT, get).await;
            let response = response.map_err(|_| "timed out".to_owned())?;
            let response = response.map_err(|error| error.to_string())?;
            match response.status.as_u16() {
                200 => Ok(response.body.into()),
                401 | 403 => Err(format!(
                    "the server responded {}: it serves snapshots only with the API key of an admin, \
                     in {KEY_VARIABLE}",
                    response.status.as_u16()
                )),
                status => Err(format!("the response has HTTP status {status}")),
            }
        })
    }
}

/// Parses a snapshot. The server may be another program, so texts are made safe to print.
fn document(body: &[u8]) -> Result<Document, String> {
    let invalid = |_| format!("the response is not llmlb's {}", SNAPSHOT.path);
    let json: Value = serde_json::from_slice(body).map_err(invalid)?;
    let snapshot: Snapshot = serde_json::from_value(safe(json.clone())).map_err(invalid)?;
    if snapshot.version == 0 {
        return Err(format!("the response is not llmlb's {}", SNAPSHOT.path));
    }
    Ok(Document { snapshot, json })
}

/// Replaces characters that could control a terminal, in all names and texts.
fn safe(value: Value) -> Value {
    match value {
        Value::String(given) => Value::String(text::plain(&given).into_owned()),
        Value::Array(all) => all.into_iter().map(safe).collect(),
        Value::Object(fields) => fields
            .into_iter()
            .map(|(name, value)| (text::plain(&name).into_owned(), safe(value)))
            .collect(),
        other => other,
    }
}

impl FetchError {
    pub(super) fn why(&self) -> String {
        match self {
            Self::NotRunning(port) => format!("no server is running on port {port}"),
            Self::Failed(why) => why.clone(),
        }
    }
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        match &error {
            FetchError::NotRunning(port) => {
                Self::new(exit::NOT_RUNNING, error.why()).hint(format!("llmlb serve -p {port}"))
            }
            FetchError::Failed(why) => Self::new(
                exit::FAILED,
                format!("cannot read the server's state: {why}"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_a_hostile_server_are_made_safe() {
        let body = br#"{"version":1,"backends":[{"name":"a\u001b[2Jb","models":["m\u202e"]}],
            "usage":{"hours":[{"model":{"x\u0007":{"prompt":1}}}]}}"#;
        let snapshot = document(body).unwrap().snapshot;
        assert_eq!(snapshot.backends[0].name, "a?[2Jb");
        assert_eq!(snapshot.backends[0].models, ["m?"]);
        let usage = snapshot.usage.unwrap();
        assert_eq!(usage.hours[0].model["x?"].prompt, 1);
    }

    #[test]
    fn other_documents_are_rejected() {
        for body in [
            &b"hello"[..],
            b"{}",
            b"[]",
            br#"{"version":"x"}"#,
            br#"{"backends":7}"#,
        ] {
            let error = document(body).unwrap_err();
            assert_eq!(error, "the response is not llmlb's /dashboard/snapshot");
        }
    }
}
