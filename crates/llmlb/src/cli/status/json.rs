//! The documented form: docs/status-json.md.

use std::net::SocketAddr;
use std::time::SystemTime;

use serde::Serialize;
use tenure::Proof;

use super::server::{Health, Running, Server, State};
use crate::cli::exit::Failure;
use crate::cli::output;
use crate::cli::status_client::{Backend, BackendConnections, Connections, Usage};
use crate::lock::rfc3339;

#[derive(Serialize)]
struct Document<'a> {
    version: u32,
    servers: Vec<Entry<'a>>,
}

/// Every field is always there; what is not known is `null`.
#[derive(Default, Serialize)]
struct Entry<'a> {
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
    backends: Option<Backends<'a>>,
    in_flight: Option<u64>,
    waiting: Option<u64>,
    requests: Option<u64>,
    connections: Option<&'a Connections>,
    backend_connections: Option<&'a BackendConnections>,
    usage: Option<&'a Usage>,
    suspended: Option<bool>,
    lock_file_gone: Option<bool>,
    lock_path: String,
    port_in_use_by: Option<User<'a>>,
}

#[derive(Serialize)]
struct Backends<'a> {
    up: usize,
    total: usize,
    list: &'a [Backend],
}

#[derive(Serialize)]
struct User<'a> {
    pid: Option<u32>,
    program: Option<&'a str>,
    listening: bool,
}

pub(super) fn of(found: &[Server], now: SystemTime) -> Result<String, Failure> {
    let document = Document {
        version: 1,
        servers: found.iter().map(|server| entry(server, now)).collect(),
    };
    output::json(&document)
}

fn entry(server: &Server, now: SystemTime) -> Entry<'_> {
    let mut entry = Entry {
        port: server.port,
        lock_path: server.lock_path.to_string_lossy().into_owned(),
        port_in_use_by: server.port_in_use_by.as_ref().map(|owner| User {
            pid: owner.pid,
            program: owner.program.as_deref(),
            listening: owner.listening,
        }),
        ..Entry::default()
    };
    (entry.state, entry.reason) = match &server.state {
        State::Running(running) => {
            describe(&mut entry, running, now);
            ("running", None)
        }
        State::NotRunning => ("not_running", None),
        State::Stale(_) => ("stale", None),
        State::Unreadable(why) => ("unreadable", Some(why.as_str())),
        State::Unusable(why) => ("unusable", Some(why.as_str())),
        State::OtherUser(user) => {
            entry.user = Some(user);
            ("other_user", None)
        }
        State::Unknown { user, why } => {
            entry.user = Some(user);
            ("unknown", Some(why.as_str()))
        }
    };
    entry
}

fn describe<'a>(entry: &mut Entry<'a>, running: &'a Running, now: SystemTime) {
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
    entry.waiting = running.answer().and_then(|answer| answer.waiting);
    entry.health_detail = match &running.health {
        Health::Answered(_) if running.info.is_none() => {
            Some("the process that answered is not proven to have the lock".to_owned())
        }
        Health::Answered(_) | Health::Draining { .. } => None,
        Health::WrongProcess { pid } => Some(format!("answered by another process, pid {pid}")),
        Health::NoAnswer(why) => Some(why.clone()),
    };
    if let (Some(answer), Some((up, total))) = (running.answer(), running.backends()) {
        entry.requests = answer.requests;
        entry.connections = answer.connections.as_ref();
        entry.backend_connections = answer.backend_connections.as_deref();
        entry.usage = answer.usage.as_deref();
        entry.backends = Some(Backends {
            up,
            total,
            list: &answer.backends,
        });
    }
    entry.suspended = Some(running.suspended);
    entry.lock_file_gone = Some(running.file_gone);
}
