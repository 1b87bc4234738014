//! S6, S7, S11: `llmlb usage deliver`, once.

use std::net::TcpListener;
use std::sync::mpsc::{Receiver as Channel, channel};
use std::sync::{Mutex, PoisonError};

use crate::support::Place;
use testkit::{Finished, Reply, UsageReceiver};

fn deliver(place: &Place, receiver: &UsageReceiver) -> Finished {
    place.usage(&["deliver", "--to", &receiver.url])
}

#[test]
fn everything_staged_arrives_once_with_its_key() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(200));
    place.stage(250);
    let ran = deliver(&place, &receiver);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = format!("delivered 250 records in 3 batches to {}\n", receiver.url);
    assert_eq!((ran.stdout, ran.stderr.as_str()), (told, ""));
    assert_eq!(receiver.numbers(), (1..=250).collect::<Vec<u64>>());
    let requests = receiver.batches();
    for request in &requests {
        let body = request.json();
        let key = body["idempotency_key"].as_str();
        assert_eq!(request.head.field("idempotency-key"), key);
        assert_eq!(request.head.field("content-type"), Some("application/json"));
        let agent = concat!("llmlb/", env!("CARGO_PKG_VERSION"));
        assert_eq!(request.head.field("user-agent"), Some(agent));
        assert_eq!(request.head.field("authorization"), None);
        assert_eq!(request.head.line, "POST /usage HTTP/1.1");
    }
    let ran = deliver(&place, &receiver);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "no records to deliver\n")
    );
    assert_eq!(receiver.batches().len(), requests.len());
    let books = place.books();
    assert_eq!(
        (&books["staged"], &books["delivered"]),
        (&250.into(), &250.into())
    );
}

#[test]
fn the_receiver_and_the_token_come_from_the_environment_too() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(204));
    place.stage(1);
    let mut command = place.command(&["deliver", "--batch-size", "5"]);
    command
        .env("LLMLB_USAGE_URL", &receiver.url)
        .env("LLMLB_USAGE_TOKEN", "s3cret");
    let ran = Finished::run(&mut command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let request = receiver.batches().remove(0);
    assert_eq!(request.head.field("authorization"), Some("Bearer s3cret"));

    // The flags win.
    let other = UsageReceiver::always(200);
    let file = place.file("token", "another\n");
    place.stage(1);
    let change = "--change-destination";
    let words = ["deliver", change, "--to", &other.url, "--token-file"];
    let mut command = place.command(&words);
    command
        .arg(file)
        .env("LLMLB_USAGE_URL", &receiver.url)
        .env("LLMLB_USAGE_TOKEN", "s3cret");
    assert_eq!(Finished::run(&mut command).code, Some(0));
    let request = other.batches().remove(0);
    assert_eq!(request.head.field("authorization"), Some("Bearer another"));
    assert_eq!(receiver.batches().len(), 1);
}

#[test]
fn without_a_receiver_batches_are_archived_and_can_be_put_back() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(200));
    place.stage(2);
    // Forgetting the receiver is not the wish to have none.
    let ran = place.usage(&["deliver"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("no receiver is configured"), "{ran:?}");
    assert!(
        ran.stderr.contains("`--to URL`") && ran.stderr.contains("`--archive`"),
        "{ran:?}"
    );
    assert_eq!(place.books()["pending"], 2);

    let ran = place.usage(&["deliver", "--archive"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.starts_with("2 records moved to "), "{ran:?}");
    assert!(
        ran.stderr
            .contains("with `llmlb usage resend --archived --all`"),
        "{ran:?}"
    );
    assert_eq!(place.books()["archived"], 2);
    let ran = place.usage(&["deliver", "--archive"]);
    assert_eq!(ran.stdout, "no records to archive\n");
    let ran = place.usage(&["resend", "--archived"]);
    assert!(ran.stdout.contains(&place.files("archive")[0]), "{ran:?}");

    let name = place.files("archive").remove(0);
    let ran = place.usage(&["resend", &format!("data/archive/{name}")]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 batch moved back into the spool\n"),
        "{ran:?}"
    );
    assert_eq!(deliver(&place, &receiver).code, Some(0));
    assert_eq!(receiver.numbers(), [1, 2]);
    assert_eq!(place.books()["delivered"], 2);
}

#[test]
fn where_nobody_listens_batches_wait_and_it_is_told_what_to_do() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    place.stage(1);
    let words = ["deliver", "--to", &url, "--max-wait", "1ms"];
    let ran = place.usage(&words);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(1), "delivered no records\n"),
        "{ran:?}"
    );
    assert!(
        ran.stderr.contains(&format!(
            "llmlb: 1 batch pending: {url}: connection refused\n"
        )),
        "{ran:?}"
    );
    assert!(
        ran.stderr
            .contains("hint: show the time of the next retry with `llmlb usage pending`"),
        "{ran:?}"
    );
    assert_eq!(place.books()["pending"], 1);
}

