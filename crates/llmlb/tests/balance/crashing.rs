//! A prompt that crashes backends does not crash all of them. (L8)

use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use testkit::{
    Connection, FakeLlm, LlmlbServer, Received, Sandbox,
    backends::{ASK, CHAT, UNPROBED, backend, code, count, ok, serve},
};

/// The prompt that crashes a backend.
const POISON: &str = r#"{"model":"m","x":"poison"}"#;

/// A backend that stops listening and closes its connections when it is sent the poison, as a
/// process does that crashes.
fn fragile() -> Arc<FakeLlm> {
    let itself: Arc<OnceLock<Arc<FakeLlm>>> = Arc::default();
    let known = Arc::clone(&itself);
    let mock = Arc::new(backend(
        move |request: &Received, stream: &mut TcpStream| {
            if request.text() == POISON {
                known.get().unwrap().stop();
            } else {
                ok(request, stream);
            }
        },
    ));
    itself.get_or_init(|| Arc::clone(&mock));
    mock
}

/// The number of backends that were sent the poison.
fn crashed(backends: &[Arc<FakeLlm>]) -> usize {
    let poisoned = |mock: &&Arc<FakeLlm>| {
        let requests = mock.requests();
        requests.iter().any(|one| one.text() == POISON)
    };
    backends.iter().filter(poisoned).count()
}

fn serve_all(place: &Sandbox, backends: &[Arc<FakeLlm>]) -> LlmlbServer {
    let backends: Vec<&FakeLlm> = backends.iter().map(|one| &**one).collect();
    let one_worker = [UNPROBED, &[("LLMLB_WORKERS", "1")]].concat();
    serve(place, &backends, &one_worker)
}

#[test]
fn prompt_that_crashes_backends_reaches_two_of_them() {
    let place = testkit::sandbox!();
    let backends = [(); 4].map(|()| fragile());
    let server = serve_all(&place, &backends);
    let answer = server.post(CHAT, POISON);
    assert_eq!(answer.status(), 502, "{answer:?}");
    assert_eq!(code(&answer), "upstream_error");
    assert_eq!(crashed(&backends), 2);
    for _ in 0..5 {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
}

#[test]
fn prompt_that_crashes_backends_over_idle_connections_reaches_two_of_them() {
    let place = testkit::sandbox!();
    let backends = [(); 4].map(|()| fragile());
    let server = serve_all(&place, &backends);
    // Every backend has an idle connection when the poison comes.
    let mut client = Connection::open(server.address);
    while backends.iter().any(|one| count(one) == 0) {
        client.send_post(CHAT, ASK);
        assert_eq!(client.answer().status(), 200);
    }
    let answer = server.post(CHAT, POISON);
    assert!([502, 503].contains(&answer.status()), "{answer:?}");
    assert_eq!(crashed(&backends), 2);
}
