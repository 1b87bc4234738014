//! Client for `GET /status` and other pages of a running server. It uses blocking sockets of the standard library: the
//! HTTP clients among the dependencies do not show the local address, which is checked here.

mod tls;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::server::HTTPS_REQUIRED;

/// Page that identifies an llmlb server.
const STATUS: Page<'_> = Page {
    path: "/status",
    max: 1 << 20,
};
/// Maximum number of header fields of a response. llmlb sends fewer than ten.
const MAX_FIELDS: usize = 64;

/// A page of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page<'a> {
    pub(super) path: &'a str,
    /// Maximum size of the response. Another program on the port could send without end.
    pub(super) max: usize,
}

/// Response to `GET /status`. Only the fields that identify an llmlb server are required, so that
/// servers of other versions are understood.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct StatusResponse {
    pub(super) status: ServerStatus,
    pub(super) pid: u32,
    pub(super) version: Option<String>,
    pub(super) uptime_ms: Option<u64>,
    pub(super) in_flight: Option<u64>,
    /// Number of the requests in flight that wait for a slot at a backend.
    pub(super) waiting: Option<u64>,
    pub(super) requests: Option<u64>,
    pub(super) dropped_headers: Option<Box<DroppedHeaders>>,
    pub(super) connections: Option<Box<ConnectionCounts>>,
    pub(super) backend_connections: Option<Box<ConnectionCounts>>,
    pub(super) keys: Option<Box<KeysStatus>>,
    pub(super) refused: Option<Box<RefusedCounts>>,
    /// Limits of the server's API keys, as the server reports them.
    pub(super) limits: Option<Box<Value>>,
    #[serde(default)]
    pub(super) backends: Vec<BackendStatus>,
    pub(super) usage: Option<Box<UsageStatus>>,
    pub(super) config: Option<Box<ConfigStatus>>,
    pub(super) tls: Option<Box<TlsStatus>>,
    /// Export of traces, as the server reports it.
    pub(super) traces: Option<Box<Value>>,
}

/// Certificate of a server that serves https, and the number of TLS handshakes since its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TlsStatus {
    #[serde(default)]
    pub(super) names: Vec<String>,
    pub(super) not_before: Option<String>,
    pub(super) not_after: Option<String>,
    pub(super) loaded_at: Option<String>,
    /// Reason why changed certificate files could not be loaded. The server keeps the old
    /// certificate.
    pub(super) error: Option<String>,
    pub(super) client_certificates: Option<bool>,
    pub(super) handshakes: Option<u64>,
    pub(super) failed_handshakes: Option<u64>,
    pub(super) plain_http: Option<u64>,
}

/// The configuration that a server uses, as the server reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConfigStatus {
    /// `None` without a file.
    pub(super) path: Option<String>,
    /// Short hash of the configuration file's content.
    pub(super) hash: Option<String>,
    /// Time of the server's start, or of the last reload that changed a setting.
    pub(super) since: String,
    pub(super) reloads: u64,
    /// Changed settings that take effect only after a restart.
    #[serde(default)]
    pub(super) after_restart: Vec<String>,
    pub(super) refused: Option<RefusedConfig>,
}

/// A changed configuration that a server refused because it has errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RefusedConfig {
    pub(super) at: String,
    pub(super) problems: u64,
    /// The first problem.
    pub(super) error: String,
}

/// Number and maximum of a server's connections, to clients or to backends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConnectionCounts {
    pub(super) open: u64,
    pub(super) max: u64,
    pub(super) max_per_address: Option<u64>,
    pub(super) rejected: Option<u64>,
    pub(super) rejected_per_address: Option<u64>,
}

/// Numbers of requests that API keys did not permit, by error code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct RefusedCounts(pub(super) BTreeMap<String, u64>);

/// Numbers of client header fields that were not forwarded, by name; `*` stands for all names that
/// are not listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct DroppedHeaders(pub(super) BTreeMap<String, u64>);

/// State of a server's API keys, as the server reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeysStatus {
    /// True if requests need an API key.
    pub(super) required: bool,
    /// Number of API keys, without revoked ones.
    pub(super) count: u64,
    /// Reason why the latest `keys.json` is not used. The server keeps the keys that it read
    /// before.
    pub(super) error: Option<String>,
}

/// State of a server, as the server itself reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ServerStatus {
    Ok,
    Draining,
}

/// State of one backend, as the server reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackendStatus {
    pub(super) name: String,
    pub(super) url: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) up: bool,
    pub(super) ejected: Option<bool>,
    /// True if an operator has drained the backend.
    pub(super) drained: Option<bool>,
    pub(super) models: Option<u64>,
    pub(super) in_flight: Option<u64>,
    pub(super) requests: Option<u64>,
    pub(super) error: Option<String>,
    pub(super) last_error: Option<LastFailure>,
}

/// Last failed request of a backend: the status or the cause, and the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LastFailure {
    /// HTTP status of the response, if there was one.
    pub(super) status: Option<u16>,
    pub(super) error: String,
    pub(super) at: String,
}

/// State of the server's exporter of usage records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UsageStatus {
    pub(super) to: Option<String>,
    pub(super) last_run: Option<String>,
    pub(super) last_delivery: Option<String>,
    pub(super) delivered: Option<u64>,
    pub(super) waiting: Option<u64>,
    pub(super) failed: Option<u64>,
    pub(super) recorded: Option<u64>,
    pub(super) lost: Option<u64>,
    /// Name of the server in its usage records.
    pub(super) instance: Option<String>,
    /// Process of the fleet that was delivering usage records when this server last tried to.
    pub(super) deliverer: Option<String>,
    pub(super) error: Option<String>,
    /// Sizes of `archive/` and `failed/`, whose files stay on the disk after a delivery run.
    pub(super) kept: Option<RetainedSizes>,
}

