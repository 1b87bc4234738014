//! S11: `deliver --every`.
#![cfg(unix)]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::receiver::Receiver;
use crate::support::{Place, Running, eventually};

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(status.unwrap().success());
}

#[test]
fn it_delivers_what_comes_until_it_is_asked_to_end() {
    for name in ["-TERM", "-INT"] {
        let (place, receiver) = (Place::new(), Receiver::always("200 OK"));
        place.stage(1);
        let words = ["deliver", "--to", &receiver.url, "--every", "100ms"];
        let mut run = Running::start(place.command(&words), &place.file("said", ""));
        eventually("the first", || (receiver.numbers() == [1]).then_some(()));
        place.stage(2);
        eventually("the others", || {
            (receiver.numbers() == [1, 1, 2]).then_some(())
        });
        signal(name, run.pid());
        assert_eq!(run.end(), Some(0), "{}", run.said());
        let said = run.said();
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
    let receiver = Receiver::new(move |_| {
        let status = if down.load(Ordering::SeqCst) {
            "503 Service Unavailable"
        } else {
            "200 OK"
        };
        (status, String::new(), String::new())
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
    let mut run = Running::start(place.command(&words), &place.file("said", ""));
    eventually("a warning", || {
        let told = "warning: usage: 1 batch pending: 503 Service Unavailable";
        run.said().contains(told).then_some(())
    });
    is_down.store(false, Ordering::SeqCst);
    eventually("the delivery", || {
        run.said().contains("delivered 1 record").then_some(())
    });
    signal("-TERM", run.pid());
    assert_eq!(run.end(), Some(0), "{}", run.said());
}

#[test]
fn a_second_one_is_skipped_for_as_long_as_the_first_delivers() {
    let place = Place::new();
    let receiver = Receiver::always("200 OK");
    let words = ["deliver", "--to", &receiver.url, "--every", "100ms"];
    let mut runs: Vec<Running> = ["a", "b"]
        .map(|name| Running::start(place.command(&words), &place.file(name, "")))
        .into();
    for count in 1..=5 {
        place.stage(1);
        eventually("its delivery", || {
            (receiver.requests().len() == count).then_some(())
        });
    }
    for run in &mut runs {
        signal("-TERM", run.pid());
        assert_eq!(run.end(), Some(0), "{}", run.said());
    }
    assert_eq!(place.books()["delivered"], 5);
}
