//! Every request has an id, from end to end. (L8, L13)

use std::io::Write;
use testkit::{
    Answer, Connection, LlmlbServer,
    backends::{ASK, CHAT, UNPROBED, asked, backend, count, ok, serve},
    until, wire,
};

fn ask(server: &LlmlbServer, id: &str) -> Answer {
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{id}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{ASK}",
        ASK.len()
    ));
    client.answer()
}

fn id(answer: &Answer) -> String {
    answer.head.header("x-request-id").expect("an id")
}

#[test]
fn an_id_of_the_client_is_kept() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], UNPROBED);
    let long = "x".repeat(128);
    for own in ["a", "req-1/2:{3}", &long] {
        let answer = ask(&server, &format!("X-Request-Id: {own}\r\n"));
        assert_eq!(id(&answer), own);
        let asked = asked(&mock);
        let forwarded = asked.last().unwrap().head.header("x-request-id");
        assert_eq!(forwarded.as_deref(), Some(own));
    }
}

#[test]
fn an_id_is_made_where_there_is_none_or_a_bad_one() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], UNPROBED);
    let long = "x".repeat(129);
    let mut seen = std::collections::HashSet::new();
    for bad in [
        String::new(),
        "x-request-id: \r\n".to_owned(),
        "x-request-id: two words\r\n".to_owned(),
        "x-request-id: é\r\n".to_owned(),
        "x-request-id: a\tb\r\n".to_owned(),
        format!("x-request-id: {long}\r\n"),
    ] {
        let answer = ask(&server, &bad);
        let id = id(&answer);
        assert!((1..=128).contains(&id.len()), "{bad}: {id}");
        assert!(
            id.bytes().all(|byte| byte.is_ascii_graphic()),
            "{bad}: {id}"
        );
        assert!(!bad.contains(&id), "{bad}: {id}");
        let asked = asked(&mock);
        let forwarded = asked.last().unwrap().head.header("x-request-id");
        assert_eq!(forwarded, Some(id.clone()));
        assert!(seen.insert(id), "{bad}: it was there before");
    }
}

#[test]
fn every_answer_has_an_id_whoever_gives_it() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], UNPROBED);
    for answer in [
        server.get("/v1/models"),
        server.get("/v1/files"),
        server.get("/elsewhere"),
        server.get("/healthz"),
        server.get("/v1/../x"),
        server.post(CHAT, "{"),
        server.post(CHAT, r#"{"model":"other"}"#),
        server.post("/v1/messages", r#"{"model":"other"}"#),
    ] {
        assert!(!id(&answer).is_empty());
    }
    mock.stop();
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 503);
    assert!(!id(&answer).is_empty());
}

#[test]
fn an_id_of_the_backend_comes_under_another_name() {
    let place = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\nX-Request-Id: its-own\r\ncontent-length: 2\r\n\r\n{}");
    });
    let server = serve(&place, &[&mock], UNPROBED);
    let answer = ask(&server, "x-request-id: mine\r\n");
    assert_eq!(id(&answer), "mine");
    let its = answer.head.header("x-upstream-request-id");
    assert_eq!(its.as_deref(), Some("its-own"));
}

#[test]
fn a_request_that_fails_over_keeps_its_id() {
    let place = testkit::sandbox!();
    let bad = backend(|_, stream| wire::json(stream, 503, "{}"));
    let good = backend(ok);
    let server = serve(&place, &[&bad, &good], UNPROBED);
    until("the bad one is tried", || {
        let answer = ask(&server, "");
        assert_eq!(answer.status(), 200);
        count(&bad) > 0 && {
            let both = [&bad, &good].map(|one| {
                let asked = asked(one);
                asked.last().unwrap().head.header("x-request-id")
            });
            assert_eq!(both, [Some(id(&answer)), Some(id(&answer))]);
            true
        }
    });
}

#[test]
fn errors_under_messages_have_the_shape_that_its_clients_know() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], UNPROBED);
    let answer = server.post("/v1/messages", r#"{"model":"other"}"#);
    assert_eq!(answer.status(), 404);
    let told = answer.json();
    assert_eq!(told["type"], "error");
    assert!(told["error"]["type"].is_string(), "{told}");
    assert!(told["error"]["message"].is_string(), "{told}");
    assert_eq!(told["request_id"], id(&answer));
}
