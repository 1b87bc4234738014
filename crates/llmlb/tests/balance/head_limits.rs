//! Limits on the size of a request's head. (promise L11)

use std::io::Write;
use testkit::{
    Connection, Head, LlmlbServer,
    backends::{ASK, CHAT, UNPROBED, asked, backend, ok, serve},
    h2_client::{answer, connected, request, send},
    until,
};

/// Sends a head and returns the status of the response. The server may respond before it has read
/// the whole head.
fn status(server: &LlmlbServer, head: &str) -> Option<u16> {
    let mut client = Connection::open(server.address);
    let _ = client.reader.get_mut().write_all(head.as_bytes());
    Head::read(&mut client.reader).map(|head| head.status())
}

#[test]
fn head_that_is_too_large_is_rejected() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let large = "x".repeat(1 << 20);
    let many = "x-a: 1\r\n".repeat(20_000);
    for (large_part, head, allowed) in [
        (
            "a field",
            format!("GET /v1/x HTTP/1.1\r\nx-a: {large}\r\n\r\n"),
            &[431][..],
        ),
        (
            "a name",
            format!("GET /v1/x HTTP/1.1\r\n{large}: 1\r\n\r\n"),
            &[431, 400],
        ),
        (
            "fields",
            format!("GET /v1/x HTTP/1.1\r\n{many}\r\n"),
            &[431],
        ),
        (
            "a path",
            format!("GET /v1/{large} HTTP/1.1\r\n\r\n"),
            &[414, 431],
        ),
        (
            "no end",
            format!("GET /v1/x HTTP/1.1\r\nx-a: {large}"),
            &[431],
        ),
    ] {
        let status = status(&server, &head);
        assert!(
            status.is_some_and(|status| allowed.contains(&status)),
            "{large_part}: {status:?}"
        );
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
    assert!(asked(&mock).iter().all(|request| request.target() == CHAT));
    server.until_in_flight(0);
}

#[test]
fn head_of_usual_size_is_forwarded() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    // Tokens of single sign-on can have 12,000 characters, so a head with one must not be too
    // large.
    let token = "t".repeat(12_000);
    let many: Vec<_> = (0..60)
        .map(|n| format!("x-stainless-{n}: {n}\r\n"))
        .collect();
    let many = many.concat();
    let head = format!("GET /v1/files?{token} HTTP/1.1\r\nhost: localhost\r\n{many}\r\n");
    assert_eq!(status(&server, &head), Some(200));
    let asked = asked(&mock);
    assert_eq!(asked[0].target(), format!("/v1/files?{token}"));
    for n in 0..60 {
        let value = asked[0].head.header(&format!("x-stainless-{n}"));
        assert_eq!(value, Some(n.to_string()));
    }
}

/// Returns a request whose head has about this size.
fn head_of_size(bytes: usize) -> String {
    let value = "x".repeat(bytes);
    format!("GET /v1/files HTTP/1.1\r\nhost: localhost\r\nx-a: {value}\r\n\r\n")
}

#[test]
fn head_beyond_max_header_gets_431() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    assert_eq!(status(&server, &head_of_size(31 << 10)), Some(200));
    assert_eq!(status(&server, &head_of_size(33 << 10)), Some(431));
    for (setting, allowed, rejected) in
        [("8KiB", 7 << 10, 9 << 10), ("300KiB", 299 << 10, 301 << 10)]
    {
        let sandbox = testkit::sandbox!();
        let server = serve(&sandbox, &[&mock], &[("LLMLB_MAX_HEADER", setting)]);
        assert_eq!(
            status(&server, &head_of_size(allowed)),
            Some(200),
            "{setting}"
        );
        assert_eq!(
            status(&server, &head_of_size(rejected)),
            Some(431),
            "{setting}"
        );
    }
}

#[test]
fn head_with_more_than_100_fields_gets_431() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for (fields, expected) in [(100, 200), (101, 431)] {
        let fields: Vec<_> = (1..fields).map(|n| format!("x-{n}: 1\r\n")).collect();
        let fields = fields.concat();
        let head = format!("GET /v1/files HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n");
        assert_eq!(status(&server, &head), Some(expected));
    }
}

#[test]
fn http_2_head_beyond_max_header_gets_431() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        for (size, expected) in [(31 << 10, 200), (33 << 10, 431), (8, 200)] {
            let mut head = request(::http::Method::GET, "/v1/files");
            let value = "x".repeat(size).parse().unwrap();
            head.headers_mut().insert("x-a", value);
            let response = answer(send(&client, head, "").await).await;
            assert_eq!(response.status, expected, "{size}");
        }
    });
}

#[test]
fn log_has_a_line_for_a_head_that_cannot_be_parsed() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[("LLMLB_MAX_HEADER", "300KiB")]);
    let (large, long) = ("x".repeat(301 << 10), "y".repeat(70_000));
    for (head, status_and_line) in [
        (
            format!("GET /v1/files?secret=1 HTTP/1.1\r\nx-a: {large}\r\n\r\n"),
            (431, "GET /v1/files 431 header_too_large".to_owned()),
        ),
        (
            format!("GET /v1/{long} HTTP/1.1\r\n\r\n"),
            (414, format!("GET /v1/{} 414 path_too_long", &long[..196])),
        ),
        (
            "GET /v1/files HTTP/9.9\r\n\r\n".to_owned(),
            (400, "GET /v1/files 400 bad_head".to_owned()),
        ),
        (
            "POST\r\n\r\n".to_owned(),
            (400, "POST - 400 bad_head".to_owned()),
        ),
        (
            "G\x1b[1mT /v1/a\x07b HTTP/1.1\r\n\r\n".to_owned(),
            (400, r#"- "/v1/a\u{7}b" 400 bad_head"#.to_owned()),
        ),
    ] {
        let (expected, line) = status_and_line;
        assert_eq!(status(&server, &head), Some(expected), "{line}");
        let line = format!("llmlb: {line} ms=");
        until(&line, || server.process.stderr().contains(&line));
    }
    let log = server.process.stderr();
    assert!(!log.contains("secret"), "{log}");
    let lines = log.lines().filter(|line| line.contains(" bytes=0 id="));
    assert_eq!(lines.count(), 5, "{log}");
}
