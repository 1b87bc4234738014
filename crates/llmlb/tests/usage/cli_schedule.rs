//! S11: `deliver --every`.
#![cfg(unix)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::Place;
use testkit::{Reply, UsageReceiver, eventually};

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn it_delivers_what_comes_until_it_is_asked_to_end() {
    for name in ["-TERM", "-INT"] {
        let (place, receiver) = (Place::new(), UsageReceiver::always(200));
        place.stage(1);
        let words = ["deliver", "--to", &receiver.url, "--every", "100ms"];
        let run = place.start(&mut place.command(&words));
        eventually("the first", || (receiver.numbers() == [1]).then_some(()));
        place.stage(2);
        eventually("the others", || {
            (receiver.numbers() == [1, 1, 2]).then_some(())
        });
        signal(name, run.pid());
        assert_eq!(run.end(), Some(0), "{}", run.output());
        let said = run.output();
        assert!(said.contains("until SIGTERM or Ctrl-C"), "{said}");
        assert!(
            said.contains("llmlb: delivered 1 record in 1 batch to "),
            "{said}"
        );
        assert_eq!(place.books()["delivered"], 3);
    }
}

#[test]
fn a_receiver_that_is_down_is_reported_and_tried_again() {
    let place = Place::new();
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
    place.stage(1);
    let words = [
        "deliver",
        "--to",
        &receiver.url,
        "--every",
        "100ms",
        "--max-wait",
        "50ms",
    ];
    let run = place.start(&mut place.command(&words));
    eventually("a warning", || {
        let told = "warning: usage: 1 batch pending: 503 Service Unavailable";
        run.output().contains(told).then_some(())
    });
    is_down.store(false, Ordering::SeqCst);
    eventually("the delivery", || {
        run.output().contains("delivered 1 record").then_some(())
    });
    signal("-TERM", run.pid());
    assert_eq!(run.end(), Some(0), "{}", run.output());
}

#[test]
fn a_second_one_is_skipped_for_as_long_as_the_first_delivers() {
    let place = Place::new();
    let receiver = UsageReceiver::always(200);
    let words = ["deliver", "--to", &receiver.url, "--every", "100ms"];
    let runs = [(); 2].map(|()| place.start(&mut place.command(&words)));
    for count in 1..=5 {
        place.stage(1);
        eventually("its delivery", || {
            (receiver.batches().len() == count).then_some(())
        });
    }
    for run in &runs {
        signal("-TERM", run.pid());
        assert_eq!(run.end(), Some(0), "{}", run.output());
    }
    assert_eq!(place.books()["delivered"], 5);
}
