//! `serve` with a receiver: staged records are delivered while it runs, and once more when it ends.
#![cfg(unix)]

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::support::{HeldReceiver, Server, UsageSandbox};
use testkit::{DEADLINE, Reply, UsageReceiver, eventually};

/// Interval of scheduled deliveries. It is so long that deliveries run only at the start and at the
/// end of the server.
const HOUR: (&str, &str) = ("LLMLB_USAGE_EVERY", "1h");

/// Returns the number of log lines at which a problem begins, without its reminders.
fn problems(log: &str) -> usize {
    let lines = log.lines().filter(|line| line.contains("warning: usage: "));
    lines
        .filter(|line| !line.contains("usage: problem persists"))
        .count()
}

fn serve(sandbox: &UsageSandbox, url: &str, settings: &[(&str, &str)]) -> Server {
    sandbox.serve(&[&[("LLMLB_USAGE_URL", url)], settings].concat())
}

#[test]
fn staged_records_are_delivered_at_the_start_and_on_the_interval() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(200));
    sandbox.stage(150);
    let settings = [("LLMLB_USAGE_EVERY", "1s"), ("LLMLB_USAGE_TOKEN", "s3cret")];
    let server = serve(&sandbox, &receiver.url, &settings);
    server.until("the first records are delivered", |usage| {
        usage["delivered"] == 150
    });
    sandbox.stage(1);
    let usage = server.until("the next record is delivered", |usage| {
        usage["delivered"] == 151
    });
    assert_eq!(usage["to"], receiver.url.as_str());
    assert_eq!(
        (&usage["waiting"], &usage["error"]),
        (&0.into(), &Value::Null)
    );
    let request = receiver.batches().remove(0);
    assert_eq!(request.head.field("authorization"), Some("Bearer s3cret"));
    let agent = concat!("llmlb/", env!("CARGO_PKG_VERSION"));
    assert_eq!(request.head.field("user-agent"), Some(agent));
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    assert_eq!(sandbox.books()["delivered"], 151);
    assert!(!server.log().contains("s3cret"));
}

#[test]
fn records_staged_last_are_delivered_when_the_server_ends() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(200));
    let server = serve(&sandbox, &receiver.url, &[HOUR]);
    server.until("the first run has ended", |usage| {
        usage["last_run"].is_string()
    });
    sandbox.stage(3);
    assert_eq!(receiver.batches().len(), 0);
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    assert_eq!(receiver.numbers(), [1, 2, 3]);
    assert_eq!(sandbox.books()["delivered"], 3);
}

#[test]
fn cloudevents_are_delivered_if_configured() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(204));
    sandbox.stage(2);
    let server = serve(
        &sandbox,
        &receiver.url,
        &[("LLMLB_USAGE_FORMAT", "cloudevents")],
    );
    server.until("the records are delivered", |usage| usage["delivered"] == 2);
    let request = receiver.batches().remove(0);
    assert_eq!(
        request.head.field("content-type"),
        Some("application/cloudevents-batch+json")
    );
    assert_eq!(request.json()[1]["data"]["n"], 2);
}

#[test]
fn receiver_that_is_down_is_logged_once_and_gets_every_record_when_it_is_up() {
    let sandbox = UsageSandbox::new();
    let is_down = Arc::new(AtomicBool::new(true));
    let down = Arc::clone(&is_down);
    let receiver = UsageReceiver::judging(move |_| {
        // `retry-after: 0` permits a retry at the next scheduled run. Without it the server would
        // wait longer after each failure.
        if down.load(Ordering::SeqCst) {
            Reply::response(503, &[("retry-after", "0")], "")
        } else {
            Reply::response(200, &[], "")
        }
    });
    sandbox.stage(2);
    let server = serve(&sandbox, &receiver.url, &[("LLMLB_USAGE_EVERY", "1s")]);
    let usage = server.until("an error is reported", |usage| usage["error"].is_string());
    assert_eq!(usage["waiting"], 1);
    assert!(usage["error"].as_str().unwrap().contains("503"), "{usage}");
    let first = usage["last_run"].clone();
    let again = server.until("another run has ended", |usage| usage["last_run"] != first);
    let ran = sandbox.status(&server, "");
    assert!(
        ran.stdout
            .contains(", 1 batch pending\n    1 batch pending: "),
        "{ran:?}"
    );
    server.until("one more run has ended", |usage| {
        usage["last_run"] != again["last_run"]
    });
    is_down.store(false, Ordering::SeqCst);
    let usage = server.until("the records are delivered", |usage| usage["delivered"] == 2);
    assert_eq!(usage["error"], Value::Null);
    assert_eq!(server.stop(), Some(0));
    let log = server.log();
    assert_eq!(problems(&log), 1, "{log}");
    assert_eq!(
        log.matches("usage: delivery works again, after ").count(),
        1,
        "{log}"
    );
    assert_eq!(sandbox.books()["delivered"], 2);
}

