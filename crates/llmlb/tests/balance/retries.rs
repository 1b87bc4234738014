//! A failed request is retried on another backend, unless sending it twice could do harm. (promise L8)

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::{
    Connection, FakeLlm, Received,
    backends::{
        ASK, CHAT, UNPROBED, address, asked, assert_failover, backend, backend_at, close, code,
        count, ok, serve, served_by,
    },
    raw::{self, Raw},
    until, wire,
};

fn responding(status: u16) -> FakeLlm {
    backend(move |_, stream| respond(stream, status))
}

fn respond(stream: &mut TcpStream, status: u16) {
    let _ = stream.write_all(
        format!(
            "HTTP/1.1 {status} Own Reason\r\nretry-after: 7\r\nx-own: yes\r\n\
             content-length: 9\r\n\r\nbackend's"
        )
        .as_bytes(),
    );
}

fn close_unanswered(_: &Received, stream: &mut TcpStream) {
    close(stream);
}

#[test]
fn request_is_served_by_another_backend_when_one_refuses_connections() {
    let sandbox = testkit::sandbox!();
    let (bad, good) = (backend(ok), backend(ok));
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    bad.stop();
    for _ in 0..20 {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(served_by(&answer), good.address.to_string());
    }
    assert_eq!(count(&good), 20);
}

#[test]
fn request_is_retried_when_the_backend_closes_a_new_connection() {
    let sandbox = testkit::sandbox!();
    let (first, good) = (backend_at(address(), &["m"], ok), backend(ok));
    let server = serve(&sandbox, &[&first, &good], UNPROBED);
    first.stop();
    let bad = Raw::start_at(first.address, drop);
    assert_failover(&server, || bad.accepted(), &good);
}

#[test]
fn request_is_retried_when_the_backend_resets_a_new_connection() {
    let sandbox = testkit::sandbox!();
    let (first, good) = (backend_at(address(), &["m"], ok), backend(ok));
    let server = serve(&sandbox, &[&first, &good], UNPROBED);
    first.stop();
    let bad = Raw::start_at(first.address, |stream| raw::reset(&stream));
    assert_failover(&server, || bad.accepted(), &good);
}

#[test]
fn request_is_retried_when_the_backend_closes_before_its_response() {
    let sandbox = testkit::sandbox!();
    let (bad, good) = (backend(close_unanswered), backend(ok));
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    assert_failover(&server, || count(&bad), &good);
}

#[test]
fn request_is_retried_after_502_503_and_504() {
    for status in [502, 503, 504] {
        let sandbox = testkit::sandbox!();
        let (bad, good) = (responding(status), backend(ok));
        let server = serve(&sandbox, &[&bad, &good], UNPROBED);
        assert_failover(&server, || count(&bad), &good);
    }
}

#[test]
fn request_is_retried_once_after_a_500() {
    let sandbox = testkit::sandbox!();
    let (bad, good) = (responding(500), backend(ok));
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    let statuses: Vec<u16> = (0..60)
        .map(|number| {
            let body = format!(r#"{{"model":"m","number":{number}}}"#);
            server.post(CHAT, &body).status()
        })
        .collect();
    assert_eq!(statuses, [200; 60]);
    let failures = count(&bad);
    assert!(failures > 0);
    let failed = format!(" failed={} error=500 ", bad.address);
    until("the log names each 500", || {
        let log = server.process.stderr();
        log.lines().filter(|line| line.contains(&failed)).count() == failures
    });
    let last = server.status()["backends"][0]["last_error"].clone();
    assert_eq!(last["status"], 500, "{last}");
    assert!(last["at"].as_str().unwrap().ends_with('Z'), "{last}");
    let text = sandbox.run(&format!("status -p {}", server.port())).stdout;
    assert!(text.contains("last error 500"), "{text}");
}

#[test]
fn first_500_reaches_the_client_if_the_second_backend_fails_too() {
    for second in [
        "500",
        "503",
        "529",
        "401",
        "closes",
        "is gone",
        "is missing",
    ] {
        let sandbox = testkit::sandbox!();
        let seconds = second.to_owned();
        // The backend that gets the request first responds 500. The other one fails as configured.
        let is_second = Arc::new(AtomicBool::new(false));
        let all = [(); 2].map(|()| {
            let (is_second, second) = (Arc::clone(&is_second), seconds.clone());
            backend(move |_, stream: &mut TcpStream| {
                if !is_second.swap(true, Ordering::SeqCst) {
                    return respond(stream, 500);
                }
                match second.parse() {
                    Ok(status) => wire::json(stream, status, "not this"),
                    Err(_) => close(stream),
                }
            })
        });
        let backends: &[&FakeLlm] = match second {
            "is missing" => &[&all[0]],
            _ => &[&all[0], &all[1]],
        };
        let server = serve(&sandbox, backends, UNPROBED);
        if second == "is gone" {
            all[1].stop();
        }
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 500, "{second}: {answer:?}");
        assert_eq!(answer.text(), "backend's", "{second}");
        assert_eq!(answer.head.header("x-own").as_deref(), Some("yes"));
        let expected = backends.len() - usize::from(second == "is gone");
        assert_eq!(all.iter().map(count).sum::<usize>(), expected, "{second}");
    }
}

