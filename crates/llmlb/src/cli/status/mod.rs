//! `llmlb status`: lists running servers with their health.
//!
//! `inspect` examines the servers, `server` holds the results, `text` and `json` format them.

mod inspect;
mod json;
mod server;
mod text;

use std::time::SystemTime;

use tenure::Store;

use super::args::Status;
use super::exit::{self, Failure};
use super::output;
use crate::lock;
use server::ServerReport;

pub(super) fn status(args: &Status) -> Result<u8, Failure> {
    let (text, code) = status_in(&lock::store(), args)?;
    output::data(&text)?;
    Ok(code)
}

fn status_in(store: &Store, args: &Status) -> Result<(String, u8), Failure> {
    let found = match args.port {
        Some(port) => inspect::inspect_port(store, port).map(|server| vec![server]),
        None => inspect::inspect_all(store),
    }
    .map_err(|error| Failure::new(exit::FAILED, error.to_string()))?;
    let now = SystemTime::now();
    let text = match (args.json, args.port) {
        (true, _) => json::render(&found, now)?,
        (false, Some(_)) => found.iter().map(|server| text::one(server, now)).collect(),
        (false, None) => text::all(&found, now),
    };
    let code = if args.port.is_some() && !found.iter().any(ServerReport::is_running) {
        exit::NOT_RUNNING
    } else {
        exit::DONE
    };
    Ok((text, code))
}

#[cfg(test)]
mod tests;
