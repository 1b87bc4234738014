//! JSON output of `llmlb status`: docs/status-json.md.

use std::net::SocketAddr;
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;
use tenure::Proof;

use super::server::{Health, RunningServer, ServerReport, ServerState};
use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::status_client::{
    BackendStatus, ConfigStatus, ConnectionCounts, DroppedHeaders, KeysStatus, RefusedCounts,
    TlsStatus, UsageStatus,
};
use crate::lock::rfc3339;

#[derive(Serialize)]
struct StatusDocument<'a> {
    version: u32,
    servers: Vec<StatusEntry<'a>>,
}

/// A server in the JSON output. Every field is always present; an unknown value is `null`.
#[derive(Default, Serialize)]
struct StatusEntry<'a> {
    port: u16,
    state: &'static str,
    reason: Option<&'a str>,
    proof: Option<&'static str>,
    pid: Option<u32>,
    started_at: Option<String>,
    uptime_s: Option<u64>,
    llmlb_version: Option<&'a str>,
    address: Option<SocketAddr>,
    user: Option<&'a str>,
    host: Option<&'a str>,
    health: Option<&'static str>,
    health_detail: Option<String>,
    backends: Option<StatusBackends<'a>>,
    in_flight: Option<u64>,
    waiting: Option<u64>,
    requests: Option<u64>,
    dropped_headers: Option<&'a DroppedHeaders>,
    connections: Option<&'a ConnectionCounts>,
    backend_connections: Option<&'a ConnectionCounts>,
    keys: Option<&'a KeysStatus>,
    refused: Option<&'a RefusedCounts>,
    limits: Option<&'a Value>,
    usage: Option<&'a UsageStatus>,
    config: Option<&'a ConfigStatus>,
    tls: Option<&'a TlsStatus>,
    traces: Option<&'a Value>,
    suspended: Option<bool>,
    lock_file_gone: Option<bool>,
    lock_path: String,
    port_in_use_by: Option<PortUser<'a>>,
}

#[derive(Serialize)]
struct StatusBackends<'a> {
    up: usize,
    total: usize,
    list: &'a [BackendStatus],
}

#[derive(Serialize)]
struct PortUser<'a> {
    pid: Option<u32>,
    program: Option<&'a str>,
    listening: bool,
}

pub(super) fn render(found: &[ServerReport], now: SystemTime) -> Result<String, Failure> {
    let document = StatusDocument {
        version: 1,
        servers: found.iter().map(|server| entry(server, now)).collect(),
    };
    output::json(&document)
}

fn entry(server: &ServerReport, now: SystemTime) -> StatusEntry<'_> {
    let mut entry = StatusEntry {
        port: server.port,
        lock_path: server.lock_path.to_string_lossy().into_owned(),
        port_in_use_by: server.port_in_use_by.as_ref().map(|owner| PortUser {
            pid: owner.pid,
            program: owner.program.as_deref(),
            listening: owner.listening,
        }),
        ..StatusEntry::default()
    };
    (entry.state, entry.reason) = match &server.state {
        ServerState::Running(running) => {
            describe(&mut entry, running, now);
            ("running", None)
        }
        ServerState::NotRunning => ("not_running", None),
        ServerState::Stale(_) => ("stale", None),
        ServerState::Unreadable(why) => ("unreadable", Some(why.as_str())),
        ServerState::Unusable(why) => ("unusable", Some(why.as_str())),
        ServerState::OtherUser(user) => {
            entry.user = Some(user);
            ("other_user", None)
        }
        ServerState::Unknown { user, why } => {
            entry.user = Some(user);
            ("unknown", Some(why.as_str()))
        }
    };
    entry
}

fn describe<'a>(entry: &mut StatusEntry<'a>, running: &'a RunningServer, now: SystemTime) {
    entry.proof = Some(match running.proof {
        Proof::Verified => "verified",
        Proof::NotVisible => "not_visible",
        Proof::OtherUser => "other_user",
        _ => "unknown",
    });
    entry.pid = running.pid;
    entry.uptime_s = running.uptime(now).map(|uptime| uptime.as_secs());
    entry.llmlb_version = running.version();
    entry.user = running.user.as_deref();
    if let Some(info) = &running.info {
        entry.started_at = Some(rfc3339(info.started_at));
        entry.address = info.address;
        entry.host = info.host.as_deref();
    }
    entry.health = Some(running.health.word());
    entry.in_flight = running.in_flight();
    entry.waiting = running.response().and_then(|response| response.waiting);
    entry.health_detail = match &running.health {
        Health::Responded(_) if running.info.is_none() => {
            Some("the process that responded is not proven to hold the lock".to_owned())
        }
        Health::Responded(_) | Health::Draining { .. } => None,
        Health::WrongProcess { pid } => Some(format!("another process responded, pid {pid}")),
        Health::NoResponse(why) => Some(why.clone()),
    };
    if let (Some(response), Some((up, total))) = (running.response(), running.backends()) {
        entry.requests = response.requests;
        entry.dropped_headers = response.dropped_headers.as_deref();
        entry.connections = response.connections.as_deref();
        entry.backend_connections = response.backend_connections.as_deref();
        entry.keys = response.keys.as_deref();
        entry.refused = response.refused.as_deref();
        entry.limits = response.limits.as_deref();
        entry.usage = response.usage.as_deref();
        entry.config = response.config.as_deref();
        entry.tls = response.tls.as_deref();
        entry.traces = response.traces.as_deref();
        entry.backends = Some(StatusBackends {
            up,
            total,
            list: &response.backends,
        });
    }
    entry.suspended = Some(running.suspended);
    entry.lock_file_gone = Some(running.file_gone);
}
