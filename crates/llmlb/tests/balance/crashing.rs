//! A prompt that crashes backends reaches only two of them. (promise L8)

use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use testkit::{
    Connection, FakeLlm, LlmlbServer, Received, Sandbox,
    backends::{ASK, CHAT, UNPROBED, backend, code, count, ok, serve},
};

/// Prompt that crashes a backend.
const POISON: &str = r#"{"model":"m","x":"poison"}"#;

/// Returns a backend that stops listening and closes its connections when it receives the poison,
/// like a process that crashes.
fn fragile() -> Arc<FakeLlm> {
    let own_handle: Arc<OnceLock<Arc<FakeLlm>>> = Arc::default();
    let handle = Arc::clone(&own_handle);
    let mock = Arc::new(backend(
        move |request: &Received, stream: &mut TcpStream| {
            if request.text() == POISON {
                handle.get().unwrap().stop();
            } else {
                ok(request, stream);
            }
        },
    ));
    own_handle.get_or_init(|| Arc::clone(&mock));
    mock
}

/// Returns the number of backends that received the poison.
fn crashed(backends: &[Arc<FakeLlm>]) -> usize {
    let poisoned = |mock: &&Arc<FakeLlm>| {
        let requests = mock.requests();
        requests.iter().any(|request| request.text() == POISON)
    };
    backends.iter().filter(poisoned).count()
}

fn serve_all(sandbox: &Sandbox, backends: &[Arc<FakeLlm>]) -> LlmlbServer {
    let backends: Vec<&FakeLlm> = backends.iter().map(|backend| &**backend).collect();
    let one_worker = [UNPROBED, &[("LLMLB_WORKERS", "1")]].concat();
    serve(sandbox, &backends, &one_worker)
}

#[test]
fn prompt_that_crashes_backends_reaches_two_of_them() {
    let sandbox = testkit::sandbox!();
    let backends = [(); 4].map(|()| fragile());
    let server = serve_all(&sandbox, &backends);
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
    let sandbox = testkit::sandbox!();
    let backends = [(); 4].map(|()| fragile());
    let server = serve_all(&sandbox, &backends);
    // Give every backend an idle connection first: a close on an idle connection usually means that
    // it was stale, and this must not hide that the backend crashed.
    let mut client = Connection::open(server.address);
    while backends.iter().any(|backend| count(backend) == 0) {
        client.send_post(CHAT, ASK);
        assert_eq!(client.answer().status(), 200);
    }
    let answer = server.post(CHAT, POISON);
    assert!([502, 503].contains(&answer.status()), "{answer:?}");
    assert_eq!(crashed(&backends), 2);
}
