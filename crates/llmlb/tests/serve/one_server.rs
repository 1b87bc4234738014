//! Only one server can run on a port. (promise L1)

use std::fs;
use std::net::TcpListener;
use testkit::{Process, Sandbox, free_port, until};

/// Returns the message of a `serve` that is refused because a server runs on its port.
fn already_running(sandbox: &Sandbox, port: u16, pid: u32) -> String {
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(sandbox.lock_file(port)).unwrap()).unwrap();
    let started = record["started_at"].as_str().unwrap();
    format!("llmlb: Server already running on port {port} (PID: {pid}, started: {started})\n")
}

#[test]
fn second_server_is_refused_with_the_first_ones_pid_and_a_stop_command() {
    let sandbox = testkit::sandbox!();
    let first = sandbox.serve("--demo");
    let port = first.port();
    let outcome = sandbox.run(&format!("serve --demo -p {port}"));
    assert_eq!(outcome.code, Some(1));
    let refusal = already_running(&sandbox, port, first.process.pid());
    let hint = format!("  hint: stop it with `llmlb stop -p {port}`\n");
    assert_eq!(outcome.stderr, refusal + &hint);
    assert_eq!(outcome.stdout, "");
    assert_eq!(first.get("/healthz").status(), 200);
}

#[test]
fn exactly_one_of_two_servers_started_at_once_keeps_running() {
    let sandbox = testkit::sandbox!();
    for _ in 0..20 {
        let port = free_port();
        let words = format!("serve --demo -p {port}");
        let mut racers: Vec<Process> = (0..2)
            .map(|_| sandbox.start(&mut sandbox.command(&words)))
            .collect();
        until("one serves and the other is gone", || {
            let serving = racers
                .iter()
                .filter(|racer| racer.stderr().contains("listening"))
                .count();
            let running = racers.iter().map(Process::is_running);
            let gone = running.filter(|running| !running).count();
            assert!(gone < 2, "{}{}", racers[0].stderr(), racers[1].stderr());
            serving == 1 && gone == 1
        });
        let survivor = usize::from(!racers[0].is_running());
        let winner = racers.remove(survivor);
        let loser = racers.remove(0).finish();
        assert_eq!(loser.code, Some(1));
        let expected = already_running(&sandbox, port, winner.pid());
        assert!(
            loser.stderr.starts_with(&expected),
            "{} {expected}",
            loser.stderr
        );
        drop(winner);
        fs::remove_file(sandbox.lock_file(port)).unwrap();
    }
}

#[test]
fn servers_on_different_ports_run_side_by_side() {
    let sandbox = testkit::sandbox!();
    let (first, second) = (sandbox.serve("--demo"), sandbox.serve("--demo"));
    assert_ne!(first.port(), second.port());
    assert_eq!(first.get("/healthz").status(), 200);
    assert_eq!(second.get("/healthz").status(), 200);
}

#[test]
fn server_starts_at_once_after_the_previous_one_was_killed() {
    let sandbox = testkit::sandbox!();
    let first = sandbox.serve("--demo");
    let port = first.port();
    first.process.kill();
    assert_eq!(
        sandbox.lock_files().len(),
        1,
        "the lock file of the killed server is left"
    );
    let second = sandbox.serve_with(&mut sandbox.command(&format!("serve --demo -p {port}")));
    assert_eq!(second.port(), port);
    assert_eq!(second.get("/healthz").status(), 200);
    let log = second.process.stderr();
    assert!(
        log.contains("warning: taking over from an owner that is gone"),
        "{log}"
    );
    assert!(
        log.contains(&format!("pid={}", first.process.pid())),
        "{log}"
    );
}

#[test]
fn port_in_use_by_another_program_is_reported_and_leaves_no_lock_file() {
    let sandbox = testkit::sandbox!();
    let other_program = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other_program.local_addr().unwrap().port();
    for host in ["127.0.0.1", "0.0.0.0 --allow-public", ":: --allow-public"] {
        let outcome = sandbox.run(&format!("serve --demo -p {port} -H {host}"));
        assert_eq!(outcome.code, Some(1), "{host}: {}", outcome.stderr);
        let start = format!("llmlb: Port {port} is in use by another program");
        assert!(outcome.stderr.starts_with(&start), "{}", outcome.stderr);
        if cfg!(target_os = "linux") {
            let owner = format!("pid {} (", std::process::id());
            assert!(outcome.stderr.contains(&owner), "{}", outcome.stderr);
        }
        assert!(outcome.stderr.contains("llmlb serve -p PORT\n"));
        assert_eq!(sandbox.lock_files(), [""; 0], "{host}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn port_in_use_by_an_outgoing_connection_is_reported() {
    let sandbox = testkit::sandbox!();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let outgoing = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let port = outgoing.local_addr().unwrap().port();
    let outcome = sandbox.run(&format!("serve --demo -p {port}"));
    assert_eq!(outcome.code, Some(1));
    let text = format!(
        "llmlb: Port {port} is in use by an outgoing connection of pid {} (",
        std::process::id()
    );
    assert!(outcome.stderr.starts_with(&text), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("docs/operations.md"),
        "{}",
        outcome.stderr
    );
    assert_eq!(sandbox.lock_files(), [""; 0]);
}

#[test]
fn unavailable_address_is_reported_and_leaves_no_lock_file() {
    let sandbox = testkit::sandbox!();
    let port = free_port();
    let outcome = sandbox.run(&format!(
        "serve --demo -p {port} -H 192.0.2.1 --allow-public"
    ));
    assert_eq!(outcome.code, Some(1));
    let text = "llmlb: This machine has no address 192.0.2.1\n";
    assert!(outcome.stderr.starts_with(text), "{}", outcome.stderr);
    assert_eq!(sandbox.lock_files(), [""; 0]);
}

#[test]
fn port_0_binds_a_free_port_and_locks_it() {
    let sandbox = testkit::sandbox!();
    let server = sandbox.serve("--demo");
    assert_ne!(server.port(), 0);
    assert_eq!(
        sandbox.lock_files(),
        [format!("serve_{}.lock", server.port())]
    );
    let refused = sandbox.run(&format!("serve --demo -p {}", server.port()));
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("Server already running"),
        "{}",
        refused.stderr
    );
}

#[test]
fn invalid_lock_file_does_not_prevent_a_start() {
    let sandbox = testkit::sandbox!();
    fs::create_dir_all(sandbox.locks()).unwrap();
    for content in ["", "garbage", "{\"pid\":1,\"started_at\":\"x\"", "\0\0\0\0"] {
        let port = free_port();
        fs::write(sandbox.lock_file(port), content).unwrap();
        let mut command = sandbox.command(&format!("serve --demo -p {port}"));
        let server = sandbox.serve_with(&mut command);
        assert_eq!(server.get("/healthz").status(), 200, "{content:?}");
    }
}

#[test]
fn public_address_is_refused_without_allow_public() {
    let sandbox = testkit::sandbox!();
    for host in ["0.0.0.0", "::", "192.0.2.1"] {
        let outcome = sandbox.run(&format!("serve --demo -p 0 -H {host}"));
        assert_eq!(outcome.code, Some(1));
        assert!(
            outcome.stderr.contains("--allow-public"),
            "{}",
            outcome.stderr
        );
        assert_eq!(sandbox.lock_files(), [""; 0]);
    }
    let server = sandbox.serve("--demo -H 0.0.0.0 --allow-public");
    let address = ([127, 0, 0, 1], server.port()).into();
    assert_eq!(testkit::get(address, "/healthz").status(), 200);
}
