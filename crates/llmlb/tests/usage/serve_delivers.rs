//! `serve` with a receiver: what is staged is delivered while it runs, and once more at its end.
#![cfg(unix)]

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::support::{Place, Server};
use testkit::{DEADLINE, Reply, UsageReceiver, eventually};

/// Only what is there at the start, and at the end.
const HOUR: (&str, &str) = ("LLMLB_USAGE_EVERY", "1h");

/// How many problems the log says have begun.
fn began(said: &str) -> usize {
    let lines = said
        .lines()
        .filter(|line| line.contains("warning: usage: "));
    lines.filter(|line| !line.contains("usage: still,")).count()
}

fn serve(place: &Place, url: &str, settings: &[(&str, &str)]) -> Server {
    place.serve(&[&[("LLMLB_USAGE_URL", url)], settings].concat())
}

#[test]
fn what_is_staged_is_delivered_at_the_start_and_on_the_interval() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(200));
    place.stage(150);
    let settings = [("LLMLB_USAGE_EVERY", "1s"), ("LLMLB_USAGE_TOKEN", "s3cret")];
    let server = serve(&place, &receiver.url, &settings);
    server.until("the first", |usage| usage["delivered"] == 150);
    place.stage(1);
    let usage = server.until("the next", |usage| usage["delivered"] == 151);
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
    assert_eq!(place.books()["delivered"], 151);
    assert!(!server.log().contains("s3cret"));
}

#[test]
fn what_is_staged_last_is_delivered_when_the_server_ends() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(200));
    let server = serve(&place, &receiver.url, &[HOUR]);
    server.until("the first run", |usage| usage["last_run"].is_string());
    place.stage(3);
    assert_eq!(receiver.batches().len(), 0);
    assert_eq!(server.stop(), Some(0), "{}", server.log());
    assert_eq!(receiver.numbers(), [1, 2, 3]);
    assert_eq!(place.books()["delivered"], 3);
}

#[test]
fn events_are_posted_if_that_is_set() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(204));
    place.stage(2);
    let server = serve(
        &place,
        &receiver.url,
        &[("LLMLB_USAGE_FORMAT", "cloudevents")],
    );
    server.until("its delivery", |usage| usage["delivered"] == 2);
    let request = receiver.batches().remove(0);
    assert_eq!(
        request.head.field("content-type"),
        Some("application/cloudevents-batch+json")
    );
    assert_eq!(request.json()[1]["data"]["n"], 2);
}

#[test]
fn a_receiver_that_is_down_is_told_once_and_gets_everything_when_it_is_up() {
    let place = Place::new();
    let is_down = Arc::new(AtomicBool::new(true));
    let down = Arc::clone(&is_down);
    let receiver = UsageReceiver::judging(move |_| {
        // So that nobody waits long.
        if down.load(Ordering::SeqCst) {
            Reply::response(503, &[("retry-after", "0")], "")
        } else {
            Reply::response(200, &[], "")
        }
    });
    place.stage(2);
    let server = serve(&place, &receiver.url, &[("LLMLB_USAGE_EVERY", "1s")]);
    let usage = server.until("the trouble", |usage| usage["error"].is_string());
    assert_eq!(usage["waiting"], 1);
    assert!(usage["error"].as_str().unwrap().contains("503"), "{usage}");
    let first = usage["last_run"].clone();
    let again = server.until("another run", |usage| usage["last_run"] != first);
    let ran = place.status(&server, "");
    assert!(
        ran.stdout
            .contains(", 1 batch pending\n    1 batch pending: "),
        "{ran:?}"
    );
    server.until("one more", |usage| usage["last_run"] != again["last_run"]);
    is_down.store(false, Ordering::SeqCst);
    let usage = server.until("its delivery", |usage| usage["delivered"] == 2);
    assert_eq!(usage["error"], Value::Null);
    assert_eq!(server.stop(), Some(0));
    let said = server.log();
    assert_eq!(began(&said), 1, "{said}");
    assert_eq!(
        said.matches("usage: delivery works again, after ").count(),
        1,
        "{said}"
    );
    assert_eq!(place.books()["delivered"], 2);
}

#[test]
fn a_wrong_token_is_told_once() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(401));
    place.stage(1);
    let server = serve(&place, &receiver.url, &[("LLMLB_USAGE_EVERY", "1s")]);
    let usage = server.until("the trouble", |usage| usage["error"].is_string());
    let next = |last: &Value| server.until("a run", |usage| usage["last_run"] != last["last_run"]);
    next(&next(&usage));
    assert_eq!(server.stop(), Some(0));
    let said = server.log();
    assert!(said.contains(" paused: 401"), "{said}");
    assert_eq!(began(&said), 1, "{said}");
    let pauses = "warning: delivery paused: the destination accepts no batch";
    assert_eq!(said.matches(pauses).count(), 1, "{said}");
}

