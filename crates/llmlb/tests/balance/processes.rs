//! Backends that are killed, or hang, as processes do. (L8)

use std::thread;

use crate::real::Real;
use testkit::{
    Connection, LlmlbServer, Sandbox,
    backends::{ASK, CHAT, PROBED_OFTEN, UNPROBED, code, named_by_address, served_by},
    read_chunk, until,
};

fn serve(place: &Sandbox, backends: &[&Real], settings: &[(&str, &str)]) -> LlmlbServer {
    let config = named_by_address(backends.iter().map(|one| one.address));
    std::fs::write(place.path("backends.toml"), config).unwrap();
    let mut command = place.command("serve -p 0 --config backends.toml");
    place.serve_with(command.envs(settings.iter().copied()))
}

#[test]
fn a_killed_backend_is_not_noticed() {
    let place = testkit::sandbox!();
    let (mut victim, other) = (Real::start(), Real::start());
    let server = serve(&place, &[&victim, &other], UNPROBED);
    // Both have connections that wait for requests.
    until("both have served", || {
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
fn a_backend_killed_within_an_answer_is_an_error_for_that_answer_alone() {
    let place = testkit::sandbox!();
    let (mut victim, other) = (Real::start(), Real::start());
    let server = serve(&place, &[&victim, &other], UNPROBED);
    let held = r#"{"model":"m","hold":true}"#;
    // Answers that have begun, on both.
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
    // The others go on.
    server.until_in_flight(20 - count);
    assert_eq!(server.post(CHAT, ASK).status(), 200);
}

#[test]
fn requests_that_wait_for_a_backend_that_hangs_are_answered_by_another() {
    let place = testkit::sandbox!();
    let (victim, other) = (Real::start(), Real::start());
    let server = serve(&place, &[&victim, &other], PROBED_OFTEN);
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
    victim.go_on();
    until("it is trusted again", || {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200);
        served_by(&answer) == victim.address.to_string()
    });
}

#[test]
fn an_answer_that_has_begun_outlives_a_backend_that_hangs_for_a_while() {
    let place = testkit::sandbox!();
    let only = Real::start();
    let server = serve(&place, &[&only], PROBED_OFTEN);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, r#"{"model":"m","pause":true}"#);
    assert_eq!(client.head().status(), 200);
    let first = read_chunk(&mut client.reader);
    assert_eq!(first, Some(Some(b"data: first\n\n".to_vec())));
    only.hang();
    until("it counts as down", || {
        server.status()["backends"][0]["up"] == false
    });
    only.go_on();
    let last = read_chunk(&mut client.reader);
    assert_eq!(last, Some(Some(b"data: last\n\n".to_vec())));
    assert_eq!(read_chunk(&mut client.reader), Some(None));
}

#[test]
fn when_the_only_backend_hangs_the_client_is_told() {
    let place = testkit::sandbox!();
    let only = Real::start();
    let settings = [
        ("LLMLB_PROBE_INTERVAL", "100ms"),
        ("LLMLB_PROBE_TIMEOUT", "500ms"),
        ("LLMLB_FIRST_BYTE_TIMEOUT", "3s"),
    ];
    let server = serve(&place, &[&only], &settings);
    only.hang();
    let answer = server.post(CHAT, ASK);
    // Nobody else could answer: it was waited for as long as may be.
    assert_eq!(answer.status(), 504, "{answer:?}");
    assert_eq!(code(&answer), "upstream_timeout");
    server.until_in_flight(0);
    only.go_on();
    until("it answers again", || {
        server.post(CHAT, ASK).status() == 200
    });
}
