//! Inspection of servers: first the lock file, then `GET /status` of the server.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use tenure::{Error, Holder, State as LockState, Status as LockStatus, Store};

use super::server::{Health, RunningServer, ServerReport, ServerState};
use crate::cli::{port_conflict, status_client};
use crate::lock::{self, LockInfo};
use crate::sys;

/// Maximum time to wait for a server's response to `/status`.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// Inspects the server of one port: its lock file, then its `/status`.
pub(super) fn inspect_port(store: &Store, port: u16) -> Result<ServerReport, Error> {
    Ok(inspect(port, &store.status(&lock::key(port))?))
}

/// Inspects every server that has a lock file, in the order of the ports.
pub(super) fn inspect_all(store: &Store) -> Result<Vec<ServerReport>, Error> {
    // Prefer a lock file with a holder: a port may have lock files in two lock directories.
    let mut found: BTreeMap<u16, LockStatus> = BTreeMap::new();
    for status in store.list()? {
        let Some(port) = status.key().port_number() else {
            continue;
        };
        let seen = found
            .get(&port)
            .is_some_and(|before| before.holder().is_some() || status.holder().is_none());
        if *status.key() == lock::key(port) && !seen {
            found.insert(port, status);
        }
    }
    // Query all servers concurrently: a server that does not respond must not delay the others.
    Ok(thread::scope(|scope| {
        let inspections: Vec<_> = found
            .iter()
            .map(|(port, status)| scope.spawn(|| inspect(*port, status)))
            .collect();
        inspections
            .into_iter()
            .filter_map(|server| server.join().ok())
            .collect()
    }))
}

fn inspect(port: u16, status: &LockStatus) -> ServerReport {
    let state = match status.state() {
        LockState::Held(holder) => ServerState::Running(Box::new(running(port, holder))),
        LockState::Stale(record) => {
            ServerState::Stale(LockInfo::from_record(record, port).ok().map(Box::new))
        }
        LockState::Unreadable(why) => ServerState::Unreadable(why.clone()),
        LockState::OtherUser(user) => ServerState::OtherUser(user.clone()),
        LockState::Unusable(why) => ServerState::Unusable(why.clone()),
        LockState::Unknown { user, why } => ServerState::Unknown {
            user: user.clone(),
            why: why.clone(),
        },
        _ => ServerState::NotRunning,
    };
    let port_in_use_by = match &state {
        ServerState::Running(running) => match running.health {
            Health::Responded(_) => None,
            _ => sys::port_owner(port).filter(|owner| owner.pid != running.pid),
        },
        _ => port_conflict::port_user(port),
    };
    ServerReport {
        port,
        lock_path: status.path().to_owned(),
        state,
        port_in_use_by,
    }
}

fn running(port: u16, holder: &Holder) -> RunningServer {
    let record = holder.record();
    let info = record.and_then(|record| LockInfo::from_record(record, port).ok());
    let address = info.as_ref().and_then(|info| info.address);
    let response = if holder.is_suspended() {
        Err("the process is suspended".to_owned())
    } else {
        let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        status_client::fetch(address.unwrap_or(loopback), STATUS_TIMEOUT)
    };
    RunningServer {
        proof: holder.proof(),
        pid: holder.pid(),
        user: record.and_then(|record| record.user().map(str::to_owned)),
        suspended: holder.is_suspended(),
        file_gone: holder.is_file_gone(),
        health: Health::classify(response, info.as_ref()),
        info,
    }
}
