//! `llmlb usage deliver` without `--every`. (promises S6, S7, S11)

use std::net::TcpListener;

use crate::support::{HeldReceiver, UsageSandbox};
use testkit::{Finished, Reply, UsageReceiver};

fn deliver(sandbox: &UsageSandbox, receiver: &UsageReceiver) -> Finished {
    sandbox.usage(&["deliver", "--to", &receiver.url])
}

#[test]
fn every_staged_record_is_delivered_once_with_an_idempotency_key() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(200));
    sandbox.stage(250);
    let ran = deliver(&sandbox, &receiver);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let message = format!("delivered 250 records in 3 batches to {}\n", receiver.url);
    assert_eq!((ran.stdout, ran.stderr.as_str()), (message, ""));
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
    let ran = deliver(&sandbox, &receiver);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "no records to deliver\n")
    );
    assert_eq!(receiver.batches().len(), requests.len());
    let books = sandbox.books();
    assert_eq!(
        (&books["staged"], &books["delivered"]),
        (&250.into(), &250.into())
    );
}

#[test]
fn receiver_and_token_can_be_set_in_the_environment() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(204));
    sandbox.stage(1);
    let mut command = sandbox.command(&["deliver", "--batch-size", "5"]);
    command
        .env("LLMLB_USAGE_URL", &receiver.url)
        .env("LLMLB_USAGE_TOKEN", "s3cret");
    let ran = Finished::run(&mut command);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let request = receiver.batches().remove(0);
    assert_eq!(request.head.field("authorization"), Some("Bearer s3cret"));

    // `--to` and `--token-file` take precedence over the variables.
    let other = UsageReceiver::always(200);
    let file = sandbox.file("token", "another\n");
    sandbox.stage(1);
    let change = "--change-destination";
    let words = ["deliver", change, "--to", &other.url, "--token-file"];
    let mut command = sandbox.command(&words);
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
fn batches_are_archived_without_a_receiver_and_can_be_resent() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(200));
    sandbox.stage(2);
    // Without a receiver and without `--archive` the command must fail: the user may have forgotten
    // the receiver, and archived records are not sent to any.
    let ran = sandbox.usage(&["deliver"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    assert!(ran.stderr.contains("no receiver is configured"), "{ran:?}");
    assert!(
        ran.stderr.contains("`--to URL`") && ran.stderr.contains("`--archive`"),
        "{ran:?}"
    );
    assert_eq!(sandbox.books()["pending"], 2);

    let ran = sandbox.usage(&["deliver", "--archive"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.starts_with("2 records moved to "), "{ran:?}");
    assert!(
        ran.stderr
            .contains("with `llmlb usage resend --archived --all`"),
        "{ran:?}"
    );
    assert_eq!(sandbox.books()["archived"], 2);
    let ran = sandbox.usage(&["deliver", "--archive"]);
    assert_eq!(ran.stdout, "no records to archive\n");
    let ran = sandbox.usage(&["resend", "--archived"]);
    assert!(ran.stdout.contains(&sandbox.files("archive")[0]), "{ran:?}");

    let name = sandbox.files("archive").remove(0);
    let ran = sandbox.usage(&["resend", &format!("data/archive/{name}")]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 batch moved back into the spool\n"),
        "{ran:?}"
    );
    assert_eq!(deliver(&sandbox, &receiver).code, Some(0));
    assert_eq!(receiver.numbers(), [1, 2]);
    assert_eq!(sandbox.books()["delivered"], 2);
}

#[test]
fn batches_stay_pending_while_the_receiver_is_down() {
    let sandbox = UsageSandbox::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    sandbox.stage(1);
    let words = ["deliver", "--to", &url, "--max-wait", "1ms"];
    let ran = sandbox.usage(&words);
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
    assert_eq!(sandbox.books()["pending"], 1);
}

/// The command in the hint must repeat the flags of the failed delivery. Without them it would
/// fail, or deliver to another receiver.
#[test]
fn hint_to_retry_has_the_flags_of_the_delivery() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(401));
    sandbox.stage(1);
    let token = sandbox.data().join("a token");
    std::fs::write(&token, "t").unwrap();
    let [to, file] = [receiver.url.clone(), token.display().to_string()];
    let flags = ["--allow-http", "--conflict-is-failure"];
    let words = ["deliver", "--to", &to, "--token-file", &file];
    let ran = sandbox.usage(&[&words[..], &flags].concat());
    let retry = format!(
        "`llmlb usage deliver --to {to} --token-file '{file}' {} --now`",
        flags.join(" ")
    );
    assert!(ran.stderr.contains(&retry), "{ran:?}");
}

