//! One server per port. (L1)

use std::fs;
use std::net::TcpListener;
use testkit::{Process, Sandbox, free_port, until};

/// What a refused `serve` says about the one that runs.
fn already_running(place: &Sandbox, port: u16, pid: u32) -> String {
    let record: serde_json::Value =
        serde_json::from_slice(&fs::read(place.lock_file(port)).unwrap()).unwrap();
    let started = record["started_at"].as_str().unwrap();
    format!("llmlb: Server already running on port {port} (PID: {pid}, started: {started})\n")
}

#[test]
fn a_second_server_is_refused_and_told_who_runs_and_how_to_stop_it() {
    let place = testkit::sandbox!();
    let first = place.serve("--demo");
    let port = first.port();
    let outcome = place.run(&format!("serve --demo -p {port}"));
    assert_eq!(outcome.code, Some(1));
    let refusal = already_running(&place, port, first.process.pid());
    let hint = format!("  hint: stop it with `llmlb stop -p {port}`\n");
    assert_eq!(outcome.stderr, refusal + &hint);
    assert_eq!(outcome.stdout, "");
    assert_eq!(first.get("/healthz").status(), 200);
}

#[test]
fn of_servers_started_at_the_same_instant_exactly_one_lives() {
    let place = testkit::sandbox!();
    for _ in 0..20 {
        let port = free_port();
        let words = format!("serve --demo -p {port}");
        let mut racers: Vec<Process> = (0..2)
            .map(|_| place.start(&mut place.command(&words)))
            .collect();
        until("one serves and the other is gone", || {
            let serving = racers
                .iter()
                .filter(|one| one.stderr().contains("listening"))
                .count();
            let running = racers.iter().map(Process::is_running);
            let gone = running.filter(|running| !running).count();
            assert!(gone < 2, "{}{}", racers[0].stderr(), racers[1].stderr());
            serving == 1 && gone == 1
        });
        let lives = usize::from(!racers[0].is_running());
        let winner = racers.remove(lives);
        let loser = racers.remove(0).finish();
        assert_eq!(loser.code, Some(1));
        let expected = already_running(&place, port, winner.pid());
        assert!(
            loser.stderr.starts_with(&expected),
            "{} {expected}",
            loser.stderr
        );
        drop(winner);
        fs::remove_file(place.lock_file(port)).unwrap();
    }
}

#[test]
fn different_ports_are_different_servers() {
    let place = testkit::sandbox!();
    let (first, second) = (place.serve("--demo"), place.serve("--demo"));
    assert_ne!(first.port(), second.port());
    assert_eq!(first.get("/healthz").status(), 200);
    assert_eq!(second.get("/healthz").status(), 200);
}

#[test]
fn a_server_that_was_killed_is_replaced_at_once() {
    let place = testkit::sandbox!();
    let first = place.serve("--demo");
    let port = first.port();
    first.process.kill();
    assert_eq!(place.lock_files().len(), 1, "nobody removed its file");
    let second = place.serve_with(&mut place.command(&format!("serve --demo -p {port}")));
    assert_eq!(second.port(), port);
    assert_eq!(second.get("/healthz").status(), 200);
    let said = second.process.stderr();
    assert!(
        said.contains("warning: taking over from an owner that is gone"),
        "{said}"
    );
    assert!(
        said.contains(&format!("pid={}", first.process.pid())),
        "{said}"
    );
}

#[test]
fn a_port_that_another_program_has_is_another_error_and_leaves_no_file() {
    let place = testkit::sandbox!();
    let squatter = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = squatter.local_addr().unwrap().port();
    for host in ["127.0.0.1", "0.0.0.0 --allow-public", ":: --allow-public"] {
        let outcome = place.run(&format!("serve --demo -p {port} -H {host}"));
        assert_eq!(outcome.code, Some(1), "{host}: {}", outcome.stderr);
        let start = format!("llmlb: Port {port} is in use by another program");
        assert!(outcome.stderr.starts_with(&start), "{}", outcome.stderr);
        if cfg!(target_os = "linux") {
            let who = format!("pid {} (", std::process::id());
            assert!(outcome.stderr.contains(&who), "{}", outcome.stderr);
        }
        assert!(outcome.stderr.contains("llmlb serve -p PORT\n"));
        assert_eq!(place.lock_files(), [""; 0], "{host}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_port_that_an_outgoing_connection_has_is_named_so() {
    let place = testkit::sandbox!();
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = std::net::TcpStream::connect(far.local_addr().unwrap()).unwrap();
    let port = near.local_addr().unwrap().port();
    let outcome = place.run(&format!("serve --demo -p {port}"));
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
    assert_eq!(place.lock_files(), [""; 0]);
}

#[test]
fn an_address_that_this_machine_has_not_is_said_and_leaves_no_file() {
    let place = testkit::sandbox!();
    let port = free_port();
    let outcome = place.run(&format!(
        "serve --demo -p {port} -H 192.0.2.1 --allow-public"
    ));
    assert_eq!(outcome.code, Some(1));
    let text = "llmlb: This machine has no address 192.0.2.1\n";
    assert!(outcome.stderr.starts_with(text), "{}", outcome.stderr);
    assert_eq!(place.lock_files(), [""; 0]);
}

#[test]
fn port_0_takes_any_free_port_and_locks_that_one() {
    let place = testkit::sandbox!();
    let server = place.serve("--demo");
    assert_ne!(server.port(), 0);
    assert_eq!(
        place.lock_files(),
        [format!("serve_{}.lock", server.port())]
    );
    let refused = place.run(&format!("serve --demo -p {}", server.port()));
    assert_eq!(refused.code, Some(1));
    assert!(
        refused.stderr.contains("Server already running"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_file_that_makes_no_sense_is_in_nobodys_way() {
    let place = testkit::sandbox!();
    fs::create_dir_all(place.locks()).unwrap();
    for content in ["", "garbage", "{\"pid\":1,\"started_at\":\"x\"", "\0\0\0\0"] {
        let port = free_port();
        fs::write(place.lock_file(port), content).unwrap();
        let mut command = place.command(&format!("serve --demo -p {port}"));
        let server = place.serve_with(&mut command);
        assert_eq!(server.get("/healthz").status(), 200, "{content:?}");
    }
}

#[test]
fn a_public_address_is_refused_unless_it_is_meant() {
    let place = testkit::sandbox!();
    for host in ["0.0.0.0", "::", "192.0.2.1"] {
        let outcome = place.run(&format!("serve --demo -p 0 -H {host}"));
        assert_eq!(outcome.code, Some(1));
        assert!(
            outcome.stderr.contains("--allow-public"),
            "{}",
            outcome.stderr
        );
        assert_eq!(place.lock_files(), [""; 0]);
    }
    let server = place.serve("--demo -H 0.0.0.0 --allow-public");
    let address = ([127, 0, 0, 1], server.port()).into();
    assert_eq!(testkit::get(address, "/healthz").status(), 200);
}
