//! Models that a request names in its query. WebSocket handshakes have no body, so the query is the
//! only place for the model. (promises L5, L6)

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use testkit::{
    Answer, Connection, FakeLlm, LlmlbServer, Received, Request,
    backends::{asked, backend_of, code, count, ok, serve, serve_file},
};

/// Returns a backend that accepts a WebSocket, reports its name in a field and closes the connection.
fn websocket_backend(name: &'static str, models: &[&str]) -> FakeLlm {
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

/// Returns two backends that accept WebSockets. Requests without a model go to the first one.
fn websocket_backends() -> (FakeLlm, FakeLlm) {
    (
        websocket_backend("a", &["only-a"]),
        websocket_backend("b", &["only-b"]),
    )
}

fn connect(server: &LlmlbServer, target: &str) -> Answer {
    let mut client = Connection::open(server.address);
    client.send(Request::websocket(target).to_bytes());
    client.answer()
}

fn targets(mock: &FakeLlm) -> Vec<String> {
    asked(mock)
        .iter()
        .map(|request| request.target().to_owned())
        .collect()
}

#[test]
fn model_in_the_query_selects_the_backend_that_serves_it() {
    let sandbox = testkit::sandbox!();
    let (a, b) = websocket_backends();
    let server = serve(&sandbox, &[&a, &b], &[]);
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
        // A target without an alias is forwarded unchanged.
        let last = targets(if name == "a" { &a } else { &b }).pop();
        assert_eq!(last.as_deref(), Some(target));
    }
}

#[test]
fn model_in_the_query_is_used_when_the_body_has_none() {
    let sandbox = testkit::sandbox!();
    let (a, b) = websocket_backends();
    let server = serve(&sandbox, &[&a, &b], &[]);
    assert_eq!(server.get("/v1/things?model=only-b").status(), 200);
    let mut client = Connection::open(server.address);
    client.send(
        "POST /v1/realtime/calls?model=only-b HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/sdp\r\ncontent-length: 3\r\n\r\nv=0",
    );
    assert_eq!(client.answer().status(), 200);
    assert_eq!((count(&a), count(&b)), (0, 2));
    // If query and body name different models, llmlb must reject the request: inference engines
    // differ on which model applies, so the backend could serve a model that llmlb did not check.
    let body = r#"{"model":"only-a"}"#;
    let answer = server.post("/v1/chat/completions?model=only-b", body);
    assert_eq!(answer.status(), 400, "{answer:?}");
    let answer = server.post("/v1/chat/completions?model=only-a", body);
    assert_eq!(answer.status(), 200, "{answer:?}");
    assert_eq!((count(&a), count(&b)), (1, 2));
}

#[test]
fn unknown_model_in_the_query_gets_404() {
    let sandbox = testkit::sandbox!();
    let (a, b) = websocket_backends();
    let server = serve(&sandbox, &[&a, &b], &[]);
    let answer = connect(&server, "/v1/realtime?model=gone");
    assert_eq!(answer.status(), 404, "{answer:?}");
    assert_eq!(code(&answer), "model_not_found");
    assert_eq!((count(&a), count(&b)), (0, 0));
}

#[test]
fn model_in_the_query_outside_only_models_gets_404() {
    let sandbox = testkit::sandbox!();
    let mock = websocket_backend("a", &["open", "secret"]);
    let url = mock.url();
    let file = format!("[[backend]]\nurl = \"{url}\"\nonly_models = [\"open\"]\n");
    let server = serve_file(&sandbox, &file);
    assert_eq!(connect(&server, "/v1/realtime?model=open").status(), 101);
    assert_eq!(connect(&server, "/v1/realtime?model=secret").status(), 404);
    assert_eq!(count(&mock), 1);
}

#[test]
fn ambiguous_model_in_the_query_is_rejected() {
    let sandbox = testkit::sandbox!();
    let (a, b) = websocket_backends();
    let server = serve(&sandbox, &[&a, &b], &[]);
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
fn alias_in_the_query_is_replaced_and_the_rest_is_unchanged() {
    let sandbox = testkit::sandbox!();
    let (a, b) = websocket_backends();
    let file = format!(
        "[[backend]]\nurl = \"{}\"\n[[backend]]\nurl = \"{}\"\n\
         [aliases]\nvoice = \"only-b\"\n",
        a.url(),
        b.url()
    );
    let server = serve_file(&sandbox, &file);
    let sent = "/v1/realtime?x=voice&&y=%7e+%2F&m%6fdel=v%6Fice&voice&z=?model=voice";
    let forwarded = "/v1/realtime?x=voice&&y=%7e+%2F&m%6fdel=only-b&voice&z=?model=voice";
    assert_eq!(connect(&server, sent).status(), 101);
    assert_eq!(targets(&b), [forwarded]);
    assert_eq!(count(&a), 0);
}

#[test]
fn model_name_is_escaped_when_it_replaces_an_alias_in_the_query() {
    let sandbox = testkit::sandbox!();
    let mock = websocket_backend("a", &["a b/c&d=e:é"]);
    let url = mock.url();
    let file = format!("[[backend]]\nurl = \"{url}\"\n[aliases]\nodd = \"a b/c&d=e:é\"\n");
    let server = serve_file(&sandbox, &file);
    assert_eq!(connect(&server, "/v1/realtime?model=odd").status(), 101);
    let unescaped = "/v1/realtime?model=a+b/c%26d%3De:%c3%a9";
    assert_eq!(connect(&server, unescaped).status(), 101);
    let escaped = "/v1/realtime?model=a%20b/c%26d%3De:%C3%A9";
    assert_eq!(targets(&mock), [escaped, unescaped]);
}