/// Sizes of `archive/` and `failed/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RetainedSizes {
    pub(super) archive: Option<Size>,
    pub(super) failed: Option<Size>,
    /// Warnings of the server that `archive/` or `failed/` has become large.
    #[serde(default)]
    pub(super) large: Vec<String>,
}

/// Number and total size of the files in `archive/` or `failed/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Size {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Requests `/status` from the server at an address. The error is a text for display.
pub(super) fn fetch(address: SocketAddr, limit: Duration) -> Result<StatusResponse, String> {
    let body = fetch_page(address, STATUS, limit)?;
    serde_json::from_slice(&body).map_err(|_| "the response is not llmlb's /status".to_owned())
}

/// Requests a page from the server at an address. The error is the reason, for display.
pub(super) fn fetch_page(
    address: SocketAddr,
    page: Page<'_>,
    limit: Duration,
) -> Result<Vec<u8>, String> {
    let (address, deadline) = (reachable(address), Instant::now() + limit);
    let bytes = plain(address, page, deadline).map_err(|e| in_words(&e))?;
    if !requires_https(&bytes) {
        return body_of(&bytes, page);
    }
    body_of(
        &secured(address, page, deadline).map_err(|e| in_words(&e))?,
        page,
    )
}

/// True if a program accepts connections at an address, llmlb or another.
pub(super) fn accepts(address: SocketAddr, limit: Duration) -> bool {
    connect(address, limit).is_ok()
}

/// Replaces the unspecified address (`0.0.0.0`, `::`), which cannot be connected to, by loopback.
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

/// True if a socket is connected to itself. The default port is in the ephemeral range: the system
/// may assign it as our local port, and such a connection succeeds without any server.
fn is_its_own_peer(stream: &TcpStream) -> io::Result<bool> {
    Ok(stream.local_addr()? == stream.peer_addr()?)
}

/// Requests a page without TLS.
fn plain(address: SocketAddr, page: Page<'_>, deadline: Instant) -> io::Result<Vec<u8>> {
    let stream = connect(address, left(deadline)?)?;
    exchange(stream, |stream| stream, address, page, deadline)
}

/// Requests a page with TLS.
fn secured(address: SocketAddr, page: Page<'_>, deadline: Instant) -> io::Result<Vec<u8>> {
    let stream = connect(address, left(deadline)?)?;
    // Set a timeout for the reads of the TLS handshake. It holds for each of the two reads.
    stream.set_read_timeout(Some(left(deadline)?))?;
    let secured = tls::start(stream, address)?;
    exchange(
        secured,
        |secured| &mut secured.sock,
        address,
        page,
        deadline,
    )
}

/// True if a response says that the port serves https, so that the request is repeated over TLS.
fn requires_https(bytes: &[u8]) -> bool {
    let code = format!("\"{HTTPS_REQUIRED}\"");
    split(bytes).is_some_and(|response| {
        response.code == 400 && memchr::memmem::find(response.body, code.as_bytes()).is_some()
    })
}

/// Sends the request for `/status` and reads the response. `socket` returns the socket of the
/// stream, whose timeouts are set here.
fn exchange<S: Read + Write>(
    mut stream: S,
    socket: impl Fn(&mut S) -> &mut TcpStream,
    address: SocketAddr,
    page: Page<'_>,
    deadline: Instant,
) -> io::Result<Vec<u8>> {
    let path = page.path;
    socket(&mut stream).set_write_timeout(Some(left(deadline)?))?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: application/json\r\n\
         Connection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 8 * 1024];
    while bytes.len() <= page.max && !is_whole(&bytes) {
        socket(&mut stream).set_read_timeout(Some(left(deadline)?))?;
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

/// Status code, length and body of an HTTP response, which may still be incomplete.
struct Response<'a> {
    code: u16,
    length: Option<usize>,
    body: &'a [u8],
}

fn split(bytes: &[u8]) -> Option<Response<'_>> {
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let Ok(httparse::Status::Complete(end)) = head.parse(bytes) else {
        return None;
    };
    let mut fields = head.headers.iter();
    let length = fields.find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|field| std::str::from_utf8(field.value).ok()?.parse().ok());
    Some(Response {
        code: head.code?,
        length,
        body: &bytes[end..],
    })
}

/// True if the whole body of a response has arrived. The server may keep the connection open, so
/// its end is not awaited.
fn is_whole(bytes: &[u8]) -> bool {
    split(bytes).is_some_and(|response| {
        response
            .length
            .is_some_and(|length| response.body.len() >= length)
    })
}

fn body_of(bytes: &[u8], page: Page<'_>) -> Result<Vec<u8>, String> {
    if bytes.len() > page.max {
        let path = page.path;
        return Err(format!("the response is too large for llmlb's {path}"));
    }
    if bytes.is_empty() {
        return Err("the connection was closed without a response".to_owned());
    }
    let response = split(bytes).ok_or("the response is not HTTP")?;
    if response.code != 200 {
        return Err(format!("the response has HTTP status {}", response.code));
    }
    if response
        .length
        .is_some_and(|length| length > response.body.len())
    {
        return Err("the response is incomplete".to_owned());
    }
    Ok(response.body[..response.length.unwrap_or(response.body.len())].to_owned())
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        // Treat both kinds of error as a timeout: a read timeout is `WouldBlock` on Unix and
        // `TimedOut` on Windows.
        ErrorKind::TimedOut | ErrorKind::WouldBlock => "timed out".to_owned(),
        ErrorKind::ConnectionReset => "the connection was reset".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests;
