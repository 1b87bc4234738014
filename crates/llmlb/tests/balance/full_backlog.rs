//! A backend whose queue of connections is full, and who does not accept any. (L8)

use socket2::{Domain, Socket, Type};
use testkit::{
    backends::{ASK, CHAT, address, backend, backend_at, code, ok, serve, served_by},
    until,
};

/// A port at which nobody accepts, and whose queue is full: who connects waits.
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
            let one = socket();
            one.set_nonblocking(true).unwrap();
            let _ = one.connect(&address.into());
            one
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
fn a_backend_that_does_not_accept_in_time_is_not_noticed() {
    let place = testkit::sandbox!();
    let (bad, good) = (backend_at(address(), &["m"], ok), backend(ok));
    let server = serve(&place, &[&bad, &good], SHORT_CONNECT);
    bad.stop();
    let _full = Full::at(bad.address);
    until("it is found out", || {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(served_by(&answer), good.address.to_string());
        server.status()["backends"][0]["up"] == false
    });
}

#[test]
fn if_the_only_backend_does_not_accept_in_time_the_client_is_told() {
    let place = testkit::sandbox!();
    let bad = backend_at(address(), &["m"], ok);
    let server = serve(&place, &[&bad], SHORT_CONNECT);
    bad.stop();
    let _full = Full::at(bad.address);
    let answer = server.post(CHAT, ASK);
    let told = (answer.status(), code(&answer));
    let allowed = [(503, "all_backends_down"), (504, "upstream_timeout")];
    assert!(
        allowed.iter().any(|one| told == (one.0, one.1.to_owned())),
        "{told:?}"
    );
    server.until_in_flight(0);
}
