//! `llmlb stop` and the drain. (promises L2, L3, L4)

use crate::open_streams::{OpenStreams, assert_complete, refuses_connections};
use testkit::{Connection, until};

#[test]
fn demo_server_serves_reports_its_status_and_stops() {
    let sandbox = testkit::sandbox!();
    assert_eq!(sandbox.run("status").stdout, "No servers running\n");
    let server = sandbox.serve("--demo");
    let body = r#"{"model":"demo","stream":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    let answer = server.post("/v1/chat/completions", body);
    assert_eq!(answer.status(), 200);
    assert!(answer.text().ends_with("data: [DONE]\n\n"));

    let (status, code) = sandbox.status(server.port());
    assert_eq!(code, Some(0));
    assert_eq!(status["state"], "running");
    assert_eq!(status["proof"], "verified");
    assert_eq!(status["pid"], server.process.pid());
    assert_eq!(status["health"], "ok");
    assert_eq!(status["backends"]["up"], 3);
    assert_eq!(status["requests"], 1);

    let (pid, port) = (server.process.pid(), server.port());
    let stopped = sandbox.run(&format!("stop -p {port}"));
    let message = format!("Stopped the server on port {port} (PID: {pid})\n");
    assert_eq!(
        (stopped.code, stopped.stdout),
        (Some(0), message),
        "{}",
        stopped.stderr
    );
    assert_eq!(server.process.finish().code, Some(0));
    assert_eq!(sandbox.lock_files(), [""; 0]);
    assert_eq!(sandbox.status(port).1, Some(3));
    let again = sandbox.run(&format!("stop -p {port}"));
    let message = format!("No server running on port {port}\n");
    assert_eq!((again.code, again.stdout), (Some(0), message));
}

#[test]
fn stop_waits_for_every_stream_and_leaves_no_lock_file() {
    let sandbox = testkit::sandbox!();
    let streams = OpenStreams::new();
    let server = sandbox.serve(&format!("--backend {}", streams.mock.url()));
    let mut clients = streams.clients(&server, 200);
    let mut idle = Connection::open(server.address);
    idle.send_get("/healthz");
    assert_eq!(idle.answer().status(), 200);

    let stop = sandbox.start(&mut sandbox.command(&format!("stop -p {}", server.port())));
    until("connections are refused", || refuses_connections(&server));
    assert!(idle.is_closed(), "an idle connection is closed");
    let (status, code) = sandbox.status(server.port());
    assert_eq!(
        (status["health"].as_str(), code),
        (Some("draining"), Some(0)),
        "{status}"
    );
    assert_eq!(status["in_flight"], 200);
    // While the streams are open, `stop` must wait and report the number of requests for which it
    // waits.
    stop.until_output("draining: 200 requests are in flight; waiting for at most 35 s");
    streams.finish();
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
    assert_eq!(sandbox.lock_files(), [""; 0]);
}

#[test]
fn stop_fails_with_a_hint_when_the_drain_outlasts_its_timeout() {
    let sandbox = testkit::sandbox!();
    let streams = OpenStreams::new();
    let server = sandbox.serve(&format!("--backend {}", streams.mock.url()));
    let mut clients = streams.clients(&server, 1);
    let port = server.port();
    let late = sandbox.run(&format!("stop -p {port} --timeout 0.2"));
    assert_eq!(late.code, Some(1), "{late:?}");
    assert!(
        late.stderr
            .contains(&format!("`llmlb stop -p {port} --force`")),
        "{late:?}"
    );
    streams.finish();
    assert_complete(&mut clients[0]);
    assert_eq!(server.process.finish().code, Some(0));
}

#[test]
fn forced_stop_kills_a_server_that_does_not_end() {
    let sandbox = testkit::sandbox!();
    let streams = OpenStreams::new();
    let server = sandbox.serve(&format!("--backend {}", streams.mock.url()));
    let _clients = streams.clients(&server, 1);
    let port = server.port();
    let forced = sandbox.run(&format!("stop -p {port} --timeout 0.2 --force"));
    assert_eq!(forced.code, Some(0), "{forced:?}");
    let code = server.process.finish().code;
    assert_ne!(code, Some(0), "the server was killed");
    assert_eq!(sandbox.lock_files(), [""; 0]);
}

