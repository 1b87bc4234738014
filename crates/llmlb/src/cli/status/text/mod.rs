//! Text output of `llmlb status`: one server as a list, several as a table.

mod config;
mod tls;
mod usage;

use std::time::{Duration, SystemTime};

use tenure::Proof;

use super::server::{Health, RunningServer, ServerReport, ServerState};
use crate::cli::status_client::{BackendStatus, ConnectionCounts, StatusResponse};
use crate::cli::{port_conflict, time};

const HEAD: [&str; 9] = [
    "PORT",
    "STATE",
    "PID",
    "STARTED",
    "UPTIME",
    "VERSION",
    "HEALTH",
    "BACKENDS",
    "IN FLIGHT",
];

/// Formats all servers.
pub(super) fn all(found: &[ServerReport], now: SystemTime) -> String {
    let running: Vec<(&ServerReport, &RunningServer)> = found
        .iter()
        .filter_map(|server| match &server.state {
            ServerState::Running(running) => Some((server, running.as_ref())),
            _ => None,
        })
        .collect();
    let mut lines = match running.as_slice() {
        [] => vec!["No servers running".to_owned()],
        [(server, _)] => vec![one(server, now)],
        several => {
            let mut rows = vec![HEAD.map(str::to_owned)];
            rows.extend(several.iter().map(|(server, it)| row(server.port, it, now)));
            table(&rows)
        }
    };
    // Add one line for each lock file that no running server is known to hold: it is stale,
    // unreadable, no lock file at all, or of another user.
    lines.extend(
        found
            .iter()
            .filter(|server| !server.is_running())
            .flat_map(|server| {
                let port = server.port;
                leftover(server)
                    .into_iter()
                    .map(move |line| format!("Port {port}: {line}"))
            }),
    );
    lines.join("\n")
}

/// Formats the server of one port as a list.
pub(super) fn one(server: &ServerReport, now: SystemTime) -> String {
    let port = server.port;
    let mut lines = if let ServerState::Running(running) = &server.state {
        list(server, running, now)
    } else {
        let mut lines = vec![format!("No server running on port {port}")];
        lines.extend(leftover(server));
        lines
    };
    let other = server.port_in_use_by.as_ref();
    lines.extend(other.map(|owner| port_conflict::line(port, owner)));
    lines.join("\n")
}

/// Describes a lock file that no running server holds, such as a stale one.
fn leftover(server: &ServerReport) -> Option<String> {
    let path = server.lock_path.display();
    Some(match &server.state {
        ServerState::Running(_) | ServerState::NotRunning => return None,
        ServerState::Stale(info) => {
            let owner = info.as_ref().map_or_else(String::new, |info| {
                let started = time::point(info.started_at);
                format!(
                    " of PID {} (started {started}), which no longer runs",
                    info.pid
                )
            });
            format!(
                "{path} is the stale lock file{owner}; it is harmless: the next server takes it over"
            )
        }
        ServerState::Unreadable(why) => {
            format!(
                "{path} has no valid lock record ({why}); it is harmless: the next server takes it over"
            )
        }
        ServerState::OtherUser(user) => {
            format!("{path} belongs to {user}; no process is seen to hold its lock")
        }
        ServerState::Unknown { user, why } => {
            format!(
                "{path} belongs to {user}, and {why}: a server may be running; \
                 run `llmlb status` as that user or root"
            )
        }
        ServerState::Unusable(why) => {
            format!("{path} is not a lock file ({why}); no server can start until it is removed")
        }
    })
}

fn list(server: &ServerReport, running: &RunningServer, now: SystemTime) -> Vec<String> {
    let mut lines = vec![format!("Server on port {}", server.port)];
    let mut add = |name: &str, value: &str| lines.push(format!("  {name:<10} {value}"));
    add("state", &state(running));
    add("PID", &pid(running));
    if let Some(info) = &running.info {
        add("started", &started(info.started_at, now));
    }
    if let Some(uptime) = running.uptime(now) {
        add("uptime", &time::span(uptime));
    }
    if let Some(version) = running.version() {
        add("version", &plain(version));
    }
    if let Some(address) = running.info.as_ref().and_then(|info| info.address) {
        add("address", &address.to_string());
    }
    if let Some(owner) = owner(running) {
        add("owner", &owner);
    }
    add("health", &health(running));
    if let Some(count) = running.in_flight() {
        let waiting = running.response().and_then(|response| response.waiting);
        let waiting = waiting.filter(|waiting| *waiting > 0);
        let waiting = waiting.map(|waiting| format!(", {waiting} waiting for a slot"));
        add(
            "in flight",
            &format!("{count}{}", waiting.unwrap_or_default()),
        );
    }
    if let Some(response) = running.response() {
        if let Some(count) = response.requests {
            add("requests", &count.to_string());
        }
        if let Some(connections) = &response.connections {
            add("clients", &clients(connections));
        }
        if let Some(keys) = keys(response) {
            add("API keys", &keys);
        }
        let (up, total) = running.backends().unwrap_or_default();
        add("backends", &format!("{up} of {total} up"));
        lines.extend(backends(response, now));
        if let Some(config) = &response.config {
            lines.extend(config::lines(config, now));
        }
        if let Some(usage) = &response.usage {
            lines.extend(usage::lines(usage, now));
        }
        if let Some(tls) = &response.tls {
            lines.extend(tls::lines(tls, now));
        }
    }
    if running.file_gone || running.pid.is_none() {
        lines.push(format!("  {:<10} {}", "lock", server.lock_path.display()));
    }
    lines
}

