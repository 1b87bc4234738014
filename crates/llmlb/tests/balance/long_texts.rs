//! Long texts of clients are truncated in the log and in responses. (promises L10, L13)

use ::http::Method;
use testkit::{
    Answer, Connection, LlmlbServer,
    backends::{ASK, CHAT, UNPROBED, asked, backend, code, ok, serve},
    h2_client, until,
};

#[test]
fn long_model_names_and_paths_are_truncated_in_the_log() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[]);
    for letter in ["x", "é", "\\u0001"] {
        let name = letter.repeat(1 << 20);
        let answer = server.post(CHAT, &format!(r#"{{"model":"{name}"}}"#));
        assert_eq!(answer.status(), 404);
        assert_eq!(code(&answer), "model_not_found");
    }
    let path = format!("/v1/{}", "y".repeat(30_000));
    assert_eq!(server.get(&path).status(), 200);
    until("all requests are logged", || {
        let log = server.process.stderr();
        log.lines().filter(|line| line.contains(" id=")).count() == 4
    });
    let log = server.process.stderr();
    let longest = log.lines().map(str::len).max().unwrap_or_default();
    assert!(longest < 4000, "a line of {longest} bytes");
    assert!(log.contains("model=xxxx"), "{log}");
}

fn response_to(server: &LlmlbServer, method: &str) -> Answer {
    let mut client = Connection::open(server.address);
    client.send(format!(
        "{method} {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{ASK}",
        ASK.len()
    ));
    client.answer()
}

/// Returns the lines of the access log once there are this many.
fn request_lines(server: &LlmlbServer, count: usize) -> Vec<String> {
    testkit::eventually("all requests are logged", || {
        let log = server.process.stderr();
        let lines = log.lines().filter(|line| line.contains(" id="));
        let lines: Vec<String> = lines.map(str::to_owned).collect();
        (lines.len() == count).then_some(lines)
    })
}

#[test]
fn unknown_methods_are_rejected_and_truncated_in_the_log() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let long = "X".repeat(20_000);
    let cases = [
        ("TRACE", 405, "method_not_allowed"),
        ("PROPFIND", 501, "method_not_implemented"),
        ("post", 501, "method_not_implemented"),
        (&long, 501, "method_not_implemented"),
    ];
    for (method, status, expected) in cases {
        let answer = response_to(&server, method);
        let shown = &method[..method.len().min(20)];
        assert_eq!(answer.status(), status, "{shown}");
        assert_eq!(code(&answer), expected, "{shown}");
        assert!(answer.text().len() < 1000, "{shown}");
        let allowed = answer.head.header("allow");
        let all = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";
        assert_eq!(
            allowed.as_deref(),
            (status == 405).then_some(all),
            "{shown}"
        );
    }
    h2_client::connected(server.address, async |client| {
        let method = Method::from_bytes(&long.as_bytes()[..5000]).unwrap();
        let request = h2_client::request(method, CHAT);
        let response = h2_client::send(&client, request, "").await;
        assert_eq!(h2_client::answer(response).await.status, 501);
    });
    let lines = request_lines(&server, cases.len() + 1);
    for line in lines {
        assert!(line.len() < 300, "a line of {} bytes", line.len());
    }
    assert!(asked(&mock).is_empty());
}

#[test]
fn known_methods_are_forwarded() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for method in ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        let mut client = Connection::open(server.address);
        client.send(format!(
            "{method} /v1/files/f HTTP/1.1\r\nhost: localhost\r\n\r\n"
        ));
        assert_eq!(client.head().status(), 200, "{method}");
    }
    let methods: Vec<_> = asked(&mock)
        .iter()
        .map(|request| request.head.line.split(' ').next().unwrap().to_owned())
        .collect();
    let all = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
    assert_eq!(methods, all);
}

#[test]
fn unsafe_characters_of_a_client_are_escaped_in_the_log() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let body = r#"{"model":"a\u001b[2J\u009b\u202eb\n"}"#;
    assert_eq!(server.post(CHAT, body).status(), 404);
    let lines = request_lines(&server, 1);
    assert!(
        !lines[0].contains(|c: char| c.is_control() || c == '\u{202e}'),
        "{lines:?}"
    );
    assert!(
        lines[0].contains(r#"model="a\u{1b}[2J\u{9b}\u{202e}b\n" "#),
        "{lines:?}"
    );
}
