//! What one backend could not answer, another one does; and what may not be asked twice, is not.
//! (L8)

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use testkit::{
    Connection, FakeLlm, Received,
    backends::{
        ASK, CHAT, UNPROBED, address, asked, backend, backend_at, close, code, count,
        nobody_notices, ok, serve, served_by,
    },
    raw::{self, Raw},
    until, wire,
};

/// A backend that answers so.
fn answering(status: u16) -> FakeLlm {
    backend(move |_, stream| refuse(stream, status))
}

fn refuse(stream: &mut TcpStream, status: u16) {
    let _ = stream.write_all(
        format!(
            "HTTP/1.1 {status} Its Own Words\r\nretry-after: 7\r\nx-own: yes\r\n\
             content-length: 9\r\n\r\nits words"
        )
        .as_bytes(),
    );
}

fn hang_up(_: &Received, stream: &mut TcpStream) {
    close(stream);
}

#[test]
fn a_backend_that_refuses_connections_is_not_noticed() {
    let place = testkit::sandbox!();
    let (bad, good) = (backend(ok), backend(ok));
    let server = serve(&place, &[&bad, &good], UNPROBED);
    bad.stop();
    for _ in 0..20 {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(served_by(&answer), good.address.to_string());
    }
    assert_eq!(count(&good), 20);
}

#[test]
fn a_backend_that_hangs_up_at_once_is_not_noticed() {
    let place = testkit::sandbox!();
    let (first, good) = (backend_at(address(), &["m"], ok), backend(ok));
    let server = serve(&place, &[&first, &good], UNPROBED);
    first.stop();
    let bad = Raw::start_at(first.address, drop);
    nobody_notices(&server, || bad.accepted(), &good);
}

#[test]
fn a_backend_that_resets_connections_is_not_noticed() {
    let place = testkit::sandbox!();
    let (first, good) = (backend_at(address(), &["m"], ok), backend(ok));
    let server = serve(&place, &[&first, &good], UNPROBED);
    first.stop();
    let bad = Raw::start_at(first.address, |stream| raw::reset(&stream));
    nobody_notices(&server, || bad.accepted(), &good);
}

#[test]
fn a_backend_that_hangs_up_on_a_question_is_not_noticed() {
    let place = testkit::sandbox!();
    let (bad, good) = (backend(hang_up), backend(ok));
    let server = serve(&place, &[&bad, &good], UNPROBED);
    nobody_notices(&server, || count(&bad), &good);
}

#[test]
fn a_backend_that_is_unavailable_is_not_noticed() {
    for status in [502, 503, 504] {
        let place = testkit::sandbox!();
        let (bad, good) = (answering(status), backend(ok));
        let server = serve(&place, &[&bad, &good], UNPROBED);
        nobody_notices(&server, || count(&bad), &good);
    }
}

#[test]
fn healthy_twin_serves_every_request_that_got_a_500() {
    let place = testkit::sandbox!();
    let (bad, good) = (answering(500), backend(ok));
    let server = serve(&place, &[&bad, &good], UNPROBED);
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
    let text = place.run(&format!("status -p {}", server.port())).stdout;
    assert!(text.contains("last error 500"), "{text}");
}