#[test]
fn wrong_token_is_logged_once() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(401));
    sandbox.stage(1);
    let server = serve(&sandbox, &receiver.url, &[("LLMLB_USAGE_EVERY", "1s")]);
    let usage = server.until("an error is reported", |usage| usage["error"].is_string());
    let next = |last: &Value| {
        server.until("another run has ended", |usage| {
            usage["last_run"] != last["last_run"]
        })
    };
    next(&next(&usage));
    assert_eq!(server.stop(), Some(0));
    let log = server.log();
    assert!(log.contains(" paused: 401"), "{log}");
    assert_eq!(problems(&log), 1, "{log}");
    let pauses = "warning: delivery paused: the destination accepts no batch";
    assert_eq!(log.matches(pauses).count(), 1, "{log}");
}

#[test]
fn unreachable_receiver_does_not_delay_the_end() {
    let sandbox = UsageSandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let server = serve(&sandbox, &url, &[HOUR]);
    server.until("the first run has ended", |usage| {
        usage["last_run"].is_string()
    });
    sandbox.stage(1);
    assert_eq!(server.stop(), Some(0));
    let log = server.log();
    assert!(
        log.contains("usage: 1 batch pending until the next start"),
        "{log}"
    );
    assert_eq!(sandbox.books()["pending"], 1);
}

#[test]
fn receiver_that_does_not_respond_does_not_prevent_the_end_and_loses_no_record() {
    let sandbox = UsageSandbox::new();
    let held = HeldReceiver::start();
    let server = serve(&sandbox, &held.receiver.url, &[HOUR]);
    server.until("the first run has ended", |usage| {
        usage["last_run"].is_string()
    });
    sandbox.stage(2);
    server.process.terminate().unwrap();
    held.requests.recv_timeout(DEADLINE).unwrap();
    // The receiver never responds to the delivery at the end. The server must exit all the same and
    // keep the records for its next start.
    assert_eq!(server.process.end(), Some(0), "{}", server.log());
    assert!(server.log().contains("are delivered after the next start"));
    drop(held.respond);
    let books = sandbox.books();
    assert_eq!(
        (&books["pending"], &books["problems"]),
        (&2.into(), &serde_json::json!([]))
    );

    let server = serve(&sandbox, &held.receiver.url, &[HOUR]);
    server.until("the records are delivered", |usage| usage["delivered"] == 2);
    let batches = held.receiver.batches();
    assert_eq!(
        batches[0].body, batches[1].body,
        "the retry has the same bytes"
    );
    assert_eq!(server.stop(), Some(0));
    assert_eq!(sandbox.books()["delivered"], 2);
}

#[test]
fn second_signal_does_not_wait_for_the_last_delivery() {
    let sandbox = UsageSandbox::new();
    let held = HeldReceiver::start();
    let server = serve(&sandbox, &held.receiver.url, &[HOUR]);
    server.until("the first run has ended", |usage| {
        usage["last_run"].is_string()
    });
    sandbox.stage(1);
    server.process.terminate().unwrap();
    held.requests.recv_timeout(DEADLINE).unwrap();
    server.process.terminate().unwrap();
    assert_eq!(server.process.end(), Some(0), "{}", server.log());
    assert!(!server.log().contains("did not respond in time"));
    drop(held.respond);
    assert_eq!(sandbox.books()["pending"], 1);
}

#[test]
fn servers_that_share_a_data_directory_deliver_each_record_once() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(200));
    let every = [("LLMLB_USAGE_EVERY", "1s")];
    let servers = [(); 2].map(|()| serve(&sandbox, &receiver.url, &every));
    for count in 1..=5 {
        sandbox.stage(1);
        eventually("the record is delivered", || {
            (receiver.batches().len() == count).then_some(())
        });
    }
    // Stage records that both servers try to deliver at their end. Each must be delivered once.
    sandbox.stage(200);
    for server in &servers {
        server.process.terminate().unwrap();
    }
    for server in &servers {
        assert_eq!(server.process.end(), Some(0), "{}", server.log());
        let log = server.log();
        assert!(!log.contains("warning"), "{log}");
    }
    assert_eq!(receiver.numbers().len(), 205);
    assert_eq!(sandbox.books()["delivered"], 205);
}

#[test]
fn delivery_by_hand_while_a_server_runs_delivers_each_record_once() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(200));
    let server = serve(&sandbox, &receiver.url, &[("LLMLB_USAGE_EVERY", "1s")]);
    for _ in 0..5 {
        sandbox.stage(10);
        let ran = sandbox.usage(&["deliver", "--to", &receiver.url]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    eventually("all records are delivered", || {
        (sandbox.books()["delivered"] == 50).then_some(())
    });
    assert_eq!(receiver.numbers().len(), 50);
    assert_eq!(server.stop(), Some(0));
    let log = server.log();
    assert!(!log.contains("warning"), "{log}");
}
