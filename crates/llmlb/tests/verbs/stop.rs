//! L2: `llmlb stop`.

use std::fs;

use crate::support::{Place, answering};

#[test]
fn a_server_is_asked_and_waited_for() {
    let place = Place::new();
    let server = place.stand_in(4002, "end");
    let ran = place.llmlb(&["stop", "-p", "4002"]);
    assert_eq!(
        (ran.code, ran.stdout),
        (
            Some(0),
            format!("Stopped the server on port 4002 (PID: {})\n", server.pid())
        )
    );
    assert_eq!(ran.stderr, "");
    assert!(!place.lock_file(4002).exists());
}

#[test]
fn a_server_that_drains_is_waited_for_and_that_is_explained_once() {
    let place = Place::new();
    let server = place.stand_in(4003, "2000");
    let ran = place.llmlb(&["stop", "-p", "4003"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stderr, "llmlb: draining: waiting for at most 35 s\n");
    assert!(ran.stdout.starts_with("Stopped "), "{ran:?}");
    drop(server);

    let _server = place.stand_in(4003, "2000");
    let ran = place.llmlb(&["stop", "-q", "-p", "4003"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.starts_with("Stopped "), "{ran:?}");
}

#[test]
fn a_server_that_does_not_end_is_left_unless_forced() {
    let place = Place::new();
    let server = place.stand_in(4004, "ignore");
    let ran = place.llmlb(&["stop", "-p", "4004", "--timeout", "0.2"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert_eq!(
        ran.stderr,
        format!(
            "llmlb: The server on port 4004 was not stopped: pid {} was asked to stop and had not \
             ended after 0.2 s\n  hint: kill it with `llmlb stop -p 4004 --force`\n",
            server.pid()
        )
    );
    let ran = place.llmlb(&["stop", "-p", "4004", "--timeout", "0.2", "--force"]);
    assert_eq!(
        (ran.code, ran.stdout),
        (
            Some(0),
            format!(
                "Killed the server on port 4004 (PID: {}): it did not exit in time\n",
                server.pid()
            )
        )
    );
    assert!(!place.lock_file(4004).exists());
}

#[test]
fn a_server_is_given_its_own_drain_timeout_and_five_seconds() {
    let place = Place::new();
    let _server = place.stand_in_under(&[], 4005, "2000", 1_500);
    let ran = place.llmlb(&["stop", "-p", "4005"]);
    assert_eq!(ran.stderr, "llmlb: draining: waiting for at most 6.5 s\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn nothing_to_stop_is_no_failure() {
    let place = Place::new();
    let ran = place.llmlb(&["stop", "-p", "1"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "No server running on port 1\n")
    );
    assert_eq!(ran.stderr, "");
    assert_eq!(place.llmlb(&["stop"]).code, Some(2));
    assert_eq!(place.llmlb(&["stop", "-p", "0"]).code, Some(2));
}

#[cfg(target_os = "linux")]
#[test]
fn a_dead_server_that_its_parent_has_not_reaped_is_gone() {
    let place = Place::new();
    let server = place.stand_in(6, "ignore");
    let pid = server.pid();
    // Only `kill` of the stand-in would wait for it.
    let mut kill = std::process::Command::new("kill");
    let killed = kill.args(["-9", &pid.to_string()]).status();
    assert!(killed.expect("kill").success());
    let state = || fs::read_to_string(format!("/proc/{pid}/stat")).expect("its state");
    while !state().contains(") Z ") {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let ran = place.llmlb(&["stop", "-p", "6"]);
    let expected = format!("Removed the stale lock file of PID {pid}, which no longer runs\n");
    assert!(
        ran.code == Some(0) && ran.stdout.ends_with(&expected),
        "{ran:?}"
    );
}

#[test]
fn a_stale_file_is_removed_and_a_foreign_one_is_not() {
    let place = Place::new();
    let mut server = place.stand_in(6, "ignore");
    let pid = server.pid();
    server.kill();
    let ran = place.llmlb(&["stop", "-p", "6"]);
    assert_eq!(
        (ran.code, ran.stdout),
        (
            Some(0),
            format!(
                "No server running on port 6\nRemoved the stale lock file of PID {pid}, which no \
                 longer runs\n"
            )
        )
    );
    assert!(!place.lock_file(6).exists());

    fs::write(place.lock_file(6), "my notes").expect("written");
    let ran = place.llmlb(&["stop", "-p", "6"]);
    assert_eq!(
        (ran.code, ran.stdout),
        (
            Some(0),
            format!(
                "No server running on port 6\n{} has no valid lock record (it is not a JSON \
                 object) and was left in place\n",
                place.lock_file(6).display()
            )
        )
    );
    assert!(place.lock_file(6).exists());
}

#[test]
fn a_process_that_merely_has_the_recorded_number_is_left_alone() {
    let place = Place::new();
    let mut bystander = place.stand_in(4006, "ignore");
    let text = format!(
        r#"{{"pid":{},"started_at":"2026-01-30T12:00:00Z","port":7}}"#,
        bystander.pid()
    );
    fs::write(place.lock_file(7), text).expect("written");
    let ran = place.llmlb(&["stop", "-p", "7", "--force"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stdout.contains("has this PID now and was not stopped"),
        "{ran:?}"
    );
    assert!(llmlb::lock::is_process_running(bystander.pid()));
    bystander.kill();
}

#[test]
fn an_owner_that_cannot_be_proven_is_refused() {
    let place = Place::new();
    let server = place.stand_in(8, "end");
    let text = r#"{"pid":1,"started_at":"2026-01-30T12:00:00Z","port":8}"#;
    fs::write(place.lock_file(8), text).expect("written");
    let ran = place.llmlb(&["stop", "-p", "8", "--force"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(
        ran.stderr.starts_with(
            "llmlb: The server on port 8 was not stopped: it is held, but not by pid 1"
        ),
        "{ran:?}"
    );
    assert!(llmlb::lock::is_process_running(server.pid()));
}

#[test]
fn another_program_on_the_port_is_told() {
    let place = Place::new();
    let answering = answering("");
    let port = answering.address.port();
    let ran = place.llmlb(&["stop", "-p", &port.to_string()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut lines = ran.stdout.lines();
    assert_eq!(
        lines.next(),
        Some(format!("No server running on port {port}").as_str())
    );
    let line = lines.next().unwrap_or_default();
    let known = format!("Another program listens on port {port}");
    assert!(line.starts_with(&known), "{line}");
    if cfg!(target_os = "linux") {
        assert!(
            line.contains(&format!("pid {}", std::process::id())),
            "{line}"
        );
    }
}