#[test]
fn second_stop_waits_for_the_drain_like_the_first() {
    let sandbox = testkit::sandbox!();
    let streams = OpenStreams::new();
    let server = sandbox.serve(&format!("--backend {}", streams.mock.url()));
    let mut clients = streams.clients(&server, 2);
    let port = server.port();
    let late = sandbox.run(&format!("stop -p {port} --timeout 0.2"));
    assert_eq!(late.code, Some(1), "{late:?}");
    let second = sandbox.start(&mut sandbox.command(&format!("stop -p {port}")));
    second.until_output("is draining; waiting");
    let refused = sandbox.run(&format!("serve -p {port}"));
    assert!(
        refused
            .stderr
            .contains("the server is draining, with 2 in flight"),
        "{}",
        refused.stderr
    );
    streams.finish();
    for client in &mut clients {
        assert_complete(client);
    }
    assert_eq!(server.process.finish().code, Some(0));
    assert_eq!(second.finish().code, Some(0));
}

#[test]
fn stop_reports_an_expired_drain_timeout() {
    let sandbox = testkit::sandbox!();
    let streams = OpenStreams::new();
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", streams.mock.url()));
    let server = sandbox.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "1s"));
    let _clients = streams.clients(&server, 1);
    let stopped = sandbox.run(&format!("stop -p {}", server.port()));
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(
        stopped.stdout.contains("The drain timeout expired"),
        "{stopped:?}"
    );
    assert_eq!(server.process.finish().code, Some(1));
}

#[test]
fn stop_waits_for_streams_of_the_demo() {
    let sandbox = testkit::sandbox!();
    let server = sandbox.serve("--demo");
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"demo","stream":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    client.send_post("/v1/chat/completions", body);
    let head = client.head();
    assert_eq!(head.status(), 200);
    let stop = sandbox.start(&mut sandbox.command(&format!("stop -p {}", server.port())));
    let body = head.body(&mut client.reader).expect("a complete response");
    assert!(
        String::from_utf8(body)
            .unwrap()
            .ends_with("data: [DONE]\n\n")
    );
    assert_eq!(stop.finish().code, Some(0));
    assert_eq!(server.process.finish().code, Some(0));
}

#[test]
fn stop_without_a_port_lists_the_running_servers() {
    let sandbox = testkit::sandbox!();
    let none = sandbox.run("stop");
    assert_eq!(none.code, Some(2));
    assert!(
        none.stderr.contains("hint: no servers are running"),
        "{none:?}"
    );
    let server = sandbox.serve("--demo");
    let one = sandbox.run("stop");
    assert_eq!(one.code, Some(2));
    let hint = format!("hint: servers are running on ports {}\n", server.port());
    assert!(one.stderr.contains(&hint), "{one:?}");
    assert_eq!(server.get("/healthz").status(), 200);
}

/// A `stop` that cannot stop a running server must fail and show the command that can. (promise L2)
#[test]
fn stop_fails_while_the_server_has_its_lock_in_another_directory() {
    let sandbox = testkit::sandbox!();
    let server = sandbox.serve("--demo");
    let (pid, port) = (server.process.pid(), server.port());
    let stop = |locks: &str| {
        let mut command = sandbox.command(&format!("stop -p {port}"));
        command.env("LLMLB_LOCK_DIR", sandbox.path(locks));
        sandbox.start(&mut command).finish()
    };
    let refused = stop("elsewhere");
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), ""));
    let error = format!(
        "llmlb: The server on port {port} (PID: {pid}) was not stopped: its lock file is not in {}\n",
        sandbox.path("elsewhere").display()
    );
    assert!(refused.stderr.starts_with(&error), "{refused:?}");
    let hint = format!("stop it with `LLMLB_LOCK_DIR=DIR llmlb stop -p {port}`");
    assert!(refused.stderr.contains(&hint), "{refused:?}");
    assert_eq!(server.get("/healthz").status(), 200);
    assert_eq!(stop("locks").code, Some(0));
    assert_eq!(server.process.finish().code, Some(0));
}