#[test]
fn response_of_the_second_backend_replaces_a_500_unless_it_is_a_failure() {
    for status in [200, 400, 409, 429] {
        let sandbox = testkit::sandbox!();
        let (bad, other) = (responding(500), responding(status));
        let server = serve(&sandbox, &[&bad, &other], UNPROBED);
        for _ in 0..10 {
            let answer = server.post(CHAT, ASK);
            assert_eq!(answer.status(), status);
            assert_eq!(served_by(&answer), other.address.to_string());
        }
    }
}

#[test]
fn refused_connection_does_not_use_up_the_retry_of_a_500() {
    let sandbox = testkit::sandbox!();
    let (bad, gone, good) = (responding(500), backend(ok), backend(ok));
    let server = serve(&sandbox, &[&bad, &gone, &good], UNPROBED);
    gone.stop();
    for _ in 0..20 {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
}

#[test]
fn request_that_fails_with_500_is_sent_to_two_backends_at_most() {
    let sandbox = testkit::sandbox!();
    let all = [500; 4].map(responding);
    let server = serve(&sandbox, &all.each_ref(), UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(
        (answer.status(), answer.text().as_str()),
        (500, "backend's")
    );
    assert_eq!(all.iter().map(count).sum::<usize>(), 2);
}

#[test]
fn request_without_a_model_is_not_retried_after_a_500() {
    let sandbox = testkit::sandbox!();
    let (bad, good) = (responding(500), backend(ok));
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    assert_eq!(server.post("/v1/moderations", "{}").status(), 500);
    assert_eq!(server.get("/v1/files").status(), 500);
    assert_eq!(server.post("/v1/batches", "{}").status(), 500);
    assert_eq!(count(&good), 0);
}

#[test]
fn requests_to_every_inference_endpoint_are_retried() {
    let paths = [
        "chat/completions",
        "completions",
        "embeddings",
        "messages",
        "moderations",
        "rerank",
        "responses",
        "score",
    ];
    for path in paths {
        let sandbox = testkit::sandbox!();
        let (bad, good) = (responding(503), backend(ok));
        let server = serve(&sandbox, &[&bad, &good], UNPROBED);
        until("the bad backend is tried", || {
            let answer = server.post(&format!("/v1/{path}"), ASK);
            assert_eq!(answer.status(), 200, "{path}: {answer:?}");
            count(&bad) > 0
        });
    }
}

#[test]
fn response_503_of_the_only_backend_is_forwarded_unchanged() {
    for status in [502, 503, 504] {
        let sandbox = testkit::sandbox!();
        let only = responding(status);
        let server = serve(&sandbox, &[&only], UNPROBED);
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), status);
        assert_eq!(answer.head.header("retry-after").as_deref(), Some("7"));
        assert_eq!(answer.head.header("x-own").as_deref(), Some("yes"));
        assert_eq!(answer.text(), "backend's");
        assert_eq!(served_by(&answer), only.address.to_string());
        assert_eq!(count(&only), 1, "the request is sent once");
    }
}

#[test]
fn response_503_is_forwarded_after_every_backend_was_tried_once() {
    let sandbox = testkit::sandbox!();
    let all = [responding(503), responding(503)];
    let server = serve(&sandbox, &[&all[0], &all[1]], UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.text(), "backend's");
    assert_eq!(answer.head.header("retry-after").as_deref(), Some("7"));
    assert!(
        all.iter()
            .any(|backend| served_by(&answer) == backend.address.to_string())
    );
    assert_eq!(all.each_ref().map(count), [1, 1]);
}

#[test]
fn response_503_is_forwarded_when_the_other_backends_are_gone() {
    let sandbox = testkit::sandbox!();
    let (gone, busy) = (backend(ok), responding(503));
    let server = serve(&sandbox, &[&gone, &busy], UNPROBED);
    gone.stop();
    for _ in 0..5 {
        let answer = server.post(CHAT, ASK);
        assert_eq!(
            (answer.status(), answer.text().as_str()),
            (503, "backend's")
        );
    }
}

#[test]
fn request_is_sent_to_three_backends_at_most() {
    let sandbox = testkit::sandbox!();
    let all = [503; 5].map(responding);
    let server = serve(&sandbox, &all.each_ref(), UNPROBED);
    assert_eq!(server.post(CHAT, ASK).status(), 503);
    assert_eq!(all.iter().map(count).sum::<usize>(), 3);
    assert!(all.iter().all(|backend| count(backend) <= 1));
}

#[test]
fn request_is_retried_after_failures_of_different_kinds() {
    let sandbox = testkit::sandbox!();
    let (gone, closing, good) = (backend(ok), backend(close_unanswered), backend(ok));
    let server = serve(&sandbox, &[&gone, &closing, &good], UNPROBED);
    gone.stop();
    assert_failover(&server, || count(&closing), &good);
}

