//! `llmlb stop` and the drain. (L2, L3, L4)

use crate::held::{Held, assert_complete, refuses};
use testkit::{Connection, until};

#[test]
fn the_demo_serves_is_seen_and_stops() {
    let place = testkit::sandbox!();
    assert_eq!(place.run("status").stdout, "No servers running\n");
    let server = place.serve("--demo");
    let ask = r#"{"model":"demo","stream":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    let answer = server.post("/v1/chat/completions", ask);
    assert_eq!(answer.status(), 200);
    assert!(answer.text().ends_with("data: [DONE]\n\n"));

    let (status, code) = place.status(server.port());
    assert_eq!(code, Some(0));
    assert_eq!(status["state"], "running");
    assert_eq!(status["proof"], "verified");
    assert_eq!(status["pid"], server.process.pid());
    assert_eq!(status["health"], "ok");
    assert_eq!(status["backends"]["up"], 3);
    assert_eq!(status["requests"], 1);

    let (pid, port) = (server.process.pid(), server.port());
    let stopped = place.run(&format!("stop -p {port}"));
    let said = format!("Stopped the server on port {port} (PID: {pid})\n");
    assert_eq!(
        (stopped.code, stopped.stdout),
        (Some(0), said),
        "{}",
        stopped.stderr
    );
    assert_eq!(server.process.finish().code, Some(0));
    assert_eq!(place.lock_files(), [""; 0]);
    assert_eq!(place.status(port).1, Some(3));
    let again = place.run(&format!("stop -p {port}"));
    let said = format!("No server running on port {port}\n");
    assert_eq!((again.code, again.stdout), (Some(0), said));
}

#[test]
fn a_stop_lets_every_stream_end_and_leaves_nothing() {
    let place = testkit::sandbox!();
    let held = Held::new();
    let server = place.serve(&format!("--backend {}", held.mock.url()));
    let mut clients = held.clients(&server, 200);
    let mut idle = Connection::open(server.address);
    idle.send_get("/healthz");
    assert_eq!(idle.answer().status(), 200);

    let stop = place.start(&mut place.command(&format!("stop -p {}", server.port())));
    until("no more is accepted", || refuses(&server));
    assert!(idle.is_closed(), "an idle connection is closed");
    let (status, code) = place.status(server.port());
    assert_eq!(
        (status["health"].as_str(), code),
        (Some("draining"), Some(0)),
        "{status}"
    );
    assert_eq!(status["in_flight"], 200);
    // The streams still run, and so does the server, and so does `stop`.
    until("it says what it waits for", || {
        let said = "draining: 200 requests are in flight; waiting for at most 35 s";
        stop.stderr().contains(said)
    });
    held.finish();
    for client in &mut clients {
        assert_complete(client);
    }
    let pid = server.process.pid();
    let ended = server.process.finish();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("waiting for 200 in-flight requests"),
        "{}",
        ended.stderr
    );
    let stopped = stop.finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(
        stopped.stdout.contains(&format!("(PID: {pid})")),
        "{stopped:?}"
    );
    assert_eq!(place.lock_files(), [""; 0]);
}

#[test]
fn stop_waits_for_the_drain_and_says_when_it_takes_too_long() {
    let place = testkit::sandbox!();
    let held = Held::new();
    let server = place.serve(&format!("--backend {}", held.mock.url()));
    let mut clients = held.clients(&server, 1);
    let port = server.port();
    let late = place.run(&format!("stop -p {port} --timeout 0.2"));
    assert_eq!(late.code, Some(1), "{late:?}");
    assert!(
        late.stderr
            .contains(&format!("`llmlb stop -p {port} --force`")),
        "{late:?}"
    );
    held.finish();
    assert_complete(&mut clients[0]);
    assert_eq!(server.process.finish().code, Some(0));
}

#[test]
fn stop_by_force_ends_what_does_not_end() {
    let place = testkit::sandbox!();
    let held = Held::new();
    let server = place.serve(&format!("--backend {}", held.mock.url()));
    let _clients = held.clients(&server, 1);
    let port = server.port();
    let forced = place.run(&format!("stop -p {port} --timeout 0.2 --force"));
    assert_eq!(forced.code, Some(0), "{forced:?}");
    let code = server.process.finish().code;
    assert_ne!(code, Some(0), "it was killed");
    assert_eq!(place.lock_files(), [""; 0]);
}