#[test]
fn a_wrong_token_pauses_delivery_and_loses_nothing() {
    let place = Place::new();
    let receiver = UsageReceiver::judging(|request| {
        let is_right = request.head.field("authorization") == Some("Bearer right");
        let status = if is_right { 200 } else { 401 };
        Reply::response(status, &[], "")
    });
    place.stage(201);
    let ran = deliver(&place, &receiver);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told =
        "llmlb: 3 batches pending: delivery paused: the receiver responded 401 Unauthorized\n";
    assert!(ran.stderr.contains(told), "{ran:?}");
    let again = format!("`llmlb usage deliver --to {} --now`", receiver.url);
    assert!(ran.stderr.contains(&again), "{ran:?}");
    assert_eq!(
        receiver.batches().len(),
        1,
        "the others were not even tried"
    );
    let ran = place.usage(&["pending"]);
    let paused = format!("delivery to {} paused until 20", receiver.url);
    assert!(ran.stdout.contains(&paused), "{ran:?}");
    let again = "retry at once with `llmlb usage deliver --to URL --now`\n";
    assert!(ran.stdout.contains(again), "{ran:?}");

    let mut command = place.command(&["deliver", "--now", "--to", &receiver.url]);
    let ran = Finished::run(command.env("LLMLB_USAGE_TOKEN", "right"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(place.books()["delivered"], 201);
    let ran = place.usage(&["pending"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "no batches pending\n")
    );
}

/// S7: neither the URL nor the token is wrong.
#[test]
fn hint_for_a_receiver_that_rejects_every_record_names_format_and_size() {
    for status in [400, 413, 422] {
        let place = Place::new();
        let receiver = UsageReceiver::always(status);
        place.stage(4);
        let ran = deliver(&place, &receiver);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let told = "pending: the receiver rejects every record that it was sent: ";
        assert!(ran.stderr.contains(told), "{ran:?}");
        assert!(!ran.stderr.contains("token"), "{ran:?}");
        for hint in ["--format", "413", "`llmlb usage pending`", "--now`"] {
            assert!(ran.stderr.contains(hint), "{hint}: {ran:?}");
        }
        assert_eq!(place.books()["pending"], 4);
    }
}

#[test]
fn programs_are_told_what_was_done() {
    let place = Place::new();
    let told = |receiver: &UsageReceiver, code: i32| {
        let change = "--change-destination";
        let words = ["deliver", "--json", "--now", change, "--to", &receiver.url];
        let ran = place.usage(&words);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        ran.json()
    };
    let up = UsageReceiver::always(200);
    let document = told(&up, 0);
    assert_eq!(
        (&document["delivered"], &document["waiting"]),
        (&0.into(), &0.into())
    );
    assert!(!place.data().exists(), "nothing was made");
    place.stage(150);
    let down = UsageReceiver::always(401);
    let document = told(&down, 1);
    assert_eq!(
        (&document["version"], &document["waiting"]),
        (&1.into(), &2.into())
    );
    assert_eq!(document["to"], down.url.as_str());
    assert_eq!(document["paused"]["misconfigured"], true);
    assert_eq!(document["last_error"], "401 Unauthorized");
    let document = told(&up, 0);
    assert_eq!(
        (&document["delivered"], &document["batches"]),
        (&150.into(), &2.into())
    );
    assert_eq!(document["paused"], serde_json::Value::Null);
    for field in ["skipped", "archived", "failed", "unreadable"] {
        assert!(document.get(field).is_some(), "{field} in {document}");
    }
    place.stage(3);
    let ran = place.usage(&["deliver", "--json", "--archive", "--change-destination"]);
    assert_eq!(
        (&ran.json()["archived"], ran.stderr.as_str()),
        (&3.into(), "")
    );
    let ran = place.usage(&["deliver", "--json", "--archive", "--every", "1h"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn a_conflict_is_success_unless_told_otherwise() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(409));
    place.stage(1);
    assert_eq!(deliver(&place, &receiver).code, Some(0));
    place.stage(1);
    let ran = place.usage(&["deliver", "--to", &receiver.url, "--conflict-is-failure"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let books = place.books();
    assert_eq!(
        (&books["delivered"], &books["failed"]),
        (&1.into(), &1.into())
    );
}

/// A receiver that says when it was asked, and answers when it is told to.
fn slow() -> (UsageReceiver, Channel<()>, std::sync::mpsc::Sender<()>) {
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
fn of_two_at_once_the_second_is_skipped_and_says_who_is_at_it() {
    let place = Place::new();
    let (receiver, was_asked, go) = slow();
    place.stage(1);
    let words = ["deliver", "--to", &receiver.url];
    let first = place.start(&mut place.command(&words));
    was_asked.recv().unwrap();
    let ran = place.usage(&words);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = format!("skipped: PID {} is already delivering from ", first.pid());
    assert!(ran.stdout.starts_with(&told), "{ran:?}");
    let ran = place.usage(&[&words[..], &["--json"]].concat());
    assert_eq!((ran.code, &ran.json()["skipped"]), (Some(0), &true.into()));
    let name = place.files("spool").remove(0);
    let ran = place.usage(&["resend", &name]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    go.send(()).unwrap();
    assert_eq!(first.end(), Some(0), "{}", first.output());
    assert_eq!(receiver.batches().len(), 1);
}

#[cfg(unix)]
#[test]
fn the_first_signal_lets_a_batch_end_and_the_second_does_not_wait() {
    use std::process::Command;

    let place = Place::new();
    let (receiver, was_asked, go) = slow();
    place.stage(150);
    let words = ["deliver", "--to", &receiver.url];
    let terminate = |pid: u32| {
        let status = Command::new("kill")
            .args(["-TERM", &pid.to_string()])
            .status();
        assert!(status.unwrap().success());
    };
    let run = place.start(&mut place.command(&words));
    was_asked.recv().unwrap();
    terminate(run.pid());
    testkit::eventually("the news", || {
        run.output()
            .contains("SIGTERM received: exiting")
            .then_some(())
    });
    go.send(()).unwrap();
    assert_eq!(run.end(), Some(1), "{}", run.output());
    assert!(
        run.output()
            .contains("the delivery was interrupted by a signal"),
        "{}",
        run.output()
    );
    assert_eq!(receiver.batches().len(), 1);

    let run = place.start(&mut place.command(&words));
    was_asked.recv().unwrap();
    terminate(run.pid());
    testkit::eventually("the news", || {
        run.output()
            .contains("SIGTERM received: exiting")
            .then_some(())
    });
    terminate(run.pid());
    assert_eq!(run.end(), Some(1), "{}", run.output());
    drop(go);
    // What was in the air is sent again, with the same key.
    assert_eq!(
        place
            .usage(&["deliver", "--now", "--to", &receiver.url])
            .code,
        Some(0)
    );
    let requests = receiver.batches();
    assert_eq!(requests[1].body, requests[2].body);
    assert_eq!(place.books()["delivered"], 150);
}

/// The bounds of `serve` hold without it, too: a timer may be all that delivers.
#[test]
fn deliver_keeps_the_archive_within_the_bounds_that_are_set() {
    let place = Place::new();
    place.stage(3);
    assert_eq!(place.usage(&["deliver", "--archive"]).code, Some(0));
    let old = place.files("archive");
    assert_eq!(old.len(), 1);
    let path = place.data().join("archive").join(&old[0]);
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let day = std::time::Duration::from_secs(24 * 3600);
    file.set_modified(std::time::SystemTime::now() - 2 * day)
        .unwrap();
    drop(file);
    assert_eq!(place.usage(&["deliver", "--archive"]).code, Some(0));
    assert_eq!(place.files("archive"), old, "nothing is deleted by default");

    let deliver = |age: &str| {
        let mut command = place.command(&["deliver", "--archive"]);
        command.env("LLMLB_USAGE_ARCHIVE_MAX_AGE", age);
        Finished::run(&mut command)
    };
    let ran = deliver("long");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("LLMLB_USAGE_ARCHIVE_MAX_AGE"),
        "{ran:?}"
    );
    assert_eq!(place.files("archive"), old);
    assert_eq!(deliver("36h").code, Some(0));
    assert_eq!(place.files("archive"), [""; 0]);
    assert_eq!(place.books()["archived"], 3);
}
