//! `deliver --every`. (promise S11)
#![cfg(unix)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::UsageSandbox;
use testkit::{Reply, UsageReceiver, eventually};

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn scheduled_delivery_runs_until_a_signal() {
    for name in ["-TERM", "-INT"] {
        let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(200));
        sandbox.stage(1);
        let words = ["deliver", "--to", &receiver.url, "--every", "100ms"];
        let run = sandbox.start(&mut sandbox.command(&words));
        eventually("the first record is delivered", || {
            (receiver.numbers() == [1]).then_some(())
        });
        sandbox.stage(2);
        eventually("the other records are delivered", || {
            (receiver.numbers() == [1, 1, 2]).then_some(())
        });
        signal(name, run.pid());
        assert_eq!(run.end(), Some(0), "{}", run.output());
        let output = run.output();
        assert!(output.contains("until SIGTERM or Ctrl-C"), "{output}");
        assert!(
            output.contains("llmlb: delivered 1 record in 1 batch to "),
            "{output}"
        );
        assert_eq!(sandbox.books()["delivered"], 3);
    }
}

#[test]
fn scheduled_delivery_reports_and_retries_a_receiver_that_is_down() {
    let sandbox = UsageSandbox::new();
    let is_down = Arc::new(AtomicBool::new(true));
    let down = Arc::clone(&is_down);
    let receiver = UsageReceiver::judging(move |_| {
        let status = if down.load(Ordering::SeqCst) {
            503
        } else {
            200
        };
        Reply::response(status, &[], "")
    });
    sandbox.stage(1);
    let words = [
        "deliver",
        "--to",
        &receiver.url,
        "--every",
        "100ms",
        "--max-wait",
        "50ms",
    ];
    let run = sandbox.start(&mut sandbox.command(&words));
    run.until_output("warning: usage: 1 batch pending: 503 Service Unavailable");
    is_down.store(false, Ordering::SeqCst);
    run.until_output("delivered 1 record");
    signal("-TERM", run.pid());
    assert_eq!(run.end(), Some(0), "{}", run.output());
}

#[test]
fn concurrent_scheduled_deliveries_send_each_record_once() {
    let sandbox = UsageSandbox::new();
    let receiver = UsageReceiver::always(200);
    let words = ["deliver", "--to", &receiver.url, "--every", "100ms"];
    let runs = [(); 2].map(|()| sandbox.start(&mut sandbox.command(&words)));
    for count in 1..=5 {
        sandbox.stage(1);
        eventually("the record is delivered", || {
            (receiver.batches().len() == count).then_some(())
        });
    }
    for run in &runs {
        signal("-TERM", run.pid());
        assert_eq!(run.end(), Some(0), "{}", run.output());
    }
    assert_eq!(sandbox.books()["delivered"], 5);
}
