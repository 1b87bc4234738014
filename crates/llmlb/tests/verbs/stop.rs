//! `llmlb stop`. (promise L2)

use std::fs;

use crate::support::{LockDir, status_server};

#[test]
fn stop_ends_a_server_and_waits_for_it() {
    let lock_dir = LockDir::new();
    let server = lock_dir.stand_in(4002, "end");
    let ran = lock_dir.llmlb(&["stop", "-p", "4002"]);
    assert_eq!(
        (ran.code, ran.stdout),
        (
            Some(0),
            format!("Stopped the server on port 4002 (PID: {})\n", server.pid())
        )
    );
    assert_eq!(ran.stderr, "");
    assert!(!lock_dir.lock_file(4002).exists());
}

#[test]
fn stop_waits_for_the_drain_and_reports_it_once() {
    let lock_dir = LockDir::new();
    let server = lock_dir.stand_in(4003, "2000");
    let ran = lock_dir.llmlb(&["stop", "-p", "4003"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stderr, "llmlb: draining: waiting for at most 35 s\n");
    assert!(ran.stdout.starts_with("Stopped "), "{ran:?}");
    drop(server);

    let _server = lock_dir.stand_in(4003, "2000");
    let ran = lock_dir.llmlb(&["stop", "-q", "-p", "4003"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.starts_with("Stopped "), "{ran:?}");
}

#[test]
fn server_that_does_not_end_is_killed_only_with_force() {
    let lock_dir = LockDir::new();
    let server = lock_dir.stand_in(4004, "ignore");
    let ran = lock_dir.llmlb(&["stop", "-p", "4004", "--timeout", "0.2"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert_eq!(
        ran.stderr,
        format!(
            "llmlb: The server on port 4004 was not stopped: pid {} was asked to stop and had not \
             ended after 0.2 s\n  hint: kill it with `llmlb stop -p 4004 --force`\n",
            server.pid()
        )
    );
    let ran = lock_dir.llmlb(&["stop", "-p", "4004", "--timeout", "0.2", "--force"]);
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
    assert!(!lock_dir.lock_file(4004).exists());
}

#[test]
fn stop_waits_for_the_drain_timeout_of_the_server_plus_5_s() {
    let lock_dir = LockDir::new();
    let _server = lock_dir.stand_in_under(&[], 4005, "2000", 1_500);
    let ran = lock_dir.llmlb(&["stop", "-p", "4005"]);
    assert_eq!(ran.stderr, "llmlb: draining: waiting for at most 6.5 s\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn stop_without_a_server_succeeds() {
    let lock_dir = LockDir::new();
    let ran = lock_dir.llmlb(&["stop", "-p", "1"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "No server running on port 1\n")
    );
    assert_eq!(ran.stderr, "");
    assert_eq!(lock_dir.llmlb(&["stop"]).code, Some(2));
    assert_eq!(lock_dir.llmlb(&["stop", "-p", "0"]).code, Some(2));
}

#[cfg(target_os = "linux")]
#[test]
fn lock_file_of_a_zombie_is_stale() {
    let lock_dir = LockDir::new();
    let server = lock_dir.stand_in(6, "ignore");
    let pid = server.pid();
    // Kill the process without waiting for it, so that it stays a zombie. A zombie holds no lock,
    // so its lock file is stale.
    let mut kill = std::process::Command::new("kill");
    let killed = kill.args(["-9", &pid.to_string()]).status();
    assert!(killed.expect("kill").success());
    let state =
        || fs::read_to_string(format!("/proc/{pid}/stat")).expect("the state of the process");
    while !state().contains(") Z ") {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let ran = lock_dir.llmlb(&["stop", "-p", "6"]);
    let expected = format!("Removed the stale lock file of PID {pid}, which no longer runs\n");
    assert!(
        ran.code == Some(0) && ran.stdout.ends_with(&expected),
        "{ran:?}"
    );
}

#[test]
fn stop_removes_a_stale_lock_file_and_keeps_other_files() {
    let lock_dir = LockDir::new();
    let mut server = lock_dir.stand_in(6, "ignore");
    let pid = server.pid();
    server.kill();
    let ran = lock_dir.llmlb(&["stop", "-p", "6"]);
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
    assert!(!lock_dir.lock_file(6).exists());

    fs::write(lock_dir.lock_file(6), "my notes").expect("written");
    let ran = lock_dir.llmlb(&["stop", "-p", "6"]);
    assert_eq!(
        (ran.code, ran.stdout),
        (
            Some(0),
            format!(
                "No server running on port 6\n{} has no valid lock record (it is not a JSON \
                 object) and was left in place\n",
                lock_dir.lock_file(6).display()
            )
        )
    );
    assert!(lock_dir.lock_file(6).exists());
}

#[test]
fn process_that_reuses_the_recorded_pid_is_not_stopped() {
    let lock_dir = LockDir::new();
    let mut bystander = lock_dir.stand_in(4006, "ignore");
    let text = format!(
        r#"{{"pid":{},"started_at":"2026-01-30T12:00:00Z","port":7}}"#,
        bystander.pid()
    );
    fs::write(lock_dir.lock_file(7), text).expect("written");
    let ran = lock_dir.llmlb(&["stop", "-p", "7", "--force"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.stdout.contains("has this PID now and was not stopped"),
        "{ran:?}"
    );
    assert!(llmlb::lock::is_process_running(bystander.pid()));
    bystander.kill();
}

#[test]
fn stop_is_refused_for_an_unproven_owner() {
    let lock_dir = LockDir::new();
    let server = lock_dir.stand_in(8, "end");
    let text = r#"{"pid":1,"started_at":"2026-01-30T12:00:00Z","port":8}"#;
    fs::write(lock_dir.lock_file(8), text).expect("written");
    let ran = lock_dir.llmlb(&["stop", "-p", "8", "--force"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(
        ran.stderr
            .starts_with("llmlb: The server on port 8 was not stopped: it is held, but process 1,"),
        "{ran:?}"
    );
    assert!(llmlb::lock::is_process_running(server.pid()));
}

#[test]
fn stop_reports_another_program_on_the_port() {
    let lock_dir = LockDir::new();
    let status_server = status_server("");
    let port = status_server.address.port();
    let ran = lock_dir.llmlb(&["stop", "-p", &port.to_string()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut lines = ran.stdout.lines();
    assert_eq!(
        lines.next(),
        Some(format!("No server running on port {port}").as_str())
    );
    let line = lines.next().unwrap_or_default();
    let expected = format!("Another program listens on port {port}");
    assert!(line.starts_with(&expected), "{line}");
    if cfg!(target_os = "linux") {
        assert!(
            line.contains(&format!("pid {}", std::process::id())),
            "{line}"
        );
    }
}
