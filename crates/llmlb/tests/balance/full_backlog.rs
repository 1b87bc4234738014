//! A backend that accepts no connections and whose listen backlog is full. (promise L8)

use socket2::{Domain, Socket, Type};
use testkit::{
    backends::{ASK, CHAT, address, backend, backend_at, code, ok, serve, served_by},
    until,
};

/// Listener that accepts no connections and whose backlog is full, so that connecting blocks.
struct Full {
    _listener: Socket,
    _waiting: Vec<Socket>,
}

impl Full {
    fn at(address: std::net::SocketAddr) -> Self {
        let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let listener = socket();
        listener.set_reuse_address(true).unwrap();
        listener.bind(&address.into()).unwrap();
        listener.listen(0).unwrap();
        let waiting = (0..8).map(|_| {
            let client = socket();
            client.set_nonblocking(true).unwrap();
            let _ = client.connect(&address.into());
            client
        });
        Self {
            _waiting: waiting.collect(),
            _listener: listener,
        }
    }
}

const SHORT_CONNECT: &[(&str, &str)] = &[
    ("LLMLB_PROBE_INTERVAL", "1h"),
    ("LLMLB_CONNECT_TIMEOUT", "200ms"),
];

#[test]
fn request_is_retried_when_connecting_times_out() {
    let sandbox = testkit::sandbox!();
    let (bad, good) = (backend_at(address(), &["m"], ok), backend(ok));
    let server = serve(&sandbox, &[&bad, &good], SHORT_CONNECT);
    bad.stop();
    let _full = Full::at(bad.address);
    until("the backend is marked down", || {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(served_by(&answer), good.address.to_string());
        server.status()["backends"][0]["up"] == false
    });
}

#[test]
fn response_is_an_error_when_connecting_to_the_only_backend_times_out() {
    let sandbox = testkit::sandbox!();
    let bad = backend_at(address(), &["m"], ok);
    let server = serve(&sandbox, &[&bad], SHORT_CONNECT);
    bad.stop();
    let _full = Full::at(bad.address);
    let answer = server.post(CHAT, ASK);
    let error = (answer.status(), code(&answer));
    let allowed = [(503, "all_backends_down"), (504, "upstream_timeout")];
    assert!(
        allowed
            .iter()
            .any(|(status, code)| error == (*status, (*code).to_owned())),
        "{error:?}"
    );
    server.until_in_flight(0);
}
