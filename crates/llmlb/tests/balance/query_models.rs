//! A model that is named in the query, as by those who open a WebSocket: they send no body. (L5, L6)

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use testkit::{
    Answer, Connection, FakeLlm, LlmlbServer, Received,
    backends::{asked, backend_of, code, count, ok, serve, serve_file},
};

/// Agrees to speak WebSocket, says who it is, and hangs up.
fn talker(name: &'static str, models: &[&str]) -> FakeLlm {
    backend_of(models, move |request: &Received, stream: &mut TcpStream| {
        if request.head.header("upgrade").is_none() {
            return ok(request, stream);
        }
        let _ = stream.write_all(
            format!(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                 upgrade: websocket\r\nx-name: {name}\r\n\r\n"
            )
            .as_bytes(),
        );
        let _ = stream.shutdown(Shutdown::Both);
    })
}

/// Two of them; the first is the one that gets what names no model.
fn talkers() -> (FakeLlm, FakeLlm) {
    (talker("a", &["only-a"]), talker("b", &["only-b"]))
}

fn connect(server: &LlmlbServer, target: &str) -> Answer {
    let mut client = Connection::open(server.address);
    client.send(format!(
        "GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ));
    client.answer()
}

/// The targets of what this backend was asked.
fn targets(mock: &FakeLlm) -> Vec<String> {
    asked(mock)
        .iter()
        .map(|one| one.target().to_owned())
        .collect()
}

#[test]
fn it_leads_to_who_serves_it() {
    let place = testkit::sandbox!();
    let (a, b) = talkers();
    let server = serve(&place, &[&a, &b], &[]);
    for (target, name) in [
        ("/v1/realtime?model=only-b", "b"),
        ("/v1/realtime?intent=x&model=only%2Db&z=%20", "b"),
        ("/v1/realtime?%6dodel=only-b", "b"),
        ("/v1/realtime?model=only-a&modell=only-b", "a"),
        ("/v1/realtime?model=", "a"),
        ("/v1/realtime?x=model=only-b", "a"),
    ] {
        let answer = connect(&server, target);
        assert_eq!(answer.status(), 101, "{target}: {answer:?}");
        assert_eq!(answer.head.header("x-name").as_deref(), Some(name));
        // What is no alias passes as it came.
        let last = targets(if name == "a" { &a } else { &b }).pop();
        assert_eq!(last.as_deref(), Some(target));
    }
}

#[test]
fn it_counts_for_every_request_in_whose_body_none_can_be_named() {
    let place = testkit::sandbox!();
    let (a, b) = talkers();
    let server = serve(&place, &[&a, &b], &[]);
    assert_eq!(server.get("/v1/things?model=only-b").status(), 200);
    let mut client = Connection::open(server.address);
    client.send(
        "POST /v1/realtime/calls?model=only-b HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/sdp\r\ncontent-length: 3\r\n\r\nv=0",
    );
    assert_eq!(client.answer().status(), 200);
    assert_eq!((count(&a), count(&b)), (0, 2));
    // Servers disagree on whether the query or the body counts.
    let body = r#"{"model":"only-a"}"#;
    let answer = server.post("/v1/chat/completions?model=only-b", body);
    assert_eq!(answer.status(), 400, "{answer:?}");
    let answer = server.post("/v1/chat/completions?model=only-a", body);
    assert_eq!(answer.status(), 200, "{answer:?}");
    assert_eq!((count(&a), count(&b)), (1, 2));
}

#[test]
fn one_that_nobody_serves_is_unknown() {
    let place = testkit::sandbox!();
    let (a, b) = talkers();
    let server = serve(&place, &[&a, &b], &[]);
    let answer = connect(&server, "/v1/realtime?model=gone");
    assert_eq!(answer.status(), 404, "{answer:?}");
    assert_eq!(code(&answer), "model_not_found");
    assert_eq!((count(&a), count(&b)), (0, 0));
}

#[test]
fn one_that_may_not_be_used_is_unknown() {
    let place = testkit::sandbox!();
    let mock = talker("a", &["open", "secret"]);
    let url = mock.url();
    let file = format!("[[backend]]\nurl = \"{url}\"\nonly_models = [\"open\"]\n");
    let server = serve_file(&place, &file);
    assert_eq!(connect(&server, "/v1/realtime?model=open").status(), 101);
    assert_eq!(connect(&server, "/v1/realtime?model=secret").status(), 404);
    assert_eq!(count(&mock), 1);
}

#[test]
fn two_names_are_none() {
    let place = testkit::sandbox!();
    let (a, b) = talkers();
    let server = serve(&place, &[&a, &b], &[]);
    for query in [
        "model=only-a&model=only-b",
        "model=only-a&Model=only-b",
        "model=only-a&%6Dodel=only-b",
        "MODEL=only-b",
        "model=%ff",
        "model=only-b%2",
    ] {
        let answer = connect(&server, &format!("/v1/realtime?{query}"));
        assert_eq!(answer.status(), 400, "{query}: {answer:?}");
        assert_eq!(code(&answer), "bad_query", "{query}");
    }
    assert_eq!((count(&a), count(&b)), (0, 0));
}

#[test]
fn an_alias_is_replaced_and_nothing_else_is() {
    let place = testkit::sandbox!();
    let (a, b) = talkers();
    let file = format!(
        "[[backend]]\nurl = \"{}\"\n[[backend]]\nurl = \"{}\"\n\
         [aliases]\nvoice = \"only-b\"\n",
        a.url(),
        b.url()
    );
    let server = serve_file(&place, &file);
    let sent = "/v1/realtime?x=voice&&y=%7e+%2F&m%6fdel=v%6Fice&voice&z=?model=voice";
    let arrives = "/v1/realtime?x=voice&&y=%7e+%2F&m%6fdel=only-b&voice&z=?model=voice";
    assert_eq!(connect(&server, sent).status(), 101);
    assert_eq!(targets(&b), [arrives]);
    assert_eq!(count(&a), 0);
}

#[test]
fn the_name_of_a_model_is_escaped_in_a_query() {
    let place = testkit::sandbox!();
    let mock = talker("a", &["a b/c&d=e:é"]);
    let url = mock.url();
    let file = format!("[[backend]]\nurl = \"{url}\"\n[aliases]\nodd = \"a b/c&d=e:é\"\n");
    let server = serve_file(&place, &file);
    assert_eq!(connect(&server, "/v1/realtime?model=odd").status(), 101);
    let unescaped = "/v1/realtime?model=a+b/c%26d%3De:%c3%a9";
    assert_eq!(connect(&server, unescaped).status(), 101);
    let escaped = "/v1/realtime?model=a%20b/c%26d%3De:%C3%A9";
    assert_eq!(targets(&mock), [escaped, unescaped]);
}
