//! A backend whose responses fail gets few requests while another backend succeeds. (promises L7, L8)

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::backend_process::BackendProcess;
use testkit::{
    Answer, Connection, FakeLlm,
    backends::{ASK, CHAT, PROBED_OFTEN, UNPROBED, backend, count, ok, serve, served_by},
    read_chunk, until, wire,
};

/// Sends 200 different requests one after the other to a server with two backends: `bad`, and a
/// slower one that works. Returns the responses that clients got from `bad`, so that tests can
/// count them.
fn send_200_requests(bad: &FakeLlm) -> Vec<Answer> {
    let sandbox = testkit::sandbox!();
    let good = backend(|request, stream| {
        // The good backend is slower than the backend that fails at once. So the failing backend
        // looks faster and less loaded, and must not be preferred for that.
        thread::sleep(Duration::from_millis(3));
        ok(request, stream);
    });
    let server = serve(&sandbox, &[bad, &good], UNPROBED);
    let answers = (0..200).map(|number| {
        let body = format!(r#"{{"model":"m","number":{number}}}"#);
        server.post(CHAT, &body)
    });
    let of_bad = |answer: &Answer| served_by(answer) == bad.address.to_string();
    let answers: Vec<_> = answers.filter(of_bad).collect();
    assert!(count(bad) > 0, "the bad backend got no request");
    answers
}

/// Returns a backend that responds to every request at once with this status and these fields.
fn failing(status: &'static str) -> FakeLlm {
    backend(move |_, stream| {
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
        let _ = std::io::Write::write_all(stream, head.as_bytes());
    })
}

#[test]
fn backend_that_fails_fast_is_not_preferred() {
    for (status, number) in [
        ("500 Internal Server Error", 500),
        ("401 Unauthorized", 401),
        ("429 Too Many Requests", 429),
    ] {
        let bad = failing(status);
        let answers = send_200_requests(&bad);
        // A 500 is retried on the other backend (promise L8); the other statuses reach the client.
        assert!(answers.iter().all(|answer| answer.status() == number));
        assert_eq!(answers.is_empty(), number == 500);
        assert!(count(&bad) < 30, "{status}: {}", count(&bad));
    }
}

#[test]
fn rate_limited_backend_gets_no_requests_until_retry_after() {
    let bad = failing("429 Too Many Requests\r\nretry-after: 30");
    let answers = send_200_requests(&bad);
    assert_eq!(answers.len(), 1, "the first response has retry-after");
    let retry_after = answers[0].head.header("retry-after");
    assert_eq!(retry_after.as_deref(), Some("30"));
}

#[test]
fn response_400_does_not_count_against_the_backend() {
    let bad = failing("400 Bad Request");
    assert!(send_200_requests(&bad).len() > 20);
}

#[test]
fn backend_that_cuts_every_response_gets_few_requests() {
    let sandbox = testkit::sandbox!();
    let bad = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        testkit::backends::close(stream);
    });
    let good = backend(|request, stream| {
        thread::sleep(Duration::from_millis(3));
        ok(request, stream);
    });
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    for number in 0..200 {
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, &format!(r#"{{"model":"m","x":{number}}}"#));
        let head = client.head();
        assert_eq!(head.status(), 200);
        let _ = head.body(&mut client.reader);
    }
    let bad = count(&bad);
    // On a slow machine, the latency of the first response alone can keep further requests away.
    assert!((1..30).contains(&bad), "{bad}");
}

#[test]
fn request_is_served_when_the_only_backend_resumes_after_hanging() {
    let sandbox = testkit::sandbox!();
    let only = BackendProcess::start();
    let mut command = sandbox.command(&format!("serve -p 0 {}", only.flag()));
    let server = sandbox.serve_with(command.envs(PROBED_OFTEN.iter().copied()));
    only.hang();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| server.post(CHAT, ASK));
        until("the backend is marked down", || {
            server.status()["backends"][0]["up"] == false
        });
        // Requests that wait recheck their backends at intervals. Let this happen while the only
        // backend hangs: it must not end the request.
        thread::sleep(Duration::from_millis(600));
        only.resume();
        let answer = waiting.join().unwrap();
        assert_eq!((answer.status(), answer.text().as_str()), (200, ASK));
    });
}

#[test]
fn backend_that_streams_but_answers_no_probes_stays_up() {
    let sandbox = testkit::sandbox!();
    let (is_busy, probes) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (busy, unanswered) = (Arc::clone(&is_busy), Arc::clone(&probes));
    // Engines that serve one request at a time answer no probes while they stream. This backend
    // behaves like one.
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
    let server = serve(&sandbox, &[&only], PROBED_OFTEN);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(client.head().status(), 200);
    // Wait for more unanswered probes than the number that would mark a silent backend down.
    until("probes got no response", || {
        probes.load(Ordering::SeqCst) > 6
    });
    assert_eq!(server.status()["backends"][0]["up"], true);
    is_busy.store(false, Ordering::SeqCst);
    while let Some(Some(_)) = read_chunk(&mut client.reader) {}
    assert_eq!(server.post("/v1/embeddings", ASK).status(), 200);
}
