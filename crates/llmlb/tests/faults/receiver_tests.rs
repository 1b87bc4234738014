//! Tests of the receiver itself, with a client that reads every byte.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::billing::Policy;
use crate::fault::{Commit, Fault, Mix};
use crate::receiver::{Receiver, TOKEN};
use crate::sample::Sample;

/// Result of a request as its client sees it: the text that was received, which may be cut short, a
/// reset connection, or no byte before the timeout.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Text(String),
    Reset,
    Silence,
}

impl Outcome {
    fn status(&self) -> Option<u16> {
        let Self::Text(text) = self else { return None };
        text.split(' ').nth(1)?.parse().ok()
    }
}

fn batch(key: &str, samples: &[&Sample]) -> String {
    let records: Vec<_> = samples.iter().map(|sample| sample.text()).collect();
    format!(
        r#"{{"idempotency_key":"{key}","records":[{}]}}"#,
        records.join(",")
    )
}

fn post_as(receiver: &Receiver, token: &str, key: &str, body: &str) -> Outcome {
    let mut stream = TcpStream::connect(receiver.address).unwrap();
    let head = format!(
        "POST /usage HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nIdempotency-Key: {key}\r\n\
         content-type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(1)))
        .unwrap();
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Outcome::Reset,
            // The receiver keeps the connection open after a complete response, so the client stops
            // reading by a timeout. A timeout without any byte means that the receiver sent no
            // response.
            Err(_) if received.is_empty() => return Outcome::Silence,
            Err(_) => break,
        }
        let text = String::from_utf8_lossy(&received);
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && head.ends_with(&format!("Content-Length: {}", body.len()))
        {
            break;
        }
    }
    Outcome::Text(String::from_utf8(received).unwrap())
}

fn post(receiver: &Receiver, key: &str, samples: &[&Sample]) -> Outcome {
    post_as(receiver, TOKEN, key, &batch(key, samples))
}

fn always(fault: Fault) -> Receiver {
    Receiver::start(Policy::ByBatch { known: 409 }, Mix::new(&[(1, fault)]))
}

fn billed(receiver: &Receiver, sample: &Sample) -> u32 {
    let state = receiver.state();
    state.billing.billed.get(&sample.id).copied().unwrap_or(0)
}

#[test]
fn receiver_bills_by_its_policy() {
    let [a, b, c] = [1, 2, 3].map(|number| Sample::new(number, false));
    for (policy, again, other, billed_b) in [
        (Policy::ByRecord, 200, 200, 1),
        (Policy::ByBatch { known: 409 }, 409, 200, 2),
        (Policy::ByBatch { known: 200 }, 200, 200, 2),
        (Policy::RejectOnDuplicate { known: 409 }, 409, 422, 1),
        (Policy::RejectOnDuplicate { known: 422 }, 422, 422, 1),
    ] {
        let receiver = Receiver::start(policy, Mix::none());
        let status = |key, samples: &[&Sample]| post(&receiver, key, samples).status();
        assert_eq!(status("x", &[&a, &b]), Some(200), "{policy:?}");
        assert_eq!(status("x", &[&a, &b]), Some(again), "{policy:?}");
        assert_eq!(status("y", &[&b, &c]), Some(other), "{policy:?}");
        assert_eq!(billed(&receiver, &a), 1, "{policy:?}");
        assert_eq!(billed(&receiver, &b), billed_b, "{policy:?}");
        assert_eq!(billed(&receiver, &c), u32::from(other == 200), "{policy:?}");
        let poisoned = Sample::new(4, true);
        assert_eq!(status("z", &[&poisoned]), Some(422), "{policy:?}");
        assert_eq!(billed(&receiver, &poisoned), 0);
        assert_eq!(receiver.state().billing.twice(), usize::from(billed_b == 2));
        assert_eq!(receiver.state().billing.mangled, 0);
    }
}

