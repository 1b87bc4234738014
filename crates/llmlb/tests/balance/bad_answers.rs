//! A backend that answers, but badly, is left alone when others do better. (L7, L8)

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::real::Real;
use testkit::{
    Answer, Connection, FakeLlm,
    backends::{ASK, CHAT, PROBED_OFTEN, UNPROBED, backend, count, ok, serve, served_by},
    read_chunk, until, wire,
};

/// Asks often, one after the other, each time something else. Returns the answers of the bad backend.
fn ask_often(bad: &FakeLlm) -> Vec<Answer> {
    let place = testkit::sandbox!();
    let good = backend(|request, stream| {
        // It works, and so it takes longer than to fail.
        thread::sleep(Duration::from_millis(3));
        ok(request, stream);
    });
    let server = serve(&place, &[bad, &good], UNPROBED);
    let answers = (0..200).map(|number| {
        let body = format!(r#"{{"model":"m","number":{number}}}"#);
        server.post(CHAT, &body)
    });
    let of_bad = |answer: &Answer| served_by(answer) == bad.address.to_string();
    let answers: Vec<_> = answers.filter(of_bad).collect();
    assert!(count(bad) > 0, "it is believed in at first");
    answers
}

/// A backend that fails every question at once, with this status and these fields.
fn failing(status: &'static str) -> FakeLlm {
    backend(move |_, stream| {
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
        let _ = std::io::Write::write_all(stream, head.as_bytes());
    })
}

#[test]
fn one_that_fails_fast_is_not_taken_for_the_best() {
    for (status, number) in [
        ("500 Internal Server Error", 500),
        ("401 Unauthorized", 401),
        ("429 Too Many Requests", 429),
    ] {
        let bad = failing(status);
        let answers = ask_often(&bad);
        // They reach the client as they are, but for a 500, which the other one betters; L8.
        assert!(answers.iter().all(|answer| answer.status() == number));
        assert_eq!(answers.is_empty(), number == 500);
        assert!(count(&bad) < 30, "{status}: {}", count(&bad));
    }
}

#[test]
fn one_that_has_too_many_requests_is_left_alone_for_as_long_as_it_says() {
    let bad = failing("429 Too Many Requests\r\nretry-after: 30");
    let answers = ask_often(&bad);
    assert_eq!(answers.len(), 1, "the first one says it");
    let told = answers[0].head.header("retry-after");
    assert_eq!(told.as_deref(), Some("30"));
}

#[test]
fn a_bad_question_says_nothing_about_the_backend() {
    let bad = failing("400 Bad Request");
    assert!(ask_often(&bad).len() > 20);
}

#[test]
fn one_that_cuts_every_answer_is_left_alone() {
    let place = testkit::sandbox!();
    let bad = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        testkit::backends::close(stream);
    });
    let good = backend(|request, stream| {
        thread::sleep(Duration::from_millis(3));
        ok(request, stream);
    });
    let server = serve(&place, &[&bad, &good], UNPROBED);
    for number in 0..200 {
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, &format!(r#"{{"model":"m","x":{number}}}"#));
        let head = client.head();
        assert_eq!(head.status(), 200);
        let _ = head.body(&mut client.reader);
    }
    let bad = count(&bad);
    assert!((3..30).contains(&bad), "{bad}");
}

#[test]
fn what_waits_for_the_only_backend_outlives_its_hanging() {
    let place = testkit::sandbox!();
    let only = Real::start();
    let mut command = place.command(&format!("serve -p 0 {}", only.flag()));
    let server = place.serve_with(command.envs(PROBED_OFTEN.iter().copied()));
    only.hang();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post(CHAT, ASK));
        until("it counts as down", || {
            server.status()["backends"][0]["up"] == false
        });
        // Who waits looks now and then whether it still makes sense.
        thread::sleep(Duration::from_millis(600));
        only.go_on();
        let answer = waiting.join().unwrap();
        assert_eq!((answer.status(), answer.text().as_str()), (200, ASK));
    });
}

#[test]
fn one_that_is_too_busy_for_probes_is_not_taken_for_one_that_hangs() {
    let place = testkit::sandbox!();
    let (is_busy, probes) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (busy, unanswered) = (Arc::clone(&is_busy), Arc::clone(&probes));
    // As those are that have a thread for each request, and no more.
    let only = FakeLlm::handling_all(move |request, stream| {
        if request.target() == CHAT {
            busy.store(true, Ordering::SeqCst);
            wire::begin_stream(stream);
            while busy.load(Ordering::SeqCst) {
                wire::chunk(stream, "data: word\n\n");
                thread::sleep(Duration::from_millis(20));
            }
            wire::end_stream(stream);
        } else if busy.load(Ordering::SeqCst) {
            unanswered.fetch_add(1, Ordering::SeqCst);
            let _ = stream.read(&mut [0]);
        } else {
            wire::json(stream, 200, r#"{"data":[{"id":"m"}]}"#);
        }
    });
    let server = serve(&place, &[&only], PROBED_OFTEN);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(client.head().status(), 200);
    // More than enough to be taken for down.
    until("it was asked in vain", || probes.load(Ordering::SeqCst) > 6);
    assert_eq!(server.status()["backends"][0]["up"], true);
    is_busy.store(false, Ordering::SeqCst);
    while let Some(Some(_)) = read_chunk(&mut client.reader) {}
    assert_eq!(server.post("/v1/embeddings", ASK).status(), 200);
}
