//! Asking a running server how it is: `GET /status`, with the standard library's sockets, since a
//! question of a few hundred bytes needs no more.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// No answer is larger than this.
const LARGEST: usize = 1 << 20;

/// What a server says about itself. Only what tells it from any other program is required.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Answer {
    pub(super) status: Word,
    pub(super) pid: u32,
    pub(super) version: Option<String>,
    pub(super) uptime_ms: Option<u64>,
    pub(super) in_flight: Option<u64>,
    /// Of those, for a place at a backend.
    pub(super) waiting: Option<u64>,
    pub(super) requests: Option<u64>,
    pub(super) connections: Option<Connections>,
    pub(super) backend_connections: Option<Box<BackendConnections>>,
    #[serde(default)]
    pub(super) backends: Vec<Backend>,
    pub(super) usage: Option<Box<Usage>>,
}

/// The connections of a server's clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Connections {
    pub(super) open: u64,
    pub(super) max: u64,
    pub(super) max_per_address: Option<u64>,
    pub(super) rejected: Option<u64>,
    pub(super) rejected_per_address: Option<u64>,
}

/// A server's connections to its backends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackendConnections {
    pub(super) open: u64,
    pub(super) max: u64,
    pub(super) max_per_address: Option<u64>,
    pub(super) rejected: Option<u64>,
    pub(super) rejected_per_address: Option<u64>,
}

/// How a server is, by its own account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Word {
    Ok,
    Draining,
}

/// One of the server's backends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Backend {
    pub(super) name: String,
    pub(super) url: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) up: bool,
    pub(super) ejected: Option<bool>,
    pub(super) models: Option<u64>,
    pub(super) in_flight: Option<u64>,
    pub(super) requests: Option<u64>,
    pub(super) error: Option<String>,
    pub(super) last_error: Option<LastError>,
}

/// The last request that a backend failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastError {
    /// The status of its response, if there was one.
    pub(super) status: Option<u16>,
    pub(super) error: String,
    pub(super) at: String,
}

/// How far the server's usage records have come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Usage {
    pub(super) to: Option<String>,
    pub(super) last_run: Option<String>,
    pub(super) last_delivery: Option<String>,
    pub(super) delivered: Option<u64>,
    pub(super) waiting: Option<u64>,
    pub(super) failed: Option<u64>,
    pub(super) recorded: Option<u64>,
    pub(super) lost: Option<u64>,
    pub(super) error: Option<String>,
    /// Of what stays after delivery.
    pub(super) kept: Option<Kept>,
}

/// Sizes of `archive/` and `failed/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) archive: Option<Size>,
    pub(super) failed: Option<Size>,
    /// Messages about those that have become large.
    #[serde(default)]
    pub(super) large: Vec<String>,
}

/// Number and size of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Size {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Asks the server at an address. Otherwise: why there is no answer.
pub(super) fn ask(address: SocketAddr, limit: Duration) -> Result<Answer, String> {
    let bytes = exchange(reachable(address), Instant::now() + limit).map_err(|e| in_words(&e))?;
    read(&bytes)
}

/// Whether anything accepts connections at an address.
pub(super) fn accepts(address: SocketAddr, limit: Duration) -> bool {
    connect(address, limit).is_ok()
}

/// A server that serves on every address is asked on the loopback one.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        });
    }
    address
}

fn connect(address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, limit)?;
    if is_its_own_peer(&stream)? {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

/// The default port is one that the system may give to our own end, and a socket that connects to
/// itself succeeds.
fn is_its_own_peer(stream: &TcpStream) -> io::Result<bool> {
    Ok(stream.local_addr()? == stream.peer_addr()?)
}

fn exchange(address: SocketAddr, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut stream = connect(address, left(deadline)?)?;
    stream.set_write_timeout(Some(left(deadline)?))?;
    let request = format!(
        "GET /status HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 8 * 1024];
    while bytes.len() <= LARGEST && !is_whole(&bytes) {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    Ok(left)
}

/// A response as far as it has come.
struct Response<'a> {
    code: &'a str,
    length: Option<usize>,
    body: &'a [u8],
}

fn split(bytes: &[u8]) -> Option<Response<'_>> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let code = lines.next()?.strip_prefix("HTTP/1.")?.get(2..5)?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok());
    Some(Response {
        code,
        length,
        body: &bytes[end + 4..],
    })
}

/// Whether there is nothing more to wait for, even if the other side keeps the connection open.
fn is_whole(bytes: &[u8]) -> bool {
    split(bytes).is_some_and(|response| {
        response
            .length
            .is_some_and(|length| response.body.len() >= length)
    })
}

fn read(bytes: &[u8]) -> Result<Answer, String> {
    if bytes.len() > LARGEST {
        return Err("its answer is larger than any of llmlb's".to_owned());
    }
    if bytes.is_empty() {
        return Err("it closed the connection".to_owned());
    }
    let response = split(bytes).ok_or("its answer is not HTTP")?;
    if response.code != "200" {
        return Err(format!("it answered with HTTP status {}", response.code));
    }
    if response
        .length
        .is_some_and(|length| length > response.body.len())
    {
        return Err("its answer was cut short".to_owned());
    }
    let body = &response.body[..response.length.unwrap_or(response.body.len())];
    serde_json::from_slice(body).map_err(|_| "its answer is not llmlb's".to_owned())
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        // A read that takes too long is one or the other, depending on the system.
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "timed out".to_owned(),
        ErrorKind::ConnectionReset => "it closed the connection".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests;