#[test]
fn first_500_reaches_the_client_if_the_second_backend_fails_too() {
    for second in [
        "500",
        "503",
        "529",
        "401",
        "hangs up",
        "is gone",
        "is missing",
    ] {
        let place = testkit::sandbox!();
        let seconds = second.to_owned();
        // Each backend plays the second one after the other was asked.
        let is_second = Arc::new(AtomicBool::new(false));
        let all = [(); 2].map(|()| {
            let (is_second, second) = (Arc::clone(&is_second), seconds.clone());
            backend(move |_, stream: &mut TcpStream| {
                if !is_second.swap(true, Ordering::SeqCst) {
                    return refuse(stream, 500);
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
        let server = serve(&place, backends, UNPROBED);
        if second == "is gone" {
            all[1].stop();
        }
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 500, "{second}: {answer:?}");
        assert_eq!(answer.text(), "its words", "{second}");
        assert_eq!(answer.head.header("x-own").as_deref(), Some("yes"));
        let expected = backends.len() - usize::from(second == "is gone");
        assert_eq!(all.iter().map(count).sum::<usize>(), expected, "{second}");
    }
}

#[test]
fn second_response_to_a_500_reaches_the_client_if_it_is_an_answer() {
    for status in [200, 400, 409, 429] {
        let place = testkit::sandbox!();
        let (bad, other) = (answering(500), answering(status));
        let server = serve(&place, &[&bad, &other], UNPROBED);
        for _ in 0..10 {
            let answer = server.post(CHAT, ASK);
            assert_eq!(answer.status(), status);
            assert_eq!(served_by(&answer), other.address.to_string());
        }
    }
}

#[test]
fn connection_that_is_refused_is_not_the_one_more_attempt_of_a_500() {
    let place = testkit::sandbox!();
    let (bad, gone, good) = (answering(500), backend(ok), backend(ok));
    let server = serve(&place, &[&bad, &gone, &good], UNPROBED);
    gone.stop();
    for _ in 0..20 {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
}

#[test]
fn request_that_got_a_500_is_tried_on_two_backends_at_most() {
    let place = testkit::sandbox!();
    let all = [500; 4].map(answering);
    let server = serve(&place, &all.each_ref(), UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(
        (answer.status(), answer.text().as_str()),
        (500, "its words")
    );
    assert_eq!(all.iter().map(count).sum::<usize>(), 2);
}

#[test]
fn request_without_a_model_gets_its_500() {
    let place = testkit::sandbox!();
    let (bad, good) = (answering(500), backend(ok));
    let server = serve(&place, &[&bad, &good], UNPROBED);
    assert_eq!(server.post("/v1/moderations", "{}").status(), 500);
    assert_eq!(server.get("/v1/files").status(), 500);
    assert_eq!(server.post("/v1/batches", "{}").status(), 500);
    assert_eq!(count(&good), 0);
}

#[test]
fn every_kind_of_question_may_be_asked_again() {
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
        let place = testkit::sandbox!();
        let (bad, good) = (answering(503), backend(ok));
        let server = serve(&place, &[&bad, &good], UNPROBED);
        until("the bad backend is tried", || {
            let answer = server.post(&format!("/v1/{path}"), ASK);
            assert_eq!(answer.status(), 200, "{path}: {answer:?}");
            count(&bad) > 0
        });
    }
}

#[test]
fn an_unavailable_backend_answers_as_it_likes_if_it_is_the_only_one() {
    for status in [502, 503, 504] {
        let place = testkit::sandbox!();
        let only = answering(status);
        let server = serve(&place, &[&only], UNPROBED);
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), status);
        assert_eq!(answer.head.header("retry-after").as_deref(), Some("7"));
        assert_eq!(answer.head.header("x-own").as_deref(), Some("yes"));
        assert_eq!(answer.text(), "its words");
        assert_eq!(served_by(&answer), only.address.to_string());
        assert_eq!(count(&only), 1, "nobody else was there to be asked");
    }
}

#[test]
fn if_all_are_unavailable_each_is_asked_once_and_the_answer_is_one_of_theirs() {
    let place = testkit::sandbox!();
    let all = [answering(503), answering(503)];
    let server = serve(&place, &[&all[0], &all[1]], UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.text(), "its words");
    assert_eq!(answer.head.header("retry-after").as_deref(), Some("7"));
    assert!(
        all.iter()
            .any(|one| served_by(&answer) == one.address.to_string())
    );
    assert_eq!(all.each_ref().map(count), [1, 1]);
}

#[test]
fn a_refusal_is_passed_on_even_if_the_others_are_gone() {
    let place = testkit::sandbox!();
    let (gone, busy) = (backend(ok), answering(503));
    let server = serve(&place, &[&gone, &busy], UNPROBED);
    gone.stop();
    for _ in 0..5 {
        let answer = server.post(CHAT, ASK);
        assert_eq!(
            (answer.status(), answer.text().as_str()),
            (503, "its words")
        );
    }
}

#[test]
fn a_request_is_tried_on_three_backends_at_most() {
    let place = testkit::sandbox!();
    let all = [503; 5].map(answering);
    let server = serve(&place, &all.each_ref(), UNPROBED);
    assert_eq!(server.post(CHAT, ASK).status(), 503);
    assert_eq!(all.iter().map(count).sum::<usize>(), 3);
    assert!(all.iter().all(|one| count(one) <= 1));
}

#[test]
fn backends_that_fail_in_different_ways_are_not_noticed_either() {
    let place = testkit::sandbox!();
    let (gone, rude, good) = (backend(ok), backend(hang_up), backend(ok));
    let server = serve(&place, &[&gone, &rude, &good], UNPROBED);
    gone.stop();
    nobody_notices(&server, || count(&rude), &good);
}

#[test]
fn what_a_backend_decided_is_not_decided_again_elsewhere() {
    for status in [400, 401, 404, 408, 409, 422, 429, 501, 505, 529] {
        let place = testkit::sandbox!();
        let all = [answering(status), answering(status)];
        let server = serve(&place, &[&all[0], &all[1]], UNPROBED);
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), status);
        assert_eq!(answer.text(), "its words");
        assert_eq!(answer.head.header("retry-after").as_deref(), Some("7"));
        let asked = all.iter().map(count).sum::<usize>();
        assert_eq!(asked, 1, "{status}");
    }
}

#[test]
fn what_is_no_question_is_not_sent_to_another_backend() {
    for hangs_up in [true, false] {
        let place = testkit::sandbox!();
        let bad = backend(move |_, stream| {
            if hangs_up {
                close(stream);
            } else {
                refuse(stream, 503);
            }
        });
        let good = backend(ok);
        let server = serve(&place, &[&bad, &good], UNPROBED);
        until("the bad backend is tried", || {
            let before = (count(&bad), count(&good));
            let answer = server.post("/v1/batches", ASK);
            let after = (count(&bad), count(&good));
            match answer.status() {
                200 => assert_eq!(after, (before.0, before.1 + 1)),
                502 if hangs_up => {
                    assert_eq!(code(&answer), "upstream_error");
                    assert_eq!(after, (before.0 + 1, before.1));
                }
                503 => {
                    assert_eq!(answer.text(), "its words");
                    assert_eq!(after, (before.0 + 1, before.1));
                }
                other => panic!("{other}: {answer:?}"),
            }
            after.0 > 0
        });
    }
}

#[test]
fn what_was_never_sent_may_go_to_another_backend_whatever_it_is() {
    let place = testkit::sandbox!();
    let (bad, good) = (backend(ok), backend(ok));
    let server = serve(&place, &[&bad, &good], UNPROBED);
    bad.stop();
    for _ in 0..10 {
        let answer = server.post("/v1/batches", ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
    }
    assert_eq!(count(&good), 10);
}

#[test]
fn a_deletion_is_sent_once() {
    let place = testkit::sandbox!();
    let bad = backend(hang_up);
    let server = serve(&place, &[&bad], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send("DELETE /v1/files/file-1 HTTP/1.1\r\nhost: localhost\r\n\r\n");
    let answer = client.answer();
    assert_eq!(answer.status(), 502);
    assert_eq!(code(&answer), "upstream_error");
    assert_eq!(count(&bad), 1);
}

#[test]
fn the_second_backend_gets_the_same_bytes_as_the_first() {
    let place = testkit::sandbox!();
    let (bad, good) = (answering(502), backend(ok));
    let server = serve(&place, &[&bad, &good], UNPROBED);
    let filler = "\\u00e9é \\t".repeat(100_000);
    let body = format!("{{ \"model\" :\"m\", \"x\":\"{filler}\",\"n\":1.0e5 }}\n");
    until("the bad backend is tried", || {
        // With a length, and in chunks.
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
    for one in asked(&bad).iter().chain(&asked(&good)) {
        assert_eq!(one.head.line, format!("POST {CHAT}?a=%20b HTTP/1.1"));
        assert!(one.body == body.as_bytes());
    }
}

#[test]
fn a_stream_fails_over_as_long_as_it_has_not_begun() {
    let place = testkit::sandbox!();
    let bad = backend(hang_up);
    let good = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        wire::end_stream(stream);
    });
    let server = serve(&place, &[&bad, &good], UNPROBED);
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
fn when_all_hang_up_the_client_is_told_what_happened() {
    let place = testkit::sandbox!();
    let all = [backend(hang_up), backend(hang_up)];
    let server = serve(&place, &[&all[0], &all[1]], UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 502);
    assert_eq!(code(&answer), "upstream_error");
    assert!(all.iter().map(count).sum::<usize>() <= 3);
    server.until_in_flight(0);
}

#[test]
fn when_all_are_gone_the_client_is_told_when_to_come_back() {
    let place = testkit::sandbox!();
    let all = [backend(ok), backend(ok)];
    let server = serve(&place, &[&all[0], &all[1]], UNPROBED);
    for one in &all {
        one.stop();
    }
    for _ in 0..3 {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 503);
        assert_eq!(code(&answer), "all_backends_down");
        assert!(answer.head.header("retry-after").is_some());
    }
}