#[test]
fn wrong_token_pauses_delivery_and_loses_no_record() {
    let sandbox = UsageSandbox::new();
    let receiver = UsageReceiver::judging(|request| {
        let is_right = request.head.field("authorization") == Some("Bearer right");
        let status = if is_right { 200 } else { 401 };
        Reply::response(status, &[], "")
    });
    sandbox.stage(201);
    let ran = deliver(&sandbox, &receiver);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let message =
        "llmlb: 3 batches pending: delivery paused: the receiver responded 401 Unauthorized\n";
    assert!(ran.stderr.contains(message), "{ran:?}");
    let retry = format!("`llmlb usage deliver --to {} --now`", receiver.url);
    assert!(ran.stderr.contains(&retry), "{ran:?}");
    let sent = receiver.batches().len();
    assert_eq!(sent, 1, "the other batches were not sent: {ran:?}");
    let ran = sandbox.usage(&["pending"]);
    let paused = format!("delivery to {} paused until 20", receiver.url);
    assert!(ran.stdout.contains(&paused), "{ran:?}");
    let retry = "retry at once with `llmlb usage deliver --to URL --now`\n";
    assert!(ran.stdout.contains(retry), "{ran:?}");

    let mut command = sandbox.command(&["deliver", "--now", "--to", &receiver.url]);
    let ran = Finished::run(command.env("LLMLB_USAGE_TOKEN", "right"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(sandbox.books()["delivered"], 201);
    let ran = sandbox.usage(&["pending"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "no batches pending\n")
    );
}

/// A receiver that rejects every record was reached with a valid token, so that the hint names neither
/// URL nor token. (promise S7)
#[test]
fn hint_for_a_receiver_that_rejects_every_record_names_format_and_size() {
    for status in [400, 413, 422] {
        let sandbox = UsageSandbox::new();
        let receiver = UsageReceiver::always(status);
        sandbox.stage(4);
        let ran = deliver(&sandbox, &receiver);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let message = "pending: the receiver rejects every record that it was sent: ";
        assert!(ran.stderr.contains(message), "{ran:?}");
        assert!(!ran.stderr.contains("token"), "{ran:?}");
        for hint in ["--format", "413", "`llmlb usage pending`", "--now`"] {
            assert!(ran.stderr.contains(hint), "{hint}: {ran:?}");
        }
        assert_eq!(sandbox.books()["pending"], 4);
    }
}

#[test]
fn deliver_reports_its_result_as_json() {
    let sandbox = UsageSandbox::new();
    let deliver = |receiver: &UsageReceiver, code: i32| {
        let change = "--change-destination";
        let words = ["deliver", "--json", "--now", change, "--to", &receiver.url];
        let ran = sandbox.usage(&words);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        ran.json()
    };
    let up = UsageReceiver::always(200);
    let document = deliver(&up, 0);
    assert_eq!(
        (&document["delivered"], &document["waiting"]),
        (&0.into(), &0.into())
    );
    assert!(
        !sandbox.data().exists(),
        "the data directory was not created"
    );
    sandbox.stage(150);
    let down = UsageReceiver::always(401);
    let document = deliver(&down, 1);
    assert_eq!(
        (&document["version"], &document["waiting"]),
        (&1.into(), &2.into())
    );
    assert_eq!(document["to"], down.url.as_str());
    assert_eq!(document["paused"]["misconfigured"], true);
    assert_eq!(document["last_error"], "401 Unauthorized");
    let document = deliver(&up, 0);
    assert_eq!(
        (&document["delivered"], &document["batches"]),
        (&150.into(), &2.into())
    );
    assert_eq!(document["paused"], serde_json::Value::Null);
    for field in ["skipped", "archived", "failed", "unreadable"] {
        assert!(document.get(field).is_some(), "{field} in {document}");
    }
    sandbox.stage(3);
    let ran = sandbox.usage(&["deliver", "--json", "--archive", "--change-destination"]);
    assert_eq!(
        (&ran.json()["archived"], ran.stderr.as_str()),
        (&3.into(), "")
    );
    let ran = sandbox.usage(&["deliver", "--json", "--archive", "--every", "1h"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn conflict_counts_as_delivered_unless_configured_as_failure() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(409));
    sandbox.stage(1);
    assert_eq!(deliver(&sandbox, &receiver).code, Some(0));
    sandbox.stage(1);
    let ran = sandbox.usage(&["deliver", "--to", &receiver.url, "--conflict-is-failure"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let books = sandbox.books();
    assert_eq!(
        (&books["delivered"], &books["failed"]),
        (&1.into(), &1.into())
    );
}

#[test]
fn concurrent_delivery_is_skipped_and_names_the_pid_of_the_first() {
    let sandbox = UsageSandbox::new();
    let held = HeldReceiver::start();
    sandbox.stage(1);
    let words = ["deliver", "--to", &held.receiver.url];
    let first = sandbox.start(&mut sandbox.command(&words));
    held.requests.recv().unwrap();
    let ran = sandbox.usage(&words);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let message = format!("skipped: PID {} is already delivering from ", first.pid());
    assert!(ran.stdout.starts_with(&message), "{ran:?}");
    let ran = sandbox.usage(&[&words[..], &["--json"]].concat());
    assert_eq!((ran.code, &ran.json()["skipped"]), (Some(0), &true.into()));
    let name = sandbox.files("spool").remove(0);
    let ran = sandbox.usage(&["resend", &name]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    held.respond.send(()).unwrap();
    assert_eq!(first.end(), Some(0), "{}", first.output());
    assert_eq!(held.receiver.batches().len(), 1);
}

#[cfg(unix)]
#[test]
fn first_signal_waits_for_the_current_batch_and_the_second_does_not() {
    use std::process::Command;

    let sandbox = UsageSandbox::new();
    let held = HeldReceiver::start();
    sandbox.stage(150);
    let words = ["deliver", "--to", &held.receiver.url];
    let terminate = |pid: u32| {
        let status = Command::new("kill")
            .args(["-TERM", &pid.to_string()])
            .status();
        assert!(status.unwrap().success());
    };
    let run = sandbox.start(&mut sandbox.command(&words));
    held.requests.recv().unwrap();
    terminate(run.pid());
    run.until_output("SIGTERM received: exiting");
    held.respond.send(()).unwrap();
    assert_eq!(run.end(), Some(1), "{}", run.output());
    assert!(
        run.output()
            .contains("the delivery was interrupted by a signal"),
        "{}",
        run.output()
    );
    assert_eq!(held.receiver.batches().len(), 1);

    let run = sandbox.start(&mut sandbox.command(&words));
    held.requests.recv().unwrap();
    terminate(run.pid());
    run.until_output("SIGTERM received: exiting");
    terminate(run.pid());
    assert_eq!(run.end(), Some(1), "{}", run.output());
    drop(held.respond);
    // The second signal ended the run before the response to a batch arrived. The next run must
    // send this batch again with the same bytes.
    assert_eq!(
        sandbox
            .usage(&["deliver", "--now", "--to", &held.receiver.url])
            .code,
        Some(0)
    );
    let batches = held.receiver.batches();
    assert_eq!(batches[1].body, batches[2].body);
    assert_eq!(sandbox.books()["delivered"], 150);
}

/// `usage deliver --archive` must apply the limits of `archive/` itself, because a server that does
/// may not be running.
#[test]
fn deliver_applies_the_limits_of_the_archive() {
    let sandbox = UsageSandbox::new();
    let old = sandbox.old_archive(3);
    assert_eq!(old.len(), 1);
    assert_eq!(sandbox.usage(&["deliver", "--archive"]).code, Some(0));
    assert_eq!(
        sandbox.files("archive"),
        old,
        "nothing is deleted by default"
    );

    let deliver = |age: &str| {
        let mut command = sandbox.command(&["deliver", "--archive"]);
        command.env("LLMLB_USAGE_ARCHIVE_MAX_AGE", age);
        Finished::run(&mut command)
    };
    let ran = deliver("long");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("LLMLB_USAGE_ARCHIVE_MAX_AGE"),
        "{ran:?}"
    );
    assert_eq!(sandbox.files("archive"), old);
    assert_eq!(deliver("36h").code, Some(0));
    assert_eq!(sandbox.files("archive"), [""; 0]);
    assert_eq!(sandbox.books()["archived"], 3);
}

#[cfg(not(feature = "redis"))]
#[test]
fn lease_store_of_a_build_without_it_is_refused_with_the_name_of_the_feature() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(1);
    for (mut command, name) in [
        (sandbox.command(&["deliver", "--archive"]), "deliver"),
        (sandbox.command(&["consolidate"]), "consolidate"),
    ] {
        command.env("LLMLB_FLEET_STORE", "redis://:hunter2@h");
        let refused = Finished::run(&mut command);
        refused.assert_code(1);
        for words in [
            "LLMLB_FLEET_STORE",
            "--features redis",
            "scripts/build-release",
        ] {
            assert!(
                refused.stderr.contains(words),
                "{name}: {}",
                refused.output()
            );
        }
        assert!(
            !refused.output().contains("hunter2"),
            "{}",
            refused.output()
        );
    }
    assert_eq!(sandbox.files("_staging").len(), 1);
}
