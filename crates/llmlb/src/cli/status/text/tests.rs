use super::super::tests::{answer, healthy, info, nginx, now, running, server};
use super::*;

#[test]
fn one_server_is_a_list() {
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
  backends   1 of 2 up
    gpu1     up    http://10.0.0.5:8000  3 models, 1 in flight, 500 requests, last error 500 Internal Server Error (30 s ago)
    big-gpu  down  http://10.0.0.6:8000  connection refused
  usage      130 recorded, sent to https://b.example/u, last delivery 12 s ago";
    let server = running(32768, healthy());
    assert_eq!(one(&server, now()), expected);
    assert_eq!(all(&[server], now()), expected);
}

#[test]
fn one_that_cannot_be_seen_says_so_and_where_its_lock_is() {
    let hidden = Running {
        proof: Proof::NotVisible,
        pid: None,
        health: Health::NoAnswer("connection refused".to_owned()),
        ..healthy()
    };
    assert_eq!(
        one(&running(32768, hidden), now()),
        "\
Server on port 32768
  state      running (PID not visible here)
  PID        unknown; 1234 by its own account
  started    2026-01-30T12:00:00Z (9 min ago)
  uptime     9 min
  version    0.1.0
  address    127.0.0.1:32768
  owner      ann@box
  health     no answer (connection refused)
  lock       /l/serve_32768.lock"
    );
    let closed = Running {
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
            "  health     ok (not proven to be its answer)",
        ]
    );
}

#[test]
fn a_port_that_somebody_else_answers_on_is_told_with_who_that_is() {
    let health = Health::WrongProcess { pid: 7 };
    let mut server = running(
        8000,
        Running {
            health,
            ..healthy()
        },
    );
    server.port_in_use_by = Some(nginx());
    let text = one(&server, now());
    assert!(
        text.ends_with(
            "
  health     answered by another process (PID: 7)
Another program answers on port 8000: pid 7 (nginx)"
        ),
        "{text}"
    );
}

#[test]
fn several_servers_are_a_table_and_leftovers_follow() {
    let suspended = Running {
        suspended: true,
        file_gone: true,
        health: Health::NoAnswer("it is suspended".to_owned()),
        ..healthy()
    };
    let unknown = Running {
        proof: Proof::Unknown,
        pid: None,
        info: None,
        user: None,
        health: answer("draining"),
        ..healthy()
    };
    let found = [
        running(80, healthy()),
        server(81, State::Unusable("it is a directory".into())),
        running(8000, suspended),
        running(9000, unknown),
    ];
    assert_eq!(
        all(&found, now()),
        "\
PORT  STATE                                PID   STARTED               UPTIME  VERSION  HEALTH                                  BACKENDS  IN FLIGHT
80    running                              1234  2026-01-30T12:00:00Z  9 min   0.1.1    ok                                      1/2       3
8000  running (suspended, lock file gone)  1234  2026-01-30T12:00:00Z  9 min   0.1.0    no answer (it is suspended)             -         -
9000  running (owner unknown)              -     -                     9 min   0.1.1    draining (not proven to be its answer)  1/2       3
Port 81: /l/serve_81.lock is no lock file (it is a directory); no server can start until it is removed"
    );
}

#[test]
fn no_server_is_told_with_what_lies_there_instead() {
    let cases = [
        (State::NotRunning, None),
        (
            State::Stale(Some(Box::new(info()))),
            Some(
                "/l/serve_80.lock is the stale lock file of PID 1234 (started \
                 2026-01-30T12:00:00Z), which is gone; it is harmless, the next server takes it",
            ),
        ),
        (
            State::Stale(None),
            Some(
                "/l/serve_80.lock is the stale lock file; it is harmless, the next server takes it",
            ),
        ),
        (
            State::Unreadable("it is empty".into()),
            Some(
                "/l/serve_80.lock is no lock record (it is empty); it is harmless, the next server \
                 takes it",
            ),
        ),
        (
            State::OtherUser("bob".into()),
            Some("/l/serve_80.lock belongs to bob; nobody is seen to hold it"),
        ),
        (
            State::Unknown {
                user: "bob".into(),
                why: "it cannot be seen".into(),
            },
            Some("/l/serve_80.lock belongs to bob, and it cannot be seen: a server may run"),
        ),
        (
            State::Unusable("it is a directory".into()),
            Some(
                "/l/serve_80.lock is no lock file (it is a directory); no server can start until \
                 it is removed",
            ),
        ),
    ];
    for (state, more) in cases {
        let mut server = server(80, state);
        server.port_in_use_by = Some(nginx());
        let mut lines = vec!["No server running on port 80"];
        lines.extend(more);
        lines.push("Another program answers on port 80: pid 7 (nginx)");
        assert_eq!(one(&server, now()), lines.join("\n"));
    }
    assert_eq!(all(&[], now()), "No servers running");
}

#[test]
fn a_server_cannot_steer_the_terminal() {
    assert_eq!(plain("a\x1b[31m\r\nb"), "a [31m  b");
}
