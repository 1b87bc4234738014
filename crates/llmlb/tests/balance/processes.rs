//! Backend processes that are killed or hang. (promise L8)

use std::thread;

use crate::backend_process::BackendProcess;
use testkit::{
    Connection, LlmlbServer, Sandbox,
    backends::{ASK, CHAT, PROBED_OFTEN, UNPROBED, code, named_by_address, served_by},
    read_chunk, until,
};

fn serve(
    sandbox: &Sandbox,
    backends: &[&BackendProcess],
    settings: &[(&str, &str)],
) -> LlmlbServer {
    let config = named_by_address(backends.iter().map(|backend| backend.address));
    std::fs::write(sandbox.path("backends.toml"), config).unwrap();
    let mut command = sandbox.command("serve -p 0 --config backends.toml");
    sandbox.serve_with(command.envs(settings.iter().copied()))
}

#[test]
fn requests_are_served_by_the_other_backend_when_one_is_killed() {
    let sandbox = testkit::sandbox!();
    let (mut victim, other) = (BackendProcess::start(), BackendProcess::start());
    let server = serve(&sandbox, &[&victim, &other], UNPROBED);
    // Let both backends have idle connections, so that later requests meet connections of the
    // killed process.
    until("both backends have served requests", || {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
        let status = server.status();
        let served = |index: usize| status["backends"][index]["requests"].as_u64() > Some(0);
        served(0) && served(1)
    });
    victim.kill();
    for _ in 0..20 {
        let answer = server.post(CHAT, ASK);
        assert_eq!((answer.status(), answer.text().as_str()), (200, ASK));
        assert_eq!(served_by(&answer), other.address.to_string());
    }
}

#[test]
fn killed_backend_cuts_only_its_own_responses() {
    let sandbox = testkit::sandbox!();
    let (mut victim, other) = (BackendProcess::start(), BackendProcess::start());
    let server = serve(&sandbox, &[&victim, &other], UNPROBED);
    let held = r#"{"model":"m","hold":true}"#;
    // Each of the 20 responses must have begun, otherwise the server would retry it when its
    // backend is killed.
    let mut clients: Vec<_> = (0..20)
        .map(|_| {
            let mut client = Connection::open(server.address);
            client.send_post(CHAT, held);
            let head = client.head();
            assert_eq!(head.status(), 200);
            let first = read_chunk(&mut client.reader);
            assert_eq!(first, Some(Some(b"data: first\n\n".to_vec())));
            (client, head.header("x-llmlb-backend"))
        })
        .collect();
    victim.kill();
    let victims = Some(victim.address.to_string());
    let cut = clients
        .iter_mut()
        .filter(|(_, backend)| *backend == victims);
    let mut count = 0;
    for (client, _) in cut {
        assert_eq!(read_chunk(&mut client.reader), None);
        assert!(client.is_closed());
        count += 1;
    }
    assert!((1..20).contains(&count), "{count}");
    // Responses of the surviving backend must stay in flight.
    server.until_in_flight(20 - count);
    assert_eq!(server.post(CHAT, ASK).status(), 200);
}

#[test]
fn requests_are_retried_when_their_backend_hangs() {
    let sandbox = testkit::sandbox!();
    let (victim, other) = (BackendProcess::start(), BackendProcess::start());
    let server = serve(&sandbox, &[&victim, &other], PROBED_OFTEN);
    victim.hang();
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let answer = server.post(CHAT, ASK);
                assert_eq!((answer.status(), answer.text().as_str()), (200, ASK));
                assert_eq!(served_by(&answer), other.address.to_string());
            });
        }
    });
    server.until_in_flight(0);
    victim.resume();
    until("the resumed backend serves a request", || {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200);
        served_by(&answer) == victim.address.to_string()
    });
}

#[test]
fn response_continues_after_its_backend_hung_for_a_while() {
    let sandbox = testkit::sandbox!();
    let only = BackendProcess::start();
    let server = serve(&sandbox, &[&only], PROBED_OFTEN);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, r#"{"model":"m","pause":true}"#);
    assert_eq!(client.head().status(), 200);
    let first = read_chunk(&mut client.reader);
    assert_eq!(first, Some(Some(b"data: first\n\n".to_vec())));
    only.hang();
    until("the backend is marked down", || {
        server.status()["backends"][0]["up"] == false
    });
    only.resume();
    let last = read_chunk(&mut client.reader);
    assert_eq!(last, Some(Some(b"data: last\n\n".to_vec())));
    assert_eq!(read_chunk(&mut client.reader), Some(None));
}

#[test]
fn response_is_504_when_the_only_backend_hangs() {
    let sandbox = testkit::sandbox!();
    let only = BackendProcess::start();
    let settings = [
        ("LLMLB_PROBE_INTERVAL", "100ms"),
        ("LLMLB_PROBE_TIMEOUT", "500ms"),
        ("LLMLB_FIRST_BYTE_TIMEOUT", "3s"),
    ];
    let server = serve(&sandbox, &[&only], &settings);
    only.hang();
    let answer = server.post(CHAT, ASK);
    // No other backend can serve the request, so the server waits for the whole timeout.
    assert_eq!(answer.status(), 504, "{answer:?}");
    assert_eq!(code(&answer), "upstream_timeout");
    server.until_in_flight(0);
    only.resume();
    until("the backend serves a request", || {
        server.post(CHAT, ASK).status() == 200
    });
}
