use super::super::tests::{health as health_with, healthy, info, nginx, now, running, server};
use super::*;

#[test]
fn single_server_is_shown_as_a_list() {
    let expected = "\
Server on port 32768
  state      running
  PID        1234
  started    2026-01-30T12:00:00Z (9 min ago)
  uptime     9 min
  version    0.1.1
  address    127.0.0.1:32768
  owner      ann@box
  health     ok
  in flight  3, 1 waiting for a slot
  requests   1000
  clients    12 of 448 connections, 40 rejected
  API keys   3; 7 requests refused
  backends   1 of 2 up
    gpu1     up    http://10.0.0.5:8000  3 models, 1 in flight, 500 requests, last error 500 Internal Server Error (30 s ago)
    big-gpu  down  http://10.0.0.6:8000  connection refused
  usage      130 recorded, sent to https://b.example/u, last delivery 12 s ago
  tls        certificate for localhost, expires in 47 h";
    let server = running(32768, healthy());
    assert_eq!(one(&server, now()), expected);
    assert_eq!(all(&[server], now()), expected);
}

#[test]
fn server_with_an_invisible_pid_is_shown_with_its_lock_file() {
    let hidden = RunningServer {
        proof: Proof::NotVisible,
        pid: None,
        health: Health::NoResponse("connection refused".to_owned()),
        ..healthy()
    };
    assert_eq!(
        one(&running(32768, hidden), now()),
        "\
Server on port 32768
  state      running (PID not visible here)
  PID        unknown; 1234 by its lock record
  started    2026-01-30T12:00:00Z (9 min ago)
  uptime     9 min
  version    0.1.0
  address    127.0.0.1:32768
  owner      ann@box
  health     no response (connection refused)
  lock       /l/serve_32768.lock"
    );
    let closed = RunningServer {
        proof: Proof::OtherUser,
        pid: None,
        info: None,
        ..healthy()
    };
    assert_eq!(
        one(&running(32768, closed), now())
            .lines()
            .take(7)
            .collect::<Vec<_>>(),
        [
            "Server on port 32768",
            "  state      running (another user's)",
            "  PID        unknown",
            "  uptime     9 min",
            "  version    0.1.1",
            "  owner      ann",
            "  health     ok (responding process not proven to hold the lock)",
        ]
    );
}

#[test]
fn other_program_on_the_port_is_shown_with_its_name() {
    let health = Health::WrongProcess { pid: 7 };
    let mut server = running(
        8000,
        RunningServer {
            health,
            ..healthy()
        },
    );
    server.port_in_use_by = Some(nginx());
    let text = one(&server, now());
    assert!(
        text.ends_with(
            "
  health     another process responded (PID: 7)
Another program listens on port 8000: pid 7 (nginx)"
        ),
        "{text}"
    );
}

#[test]
fn several_servers_are_shown_as_a_table_with_stale_files_below() {
    let suspended = RunningServer {
        suspended: true,
        file_gone: true,
        health: Health::NoResponse("the process is suspended".to_owned()),
        ..healthy()
    };
    let unknown = RunningServer {
        proof: Proof::Unknown,
        pid: None,
        info: None,
        user: None,
        health: health_with("draining"),
        ..healthy()
    };
    let found = [
        running(80, healthy()),
        server(81, ServerState::Unusable("it is a directory".into())),
        running(8000, suspended),
        running(9000, unknown),
    ];
    assert_eq!(
        all(&found, now()),
        "\
PORT  STATE                                PID   STARTED               UPTIME  VERSION  HEALTH                                                     BACKENDS  IN FLIGHT
80    running                              1234  2026-01-30T12:00:00Z  9 min   0.1.1    ok                                                         1/2       3
8000  running (suspended, lock file gone)  1234  2026-01-30T12:00:00Z  9 min   0.1.0    no response (the process is suspended)                     -         -
9000  running (owner unknown)              -     -                     9 min   0.1.1    draining (responding process not proven to hold the lock)  1/2       3
Port 81: /l/serve_81.lock is not a lock file (it is a directory); no server can start until it is removed"
    );
}

#[test]
fn missing_server_is_shown_with_the_state_of_its_lock_file() {
    let cases = [
        (ServerState::NotRunning, None),
        (
            ServerState::Stale(Some(Box::new(info()))),
            Some(
                "/l/serve_80.lock is the stale lock file of PID 1234 (started \
                 2026-01-30T12:00:00Z), which no longer runs; it is harmless: the next server \
                 takes it over",
            ),
        ),
        (
            ServerState::Stale(None),
            Some(
                "/l/serve_80.lock is the stale lock file; it is harmless: the next server takes it over",
            ),
        ),
        (
            ServerState::Unreadable("it is empty".into()),
            Some(
                "/l/serve_80.lock has no valid lock record (it is empty); it is harmless: the next \
                 server takes it over",
            ),
        ),
        (
            ServerState::OtherUser("bob".into()),
            Some("/l/serve_80.lock belongs to bob; no process is seen to hold its lock"),
        ),
        (
            ServerState::Unknown {
                user: "bob".into(),
                why: "it cannot be seen".into(),
            },
            Some(
                "/l/serve_80.lock belongs to bob, and it cannot be seen: a server may be running; \
                 run `llmlb status` as that user or root",
            ),
        ),
        (
            ServerState::Unusable("it is a directory".into()),
            Some(
                "/l/serve_80.lock is not a lock file (it is a directory); no server can start \
                 until it is removed",
            ),
        ),
    ];
    for (state, more) in cases {
        let mut server = server(80, state);
        server.port_in_use_by = Some(nginx());
        let mut lines = vec!["No server running on port 80"];
        lines.extend(more);
        lines.push("Another program listens on port 80: pid 7 (nginx)");
        assert_eq!(one(&server, now()), lines.join("\n"));
    }
    assert_eq!(all(&[], now()), "No servers running");
}

#[test]
fn control_characters_of_a_server_are_replaced() {
    assert_eq!(plain("a\x1b[31m\r\nb"), "a [31m  b");
}