/// Formats the number of client connections, and the number of those rejected since the start.
fn clients(connections: &ConnectionCounts) -> String {
    let ConnectionCounts { open, max, .. } = connections;
    let counts = [connections.rejected, connections.rejected_per_address];
    let rejected: u64 = counts.iter().flatten().sum();
    match rejected {
        0 => format!("{open} of {max} connections"),
        _ => format!("{open} of {max} connections, {rejected} rejected"),
    }
}

/// Formats the number of API keys of a server that needs them, and the requests that they did not
/// permit.
fn keys(response: &StatusResponse) -> Option<String> {
    let keys = response.keys.as_ref().filter(|keys| keys.required)?;
    let mut parts = vec![keys.count.to_string()];
    let refused = response.refused.iter();
    match refused.flat_map(|refused| refused.0.values()).sum() {
        0_u64 => {}
        1 => parts.push("1 request refused".to_owned()),
        refused => parts.push(format!("{refused} requests refused")),
    }
    parts.extend(keys.error.as_ref().map(|error| plain(error)));
    Some(parts.join("; "))
}

/// Formats a line for each backend, with the reason why the backend is down, or with its last
/// error.
fn backends(response: &StatusResponse, now: SystemTime) -> Vec<String> {
    let backends = response.backends.iter();
    let rows: Vec<[String; 4]> = backends.map(|one| backend(one, now)).collect();
    table(&rows)
        .into_iter()
        .map(|line| format!("    {line}"))
        .collect()
}

fn backend(backend: &BackendStatus, now: SystemTime) -> [String; 4] {
    let counted = [
        (backend.models, "model", "models"),
        (backend.in_flight, "in flight", "in flight"),
        (backend.requests, "request", "requests"),
    ];
    let mut counts: Vec<String> = counted
        .iter()
        .filter_map(|(count, one, many)| {
            let count = (*count)?;
            Some(format!("{count} {}", if count == 1 { one } else { many }))
        })
        .collect();
    counts.extend(backend.last_error.as_ref().map(|last| {
        let status = last.status.map(|status| format!("{status} "));
        let error = format!("{}{}", status.unwrap_or_default(), last.error);
        format!(
            "last error {} ({})",
            plain(error.trim()),
            usage::ago(&last.at, now)
        )
    }));
    let more = match &backend.error {
        Some(why) if !backend.up => plain(why),
        _ => counts.join(", "),
    };
    [
        plain(&backend.name),
        match (backend.up, backend.drained, backend.ejected) {
            (true, Some(true), _) => "up, drained",
            (false, Some(true), _) => "down, drained",
            (true, _, Some(true)) => "up, failing",
            (true, ..) => "up",
            (false, ..) => "down",
        }
        .to_owned(),
        plain(backend.url.as_deref().unwrap_or("-")),
        more,
    ]
}

fn row(port: u16, running: &RunningServer, now: SystemTime) -> [String; 9] {
    let none = || "-".to_owned();
    let info = running.info.as_ref();
    let in_flight = running.in_flight();
    [
        port.to_string(),
        state(running),
        running.pid.map_or_else(none, |pid| pid.to_string()),
        // Show the start time of the server without the uptime, which has a column of its own.
        info.map_or_else(none, |info| time::point(info.started_at)),
        running.uptime(now).map_or_else(none, time::span),
        running.version().map_or_else(none, plain),
        health(running),
        running
            .backends()
            .map_or_else(none, |(up, total)| format!("{up}/{total}")),
        in_flight.map_or_else(none, |count| count.to_string()),
    ]
}

/// Formats rows as a table: every column except the last is padded to its widest cell.
fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> Vec<String> {
    let mut widths = [0; COLUMNS];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        padded.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn state(running: &RunningServer) -> String {
    let mut notes = Vec::new();
    match running.proof {
        Proof::Verified => {}
        Proof::NotVisible => notes.push("PID not visible here"),
        Proof::OtherUser => notes.push("another user's"),
        _ => notes.push("owner unknown"),
    }
    if running.suspended {
        notes.push("suspended");
    }
    if running.file_gone {
        notes.push("lock file gone");
    }
    if notes.is_empty() {
        "running".to_owned()
    } else {
        format!("running ({})", notes.join(", "))
    }
}

fn pid(running: &RunningServer) -> String {
    match (running.pid, &running.info) {
        (Some(pid), _) => pid.to_string(),
        (None, Some(info)) => format!("unknown; {} by its lock record", info.pid),
        (None, None) => "unknown".to_owned(),
    }
}

fn owner(running: &RunningServer) -> Option<String> {
    let host = running.info.as_ref().and_then(|info| info.host.as_deref());
    match (running.user.as_deref(), host) {
        (Some(user), Some(host)) => Some(plain(&format!("{user}@{host}"))),
        (Some(one), None) | (None, Some(one)) => Some(plain(one)),
        (None, None) => None,
    }
}

fn health(running: &RunningServer) -> String {
    match &running.health {
        Health::Responded(_) if running.info.is_none() => {
            format!(
                "{} (responding process not proven to hold the lock)",
                running.health.word()
            )
        }
        Health::Responded(_) | Health::Draining { .. } => running.health.word().to_owned(),
        Health::WrongProcess { pid } => format!("another process responded (PID: {pid})"),
        Health::NoResponse(why) => format!("no response ({why})"),
    }
}

fn started(at: SystemTime, now: SystemTime) -> String {
    let ago = match now.duration_since(at).unwrap_or_default() {
        passed if passed < Duration::from_secs(1) => "just now".to_owned(),
        passed => format!("{} ago", time::span(passed)),
    };
    format!("{} ({ago})", time::point(at))
}

/// Replaces control characters in the text of a server by spaces, because they could control the
/// terminal.
fn plain(text: &str) -> String {
    text.replace(crate::text::is_unsafe, " ")
}

#[cfg(test)]
mod tests;