#[test]
fn receiver_fault_has_its_effect_on_the_client_and_on_billing() {
    let text = |received: &Outcome| match received {
        Outcome::Text(text) => text.clone(),
        other => format!("{other:?}"),
    };
    for (fault, expected, is_billed) in [
        (Fault::None, "HTTP/1.1 200", true),
        (Fault::Error(Commit::Before), "HTTP/1.1 500", false),
        (Fault::Error(Commit::After), "HTTP/1.1 500", true),
        (Fault::Unavailable, "HTTP/1.1 503", false),
        (Fault::TooMany, "HTTP/1.1 429", false),
        (Fault::Reset(Commit::Before), "Reset", false),
        (Fault::Reset(Commit::After), "Reset", true),
        (Fault::Close(Commit::Before), "", false),
        (Fault::Close(Commit::After), "", true),
        (Fault::Hang(Commit::Before), "Silence", false),
        (Fault::Hang(Commit::After), "Silence", true),
        (Fault::HangThenCommit, "Silence", true),
        (Fault::CutHead, "HTTP/1.1 200", true),
        (Fault::CutBody, "HTTP/1.1 200", true),
        (Fault::TooLarge(1), "HTTP/1.1 413", false),
        (Fault::TooLarge(2), "HTTP/1.1 200", true),
        (Fault::Unauthorized, "HTTP/1.1 401", false),
        (Fault::WaitSeconds(1), "HTTP/1.1 429", false),
        (Fault::WaitDate, "HTTP/1.1 429", false),
    ] {
        let receiver = always(fault);
        let samples = [Sample::new(1, false), Sample::new(2, false)];
        let received = text(&post(&receiver, "x", &[&samples[0], &samples[1]]));
        receiver.wait_until_idle();
        assert!(received.starts_with(expected), "{fault:?}: {received}");
        assert_eq!(billed(&receiver, &samples[0]) == 1, is_billed, "{fault:?}");
        let (head, body) = received.split_once("\r\n\r\n").unwrap_or((&received, ""));
        let is_whole = head.ends_with(&format!("Content-Length: {}", body.len()));
        match fault {
            Fault::CutHead => assert!(!received.contains("Length"), "{received}"),
            Fault::CutBody => assert!(received.contains("\r\n\r\n") && !is_whole, "{received}"),
            _ => assert!(
                is_whole || !expected.starts_with("HTTP"),
                "{fault:?}: {received}"
            ),
        }
        assert_eq!(
            received.contains("Retry-After: "),
            expected.ends_with("429") && fault != Fault::TooMany,
            "{received}"
        );
    }
}

#[test]
fn receiver_counts_defective_requests() {
    let receiver = Receiver::start(Policy::ByRecord, Mix::none());
    let sample = Sample::new(1, false);
    let body = batch("x", &[&sample]);
    assert_eq!(post_as(&receiver, "other", "x", &body).status(), Some(401));
    assert_eq!(receiver.state().tally.unsigned, 1);
    assert_eq!(post_as(&receiver, TOKEN, "y", &body).status(), Some(200));
    assert_eq!(receiver.state().tally.unsigned, 2);
    assert_eq!(receiver.state().billing.mangled, 0);
    let spaced = body.replace(",\"check\"", ", \"check\"");
    assert_eq!(post_as(&receiver, TOKEN, "x", &spaced).status(), Some(200));
    assert_eq!(
        receiver.state().billing.mangled,
        1,
        "other bytes, the same key"
    );
    let changed = batch("z", &[&sample]).replace("_tokens\":", "_tokens\":1");
    assert_eq!(post_as(&receiver, TOKEN, "z", &changed).status(), Some(200));
    assert_eq!(
        receiver.state().billing.mangled,
        2,
        "another record, the same id"
    );
    assert_eq!(post_as(&receiver, TOKEN, "x", "{").status(), Some(400));
    assert_eq!(receiver.state().tally.unreadable, 1);
}

#[test]
fn receiver_counts_requests_within_a_requested_pause() {
    for fault in [Fault::WaitSeconds(1), Fault::WaitDate] {
        let receiver = always(fault);
        let sample = Sample::new(1, false);
        let started = Instant::now();
        assert_eq!(post(&receiver, "x", &[&sample]).status(), Some(429));
        receiver.end_faults();
        let second = post(&receiver, "x", &[&sample]).status();
        if started.elapsed() < Duration::from_millis(900) {
            assert_eq!(receiver.state().tally.early, 1, "{fault:?}");
        }
        assert_eq!(second, Some(200));
        let noted = receiver.state().tally.early;
        std::thread::sleep(Duration::from_millis(2001).saturating_sub(started.elapsed()));
        assert_eq!(post(&receiver, "x", &[&sample]).status(), Some(409));
        assert_eq!(
            receiver.state().tally.early,
            noted,
            "{fault:?}: the pause was over"
        );
    }
    let receiver = always(Fault::WaitSeconds(60));
    let sample = Sample::new(1, false);
    assert_eq!(post(&receiver, "x", &[&sample]).status(), Some(429));
    receiver.note_kill();
    receiver.end_faults();
    assert_eq!(post(&receiver, "x", &[&sample]).status(), Some(200));
    assert_eq!(
        receiver.state().tally.early,
        0,
        "the killed deliverer may not have stored the pause"
    );
}