#[test]
fn response_with_any_other_status_is_not_retried() {
    for status in [400, 401, 404, 408, 409, 422, 429, 501, 505, 529] {
        let sandbox = testkit::sandbox!();
        let all = [responding(status), responding(status)];
        let server = serve(&sandbox, &[&all[0], &all[1]], UNPROBED);
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), status);
        assert_eq!(answer.text(), "backend's");
        assert_eq!(answer.head.header("retry-after").as_deref(), Some("7"));
        let requests = all.iter().map(count).sum::<usize>();
        assert_eq!(requests, 1, "{status}");
    }
}

#[test]
fn request_that_is_not_inference_is_not_retried_once_sent() {
    for closes in [true, false] {
        let sandbox = testkit::sandbox!();
        let bad = backend(move |_, stream| {
            if closes {
                close(stream);
            } else {
                respond(stream, 503);
            }
        });
        let good = backend(ok);
        let server = serve(&sandbox, &[&bad, &good], UNPROBED);
        until("the bad backend is tried", || {
            let before = (count(&bad), count(&good));
            let answer = server.post("/v1/batches", ASK);
            let after = (count(&bad), count(&good));
            match answer.status() {
                200 => assert_eq!(after, (before.0, before.1 + 1)),
                502 if closes => {
                    assert_eq!(code(&answer), "upstream_error");
                    assert_eq!(after, (before.0 + 1, before.1));
                }
                503 => {
                    assert_eq!(answer.text(), "backend's");
                    assert_eq!(after, (before.0 + 1, before.1));
                }
                other => panic!("{other}: {answer:?}"),
            }
            after.0 > 0
        });
    }
}

#[test]
fn request_of_any_kind_is_retried_when_the_connection_is_refused() {
    let sandbox = testkit::sandbox!();
    let (bad, good) = (backend(ok), backend(ok));
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    bad.stop();
    for _ in 0..10 {
        let answer = server.post("/v1/batches", ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
    }
    assert_eq!(count(&good), 10);
}

#[test]
fn delete_request_is_sent_once() {
    let sandbox = testkit::sandbox!();
    let bad = backend(close_unanswered);
    let server = serve(&sandbox, &[&bad], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send("DELETE /v1/files/file-1 HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.status(), 502);
    assert_eq!(code(&answer), "upstream_error");
    assert_eq!(count(&bad), 1);
}

#[test]
fn retried_request_has_the_same_bytes() {
    let sandbox = testkit::sandbox!();
    let (bad, good) = (responding(502), backend(ok));
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    let filler = "\\u00e9é \\t".repeat(100_000);
    let body = format!("{{ \"model\" :\"m\", \"x\":\"{filler}\",\"n\":1.0e5 }}\n");
    until("the bad backend is tried", || {
        // The request is sent once with a Content-Length and once in chunks, because both kinds of
        // body are buffered for a retry.
        assert_eq!(server.post(&format!("{CHAT}?a=%20b"), &body).status(), 200);
        let mut client = Connection::open(server.address);
        client.send(format!(
            "POST {CHAT}?a=%20b HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        ));
        assert_eq!(client.answer().status(), 200);
        count(&bad) > 0
    });
    for request in asked(&bad).iter().chain(&asked(&good)) {
        assert_eq!(request.head.line, format!("POST {CHAT}?a=%20b HTTP/1.1"));
        assert!(request.body == body.as_bytes());
    }
}

#[test]
fn streaming_request_is_retried_before_its_response_begins() {
    let sandbox = testkit::sandbox!();
    let bad = backend(close_unanswered);
    let good = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        wire::end_stream(stream);
    });
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    until("the bad backend is tried", || {
        let answer = server.post(CHAT, r#"{"model":"m","stream":true}"#);
        assert_eq!(
            (answer.status(), answer.text().as_str()),
            (200, "data: 1\n\n")
        );
        count(&bad) > 0
    });
}

#[test]
fn response_is_502_when_every_backend_closes_the_connection() {
    let sandbox = testkit::sandbox!();
    let all = [backend(close_unanswered), backend(close_unanswered)];
    let server = serve(&sandbox, &[&all[0], &all[1]], UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 502);
    assert_eq!(code(&answer), "upstream_error");
    assert!(all.iter().map(count).sum::<usize>() <= 3);
    server.until_in_flight(0);
}

#[test]
fn response_is_503_with_retry_after_when_every_backend_is_gone() {
    let sandbox = testkit::sandbox!();
    let all = [backend(ok), backend(ok)];
    let server = serve(&sandbox, &[&all[0], &all[1]], UNPROBED);
    for backend in &all {
        backend.stop();
    }
    for _ in 0..3 {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 503);
        assert_eq!(code(&answer), "all_backends_down");
        assert!(answer.head.header("retry-after").is_some());
    }
}
