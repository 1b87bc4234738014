//! Backends for the model `m`, and llmlb servers in front of them.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;

use crate::connection::{Answer, Connection};
use crate::fake_llm::FakeLlm;
use crate::message::Head;
use crate::sandbox::Sandbox;
use crate::serve::{LlmlbServer, free_port};
use crate::server::Received;
use crate::wait::until;
use crate::wire;

/// Path of chat completions.
pub const CHAT: &str = "/v1/chat/completions";
/// Body of a chat request for the model `m`, which every [`backend`] serves.
pub const ASK: &str = r#"{"model":"m"}"#;
/// Settings that make probes rare, so that llmlb learns the state of backends only from requests.
pub const UNPROBED: &[(&str, &str)] = &[("LLMLB_PROBE_INTERVAL", "1h")];
/// Settings with short probe intervals and timeouts, so that a test with a hung backend need not
/// wait long until llmlb detects it.
pub const PROBED_OFTEN: &[(&str, &str)] = &[
    ("LLMLB_PROBE_INTERVAL", "100ms"),
    ("LLMLB_PROBE_TIMEOUT", "500ms"),
];

/// Starts a backend for the model `m`. See [`backend_at`].
#[track_caller]
pub fn backend(handler: impl Fn(&Received, &mut TcpStream) + Send + Sync + 'static) -> FakeLlm {
    backend_of(&["m"], handler)
}

/// Starts a backend for these models. See [`backend_at`].
#[track_caller]
pub fn backend_of(
    models: &[&str],
    handler: impl Fn(&Received, &mut TcpStream) + Send + Sync + 'static,
) -> FakeLlm {
    backend_at(([127, 0, 0, 1], 0).into(), models, handler)
}

/// Starts a backend at this address. The handler responds to requests under `/v1/`, apart from those
/// for the model list; the status of any other response is 404.
#[track_caller]
pub fn backend_at(
    address: SocketAddr,
    models: &[&str],
    handler: impl Fn(&Received, &mut TcpStream) + Send + Sync + 'static,
) -> FakeLlm {
    let builder = FakeLlm::builder(models).at(address);
    builder.handle(move |request, stream| {
        if request.path().starts_with("/v1/") {
            handler(request, stream);
        } else {
            wire::json(stream, 404, "{}");
        }
    })
}

/// Returns a loopback address with a free port. The system assigns that port to no connection, so
/// the port stays free while a test stops one server and starts another at the address.
pub fn address() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

/// Handler that responds with an empty JSON object.
pub fn ok(_: &Received, stream: &mut TcpStream) {
    wire::json(stream, 200, "{}");
}

/// Sends these bytes and closes the connection.
pub fn send_and_close(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    close(stream);
}

/// Closes the connection.
pub fn close(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

/// Starts an llmlb server in front of these backends, with these environment variables. The name of
/// each backend is its address.
#[track_caller]
pub fn serve(sandbox: &Sandbox, backends: &[&FakeLlm], settings: &[(&str, &str)]) -> LlmlbServer {
    let addresses = || backends.iter().map(|one| one.address);
    // Each set of backends has a configuration file of its own: an earlier server of the sandbox would
    // load a file that changes.
    let ports: Vec<_> = addresses().map(|one| one.port().to_string()).collect();
    let file = format!("backends-{}.toml", ports.join("-"));
    sandbox.file(&file, named_by_address(addresses()));
    let mut command = sandbox.command(&format!("serve -p 0 --config {file}"));
    sandbox.serve_with(command.envs(settings.iter().copied()))
}

/// Returns the configuration of backends whose names are their addresses, so that the name in a
/// response identifies the backend.
pub fn named_by_address(addresses: impl Iterator<Item = SocketAddr>) -> String {
    let backends = addresses
        .map(|address| format!("[[backend]]\nname = \"{address}\"\nurl = \"http://{address}\"\n"));
    backends.collect()
}

/// Starts an llmlb server with this configuration file.
#[track_caller]
pub fn serve_file(sandbox: &Sandbox, file: &str) -> LlmlbServer {
    sandbox.file("llmlb.toml", file);
    sandbox.serve("")
}

/// Returns the requests under `/v1/` that a backend received, apart from those for the model list.
pub fn asked(backend: &FakeLlm) -> Vec<Arc<Received>> {
    let mut requests = backend.requests();
    requests.retain(|one| one.path().starts_with("/v1/"));
    requests
}

/// Returns the number of requests under `/v1/` that a backend received, apart from those for the
/// model list.
pub fn count(backend: &FakeLlm) -> usize {
    asked(backend).len()
}

/// Returns the name of the backend that served a response.
pub fn served_by(answer: &Answer) -> String {
    answer.head.header("x-llmlb-backend").unwrap_or_default()
}

/// Returns the code of an error response of llmlb itself.
#[track_caller]
pub fn code(answer: &Answer) -> String {
    let error = answer.json()["error"].clone();
    assert!(error["message"].is_string(), "{error}");
    assert!(error["type"].is_string(), "{error}");
    error["code"].as_str().unwrap_or_default().to_owned()
}

/// Sends a chat request whose response is cut: the connection is closed before the body is complete.
/// Returns the head of the response and the part of its body.
#[track_caller]
pub fn cut_answer(server: &LlmlbServer, body: &str) -> (Head, Vec<u8>) {
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, body);
    let head = client.head();
    let part = head.body(&mut client.reader);
    let part = part.expect_err("an incomplete body");
    assert!(client.is_closed(), "the connection stays open");
    (head, part)
}

/// Backend with one slot, which a request occupies as long as this value exists.
pub struct Occupied {
    backend: FakeLlm,
    client: Option<Connection>,
}

impl Occupied {
    /// Starts the backend. Its responses begin and do not end, so the request that
    /// [`Occupied::beside`] sends keeps the slot occupied.
    #[track_caller]
    pub fn new() -> Self {
        let backend = backend(|_, stream| {
            wire::begin_stream(stream);
            wire::chunk(stream, "1");
            let _ = stream.read(&mut [0]);
        });
        Self {
            backend,
            client: None,
        }
    }

    /// Starts an llmlb server without a queue in front of this backend and another. A request that
    /// the other backend cannot serve is rejected at once.
    #[track_caller]
    pub fn beside(&mut self, sandbox: &Sandbox, other: &FakeLlm) -> LlmlbServer {
        let file = format!(
            "[server]\nqueue = 0\n[upstream]\nprobe_interval = \"1h\"\n\
             {}max_concurrent = 1\n",
            named_by_address([other.address, self.backend.address].into_iter())
        );
        let server = serve_file(sandbox, &file);
        until("a request occupies the slot", || {
            let mut client = Connection::open(server.address);
            client.send_post(CHAT, ASK);
            let _ = client.head();
            self.client = Some(client);
            count(&self.backend) == 1
        });
        server
    }
}

impl Default for Occupied {
    fn default() -> Self {
        Self::new()
    }
}

/// Sends requests until the bad backend got one. Every response must come from the good backend.
#[track_caller]
pub fn assert_failover(server: &LlmlbServer, bad: impl Fn() -> usize, good: &FakeLlm) {
    let before = bad();
    until("the bad backend gets a request", || {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(served_by(&answer), good.address.to_string());
        bad() > before
    });
}
