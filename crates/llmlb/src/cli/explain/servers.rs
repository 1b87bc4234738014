//! Running servers that know a request.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tenure::State;

use super::{Explanation, Searched};
use crate::cli::args::Explain;
use crate::cli::status_client::{self, Page};
use crate::lock::{self, LockInfo};

/// Maximum time for a server's response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of a server's response.
const MAX_RESPONSE: usize = 1 << 20;
/// Characters of a request id that are escaped in the path.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Asks every running server for the requests with this id.
pub(super) fn find(args: &Explain, id: &str, searched: &mut Searched) -> Vec<Explanation> {
    let path = format!("/explain/{}", utf8_percent_encode(id, ESCAPED));
    let pages = pages(args, &path, searched).into_iter();
    pages
        .flat_map(|(port, page)| requests(port, page))
        .collect()
}

/// Returns the last failed requests of every running server, each with the port.
pub(super) fn errors(args: &Explain, searched: &mut Searched) -> Vec<(u16, Value)> {
    let pages = pages(args, "/explain", searched).into_iter();
    let errors = pages.flat_map(|(port, mut page)| {
        let errors = match page["errors"].take() {
            Value::Array(errors) => errors,
            _ => Vec::new(),
        };
        errors.into_iter().map(move |error| (port, error))
    });
    errors.collect()
}

/// Requests a page of every running server, or of the server on the port of `args`.
fn pages(args: &Explain, path: &str, searched: &mut Searched) -> Vec<(u16, Value)> {
    let store = lock::store();
    let listed = match args.port {
        Some(port) => store.status(&lock::key(port)).map(|one| vec![one]),
        None => store.list(),
    };
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) => {
            searched.problems.push(error.to_string());
            return Vec::new();
        }
    };
    let mut servers: Vec<(u16, Option<LockInfo>)> = Vec::new();
    for status in listed {
        let Some(port) = status.key().port_number() else {
            continue;
        };
        if let State::Held(holder) = status.state()
            && *status.key() == lock::key(port)
            && !servers.iter().any(|(known, _)| *known == port)
        {
            let record = holder.record();
            let info = record.and_then(|record| LockInfo::from_record(record, port).ok());
            servers.push((port, info));
        }
    }
    // Query all servers concurrently: one that does not respond must not delay the others.
    let responses: Vec<_> = thread::scope(|scope| {
        let ask = |server: &(u16, Option<LockInfo>)| {
            let address = server.1.as_ref().and_then(|info| info.address);
            let loopback = SocketAddr::from((Ipv4Addr::LOCALHOST, server.0));
            let page = Page {
                path,
                max: MAX_RESPONSE,
            };
            let address = address.unwrap_or(loopback);
            let body = status_client::fetch_page(address, page, RESPONSE_TIMEOUT)?;
            serde_json::from_slice(&body).map_err(|_| "the response is not llmlb's".to_owned())
        };
        let queries: Vec<_> = servers
            .iter()
            .map(|server| scope.spawn(move || ask(server)))
            .collect();
        queries
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect()
    });
    let mut found = Vec::new();
    for ((port, info), response) in servers.iter().zip(responses) {
        let response = response.unwrap_or_else(|_| Err("the query failed".to_owned()));
        match response {
            Ok(page) if is_from(&page, info.as_ref()) => {
                searched.ports.push(*port);
                found.push((*port, page));
            }
            Ok(_) => searched.problems.push(format!(
                "another process than the server responded on port {port}"
            )),
            Err(why) => searched.problems.push(format!(
                "the server on port {port} could not be asked: {why}"
            )),
        }
    }
    found
}

/// True if the process that holds the port's lock has sent the page.
fn is_from(page: &Value, owner: Option<&LockInfo>) -> bool {
    let pid = page["pid"].as_u64();
    pid.is_some() && owner.is_none_or(|info| pid == Some(info.pid.into()))
}

fn requests(port: u16, mut page: Value) -> Vec<Explanation> {
    let requests = page["requests"].take();
    let Value::Array(requests) = requests else {
        return Vec::new();
    };
    let explanation = |request| match request {
        Value::Object(fields) => Some(Explanation {
            fields,
            port: Some(port),
            record: None,
        }),
        _ => None,
    };
    requests.into_iter().filter_map(explanation).collect()
}