#[test]
fn a_receiver_that_is_not_there_does_not_hold_up_the_end() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let server = serve(&place, &url, &[HOUR]);
    server.until("the first run", |usage| usage["last_run"].is_string());
    place.stage(1);
    assert_eq!(server.stop(), Some(0));
    let said = server.log();
    assert!(
        said.contains("usage: 1 batch pending until the next start"),
        "{said}"
    );
    assert_eq!(place.books()["pending"], 1);
}

/// A receiver that does not answer until it is told to.
fn silent() -> (
    UsageReceiver,
    std::sync::mpsc::Receiver<()>,
    std::sync::mpsc::Sender<()>,
) {
    let (asked, was_asked) = channel();
    let (go, may_go) = channel::<()>();
    let (asked, may_go) = (Mutex::new(asked), Mutex::new(may_go));
    let receiver = UsageReceiver::judging(move |_| {
        let _ = asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .send(());
        let _ = may_go.lock().unwrap_or_else(PoisonError::into_inner).recv();
        Reply::response(200, &[], "")
    });
    (receiver, was_asked, go)
}

#[test]
fn a_receiver_that_does_not_answer_cannot_keep_the_server_and_nothing_is_lost() {
    let place = Place::new();
    let (receiver, was_asked, go) = silent();
    let server = serve(&place, &receiver.url, &[HOUR]);
    server.until("the first run", |usage| usage["last_run"].is_string());
    place.stage(2);
    server.process.terminate().unwrap();
    was_asked.recv_timeout(DEADLINE).unwrap();
    // It ends while the receiver still says nothing.
    assert_eq!(server.process.end(), Some(0), "{}", server.log());
    assert!(server.log().contains("are delivered after the next start"));
    drop(go);
    let books = place.books();
    assert_eq!(
        (&books["pending"], &books["problems"]),
        (&2.into(), &serde_json::json!([]))
    );

    let server = serve(&place, &receiver.url, &[HOUR]);
    server.until("its delivery", |usage| usage["delivered"] == 2);
    let requests = receiver.batches();
    assert_eq!(
        requests[0].body, requests[1].body,
        "the same, under the same key"
    );
    assert_eq!(server.stop(), Some(0));
    assert_eq!(place.books()["delivered"], 2);
}

#[test]
fn a_second_signal_does_not_wait_for_the_last_delivery() {
    let place = Place::new();
    let (receiver, was_asked, go) = silent();
    let server = serve(&place, &receiver.url, &[HOUR]);
    server.until("the first run", |usage| usage["last_run"].is_string());
    place.stage(1);
    server.process.terminate().unwrap();
    was_asked.recv_timeout(DEADLINE).unwrap();
    server.process.terminate().unwrap();
    assert_eq!(server.process.end(), Some(0), "{}", server.log());
    assert!(!server.log().contains("takes too long"));
    drop(go);
    assert_eq!(place.books()["pending"], 1);
}

#[test]
fn two_servers_on_one_data_directory_deliver_each_record_once() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(200));
    let every = [("LLMLB_USAGE_EVERY", "1s")];
    let servers = [(); 2].map(|()| serve(&place, &receiver.url, &every));
    for count in 1..=5 {
        place.stage(1);
        eventually("its delivery", || {
            (receiver.batches().len() == count).then_some(())
        });
    }
    // Both have something to do at their end.
    place.stage(200);
    for server in &servers {
        server.process.terminate().unwrap();
    }
    for server in &servers {
        assert_eq!(server.process.end(), Some(0), "{}", server.log());
        let said = server.log();
        assert!(!said.contains("warning"), "{said}");
    }
    assert_eq!(receiver.numbers().len(), 205);
    assert_eq!(place.books()["delivered"], 205);
}

#[test]
fn a_delivery_by_hand_while_the_server_runs_is_no_trouble() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(200));
    let server = serve(&place, &receiver.url, &[("LLMLB_USAGE_EVERY", "1s")]);
    for _ in 0..5 {
        place.stage(10);
        let ran = place.usage(&["deliver", "--to", &receiver.url]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    eventually("all of them", || {
        (place.books()["delivered"] == 50).then_some(())
    });
    assert_eq!(receiver.numbers().len(), 50);
    assert_eq!(server.stop(), Some(0));
    let said = server.log();
    assert!(!said.contains("warning"), "{said}");
}