#[test]
fn a_second_stop_waits_for_the_drain_like_the_first() {
    let place = testkit::sandbox!();
    let held = Held::new();
    let server = place.serve(&format!("--backend {}", held.mock.url()));
    let mut clients = held.clients(&server, 2);
    let port = server.port();
    let late = place.run(&format!("stop -p {port} --timeout 0.2"));
    assert_eq!(late.code, Some(1), "{late:?}");
    let second = place.start(&mut place.command(&format!("stop -p {port}")));
    until("it waits", || {
        second.stderr().contains("is draining; waiting")
    });
    let refused = place.run(&format!("serve -p {port}"));
    assert!(
        refused
            .stderr
            .contains("the server is draining, with 2 in flight"),
        "{}",
        refused.stderr
    );
    held.finish();
    for client in &mut clients {
        assert_complete(client);
    }
    assert_eq!(server.process.finish().code, Some(0));
    assert_eq!(second.finish().code, Some(0));
}

#[test]
fn a_stop_that_had_to_cut_says_so() {
    let place = testkit::sandbox!();
    let held = Held::new();
    let mut command = place.command(&format!("serve -p 0 --backend {}", held.mock.url()));
    let server = place.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "1s"));
    let _clients = held.clients(&server, 1);
    let stopped = place.run(&format!("stop -p {}", server.port()));
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(
        stopped.stdout.contains("Its drain timeout expired"),
        "{stopped:?}"
    );
    assert_eq!(server.process.finish().code, Some(1));
}

#[test]
fn the_demos_streams_end_too() {
    let place = testkit::sandbox!();
    let server = place.serve("--demo");
    let mut client = Connection::open(server.address);
    let ask = r#"{"model":"demo","stream":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    client.send_post("/v1/chat/completions", ask);
    let head = client.head();
    assert_eq!(head.status(), 200);
    let stop = place.start(&mut place.command(&format!("stop -p {}", server.port())));
    let body = head.body(&mut client.reader).expect("the whole answer");
    assert!(
        String::from_utf8(body)
            .unwrap()
            .ends_with("data: [DONE]\n\n")
    );
    assert_eq!(stop.finish().code, Some(0));
    assert_eq!(server.process.finish().code, Some(0));
}

#[test]
fn stop_without_a_port_says_what_there_is_to_choose_from() {
    let place = testkit::sandbox!();
    let none = place.run("stop");
    assert_eq!(none.code, Some(2));
    assert!(
        none.stderr.contains("hint: no servers are running"),
        "{none:?}"
    );
    let server = place.serve("--demo");
    let one = place.run("stop");
    assert_eq!(one.code, Some(2));
    let hint = format!("hint: servers are running on ports {}\n", server.port());
    assert!(one.stderr.contains(&hint), "{one:?}");
    assert_eq!(server.get("/healthz").status(), 200);
}

/// A server that runs and was not stopped is no success, and the next step is named. (L2)
#[test]
fn stop_fails_while_the_server_has_its_lock_in_another_directory() {
    let place = testkit::sandbox!();
    let server = place.serve("--demo");
    let (pid, port) = (server.process.pid(), server.port());
    let stop = |locks: &str| {
        let mut command = place.command(&format!("stop -p {port}"));
        command.env("LLMLB_LOCK_DIR", place.path(locks));
        place.start(&mut command).finish()
    };
    let refused = stop("elsewhere");
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    let why = format!(
        "llmlb: The server on port {port} (PID: {pid}) was not stopped: its lock file is not in {}\n",
        place.path("elsewhere").display()
    );
    assert!(refused.stderr.starts_with(&why), "{refused:?}");
    let hint = format!("stop it with `LLMLB_LOCK_DIR=DIR llmlb stop -p {port}`");
    assert!(refused.stderr.contains(&hint), "{refused:?}");
    assert_eq!(server.get("/healthz").status(), 200);
    assert_eq!(stop("locks").code, Some(0));
    assert_eq!(server.process.finish().code, Some(0));
}
