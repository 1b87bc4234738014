//! Backends that misbehave on request only, and balancers before them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use crate::http::{Answer, Connection, Head};
use crate::mock::{self, Mock, Request};
use crate::process::until;
use crate::support::{Place, Server, free_port};

pub(crate) const CHAT: &str = "/v1/chat/completions";
/// A question that every backend of [`backend`] can answer.
pub(crate) const ASK: &str = r#"{"model":"m"}"#;
/// Nothing but the requests themselves finds out how the backends are.
pub(crate) const UNPROBED: &[(&str, &str)] = &[("LLMLB_PROBE_INTERVAL", "1h")];
/// What hangs is found out soon.
pub(crate) const PROBED_OFTEN: &[(&str, &str)] = &[
    ("LLMLB_PROBE_INTERVAL", "100ms"),
    ("LLMLB_PROBE_TIMEOUT", "500ms"),
];

/// A backend for the model `m`.
pub(crate) fn backend(answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static) -> Mock {
    backend_of(&["m"], answer)
}

/// A backend for these models.
pub(crate) fn backend_of(
    models: &[&str],
    answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static,
) -> Mock {
    backend_at("127.0.0.1:0".parse().unwrap(), models, answer)
}

/// A backend at this address. It answers what is asked under `/v1/` as told, tells its models, and
/// knows nothing else.
pub(crate) fn backend_at(
    address: SocketAddr,
    models: &[&str],
    answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static,
) -> Mock {
    Mock::start_at(address, models, move |request, stream| {
        if request.path().starts_with("/v1/") {
            answer(request, stream);
        } else {
            mock::json(stream, 404, "{}");
        }
    })
}

/// An address that stays free between two who use it one after the other.
pub(crate) fn address() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

pub(crate) fn ok(_: &Request, stream: &mut TcpStream) {
    mock::json(stream, 200, "{}");
}

/// Sends these bytes and hangs up.
pub(crate) fn send_and_close(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    close(stream);
}

pub(crate) fn close(stream: &TcpStream) {
    let _ = stream.shutdown(std::net::Shutdown::Both);
}

/// A balancer before these backends, with these variables set. Each backend's name is its address.
pub(crate) fn serve(place: &Place, backends: &[&Mock], settings: &[(&str, &str)]) -> Server {
    let addresses = backends.iter().map(|one| one.address);
    let config = place.path("backends.toml");
    std::fs::write(&config, named_by_address(addresses)).unwrap();
    let mut command = place.command("serve -p 0 --config backends.toml");
    place.serve_with(command.envs(settings.iter().copied()))
}

/// The configuration of backends whose names are their addresses.
pub(crate) fn named_by_address(addresses: impl Iterator<Item = SocketAddr>) -> String {
    let backends = addresses
        .map(|address| format!("[[backend]]\nname = \"{address}\"\nurl = \"http://{address}\"\n"));
    backends.collect()
}

/// A balancer with this file.
pub(crate) fn serve_file(place: &Place, file: &str) -> Server {
    std::fs::write(place.path("llmlb.toml"), file).unwrap();
    place.serve("")
}

/// What this backend was asked, apart from how it is and what it serves.
pub(crate) fn asked(mock: &Mock) -> Vec<Arc<Request>> {
    let requests = mock.requests.lock().unwrap();
    let is_question = |one: &&Arc<Request>| one.path().starts_with("/v1/");
    requests.iter().filter(is_question).cloned().collect()
}

/// How often it was asked.
pub(crate) fn count(mock: &Mock) -> usize {
    asked(mock).len()
}

/// The backend that answered.
pub(crate) fn served_by(answer: &Answer) -> String {
    answer.head.header("x-llmlb-backend").unwrap_or_default()
}

/// The code of an error of the balancer's own.
pub(crate) fn code(answer: &Answer) -> String {
    let error = answer.json()["error"].clone();
    assert!(error["message"].is_string(), "{error}");
    assert!(error["type"].is_string(), "{error}");
    error["code"].as_str().unwrap_or_default().to_owned()
}

/// Asks, and sees the answer break off: the connection ends, and not only its silence begins.
/// Returns its head and what came of its body.
pub(crate) fn cut_answer(server: &Server, body: &str) -> (Head, Vec<u8>) {
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, body);
    let head = client.head();
    let part = head.body(&mut client.reader);
    let part = part.expect_err("the answer has an end");
    assert!(client.is_closed(), "nothing comes, and no end either");
    (head, part)
}

/// A backend with room for one, whose answers begin and do not end.
pub(crate) struct Occupied {
    mock: Mock,
    /// Who has the room.
    client: Option<Connection>,
}

impl Occupied {
    pub(crate) fn new() -> Self {
        let mock = backend(|_, stream| {
            mock::begin_stream(stream);
            mock::chunk(stream, "1");
            let _ = stream.read(&mut [0]);
        });
        Self { mock, client: None }
    }

    /// A balancer before this one and another, with nobody waiting: whoever the other one cannot
    /// serve is told so at once.
    pub(crate) fn beside(&mut self, place: &Place, other: &Mock) -> Server {
        let file = format!(
            "[server]\nqueue = 0\n[upstream]\nprobe_interval = \"1h\"\n\
             {}max_concurrent = 1\n",
            named_by_address([other.address, self.mock.address].into_iter())
        );
        let server = serve_file(place, &file);
        until("it is occupied", || {
            let mut client = Connection::open(server.address);
            client.send_post(CHAT, ASK);
            let _ = client.head();
            self.client = Some(client);
            count(&self.mock) == 1
        });
        server
    }
}

/// Asks until the bad backend was tried, and sees that it does not show: the good one answers.
pub(crate) fn nobody_notices(server: &Server, bad: impl Fn() -> usize, good: &Mock) {
    let before = bad();
    until("the bad backend is tried", || {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(served_by(&answer), good.address.to_string());
        bad() > before
    });
}
