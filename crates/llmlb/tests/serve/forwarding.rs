//! Parts of requests and responses that are forwarded unchanged, and parts that are not. (promises
//! L5, L11)

use std::io::Write;
use testkit::backends::CHAT;
use testkit::{Connection, FakeLlm, LlmlbServer, Sandbox, wire};

fn echo() -> FakeLlm {
    FakeLlm::handling(&["m"], |_, stream| wire::json(stream, 200, "{}"))
}

fn serve(sandbox: &Sandbox, mock: &FakeLlm) -> LlmlbServer {
    sandbox.serve(&format!("--backend {}", mock.url()))
}

#[test]
fn request_is_forwarded_byte_for_byte() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let server = serve(&sandbox, &mock);
    let body = "{ \"big\": 123456789012345678901234567890, \"model\" :\"m\",\t\"x\":\"\\u00e9é\",\"x\":1.0 }\n";
    let answer = server.post(&format!("{CHAT}?a=%20b&c"), body);
    assert_eq!(answer.status(), 200);
    let requests = mock.requests();
    assert_eq!(requests[0].text(), body);
    assert_eq!(
        requests[0].head.line,
        format!("POST {CHAT}?a=%20b&c HTTP/1.1")
    );
    let length = requests[0].head.header("content-length");
    assert_eq!(length, Some(body.len().to_string()));
}

#[test]
fn hop_by_hop_headers_and_credentials_are_not_forwarded() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=9\r\n\
              set-cookie: a=1\r\nx-many: 1\r\nx-many: 2\r\nserver: vllm\r\ncontent-length: 2\r\n\r\n{}",
        );
    });
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"m"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sk-client\r\n\
         x-api-key: sk-client\r\ncookie: s=1\r\nconnection: keep-alive, x-private\r\nx-private: 1\r\n\
         te: trailers\r\nupgrade: h2c\r\nproxy-authorization: Basic eA==\r\n\
         x-stainless-many: 1\r\nx-stainless-many: 2\r\n\
         user-agent: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = client.answer();
    assert_eq!(answer.status(), 200);
    for removed in ["x-hop", "keep-alive", "set-cookie"] {
        assert_eq!(answer.head.header(removed), None, "{removed}");
    }
    assert_eq!(answer.head.header("x-many").as_deref(), Some("1, 2"));
    assert_eq!(answer.head.header("server").as_deref(), Some("vllm"));
    let served_by = answer.head.header("x-llmlb-backend");
    assert_eq!(served_by.as_deref(), Some("backend-1"));

    let requests = mock.requests();
    let head = &requests[0].head;
    for removed in [
        "authorization",
        "x-api-key",
        "cookie",
        "connection",
        "x-private",
        "te",
        "upgrade",
        "proxy-authorization",
    ] {
        assert_eq!(head.header(removed), None, "{removed}");
    }
    assert_eq!(head.header("x-stainless-many").as_deref(), Some("1, 2"));
    assert_eq!(head.header("user-agent").as_deref(), Some("test"));
    assert_eq!(head.header("host"), Some(mock.address.to_string()));
}

#[test]
fn backend_receives_its_own_key_and_no_log_shows_it() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let config = format!(
        "[[backend]]\nname = \"gpu\"\nurl = \"{}\"\napi_key_env = \"GPU_KEY\"\n",
        mock.url()
    );
    std::fs::write(sandbox.path("llmlb.toml"), config).unwrap();
    let server = sandbox.serve_with(
        sandbox
            .command("serve -v -p 0")
            .env("GPU_KEY", "sk-backend"),
    );
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"m"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer sk-client\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.answer().status(), 200);
    let requests = mock.requests();
    let key = requests[0].head.header("authorization");
    assert_eq!(key.as_deref(), Some("Bearer sk-backend"));
    assert!(mock.probe_credentials().contains("Bearer sk-backend"));
    let log = server.process.stderr() + &server.get("/status").text();
    assert!(!log.contains("sk-"), "{log}");
}

#[test]
fn error_response_of_the_backend_is_forwarded_unchanged() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 429 Slow Down\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy",
        );
    });
    let server = serve(&sandbox, &mock);
    let answer = server.post(CHAT, r#"{"model":"m"}"#);
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.head.header("retry-after").as_deref(), Some("7"));
    assert_eq!(answer.text(), "busy");
    assert_eq!(mock.count(), 1, "the request was sent once");
}

#[test]
fn connections_of_clients_and_backends_are_reused() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", mock.url()));
    let server = sandbox.serve_with(command.env("LLMLB_WORKERS", "1"));
    let mut client = Connection::open(server.address);
    for _ in 0..5 {
        client.send_post(CHAT, r#"{"model":"m"}"#);
        assert_eq!(client.answer().status(), 200);
    }
    let requests = mock.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.connection == requests[0].connection)
    );
}

#[test]
fn chunked_request_body_reaches_the_backend_complete() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n7\r\n{{\"model\r\n"
    ));
    client.send("6\r\n\":\"m\"}\r\n0\r\n\r\n");
    assert_eq!(client.answer().status(), 200);
    assert_eq!(mock.requests()[0].text(), r#"{"model":"m"}"#);
}

#[test]
fn request_with_content_length_and_chunks_smuggles_no_request() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    // A backend that used the Content-Length would read the end of this body as a second request,
    // which llmlb has not checked.
    client.send(
        "POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n\
         content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n\
         33\r\nGET /v1/smuggled HTTP/1.1\r\nhost: localhost\r\nx: yz\r\n\r\n0\r\n\r\n",
    );
    let status = client.head().status();
    assert!(status == 200 || status == 400, "{status}");
    let requests = mock.requests();
    assert!(
        requests
            .iter()
            .all(|request| request.target() != "/v1/smuggled")
    );
    for request in &requests {
        assert_eq!(request.head.header("content-length"), None);
        assert_eq!(request.body.len(), 0x33);
    }
}

#[test]
fn incomplete_request_body_is_an_error_of_the_client() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let server = serve(&sandbox, &mock);
    for kind in ["application/json", "application/octet-stream"] {
        let mut client = Connection::open(server.address);
        client.send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
             transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense\r\n"
        ));
        let answer = client.answer();
        assert_eq!(answer.status(), 400, "{kind}");
        assert_eq!(answer.json()["error"]["code"], "incomplete_body", "{kind}");
    }
    let log = server.process.stderr();
    assert!(!log.contains("warning"), "{log}");
}

#[test]
fn expect_continue_is_answered_with_100() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"m"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(client.head().status(), 100);
    client.send(body);
    assert_eq!(client.answer().status(), 200);
    assert_eq!(mock.requests()[0].head.header("expect"), None);
}

#[test]
fn body_that_is_not_json_is_forwarded_unchanged() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    let body: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    client.send(format!(
        "POST /v1/files HTTP/1.1\r\nhost: localhost\r\n\
         content-type: multipart/form-data; boundary=b\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ));
    client.send(&body);
    assert_eq!(client.answer().status(), 200);
    let requests = mock.requests();
    assert_eq!(requests[0].body, body);
    assert_eq!(requests[0].target(), "/v1/files");
}

#[test]
fn body_beyond_the_limit_is_refused_with_the_setting() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", mock.url()));
    let server = sandbox.serve_with(command.env("LLMLB_MAX_BODY", "1KiB"));
    let fits = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(1024 - 20));
    assert_eq!(fits.len(), 1024);
    assert_eq!(server.post(CHAT, &fits).status(), 200);
    let large = fits.replace("yy", "yyy");
    let answer = server.post(CHAT, &large);
    assert_eq!(answer.status(), 413);
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "body_too_large");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("server.max_body")
    );

    // Without a Content-Length the size is not known in advance. The limit must then apply to the
    // bytes that arrive.
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    ));
    assert_eq!(client.answer().status(), 413);
    assert_eq!(mock.count(), 1);
}

#[test]
fn invalid_json_is_refused_with_its_position() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let server = serve(&sandbox, &mock);
    for (body, problem) in [
        (r#"{"model":"m""#, "line 1 column 12"),
        ("[1]", "a JSON object"),
        (r#"{"model":7}"#, "expected a string"),
    ] {
        let answer = server.post(CHAT, body);
        assert_eq!(answer.status(), 400, "{body}");
        let error = &answer.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(problem), "{message}");
    }
    assert_eq!(mock.count(), 0);
}

#[test]
fn json_with_the_media_type_of_a_form_is_routed_by_its_model() {
    let sandbox = testkit::sandbox!();
    let (first, second) = (
        echo(),
        FakeLlm::handling(&["other"], |_, stream| wire::json(stream, 200, "{}")),
    );
    let server = sandbox.serve(&format!(
        "--backend {} --backend {}",
        first.url(),
        second.url()
    ));
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"other"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.answer().status(), 200);
    assert_eq!((first.count(), second.count()), (0, 1));
}

#[test]
fn http_1_0_client_gets_an_unframed_response() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "one");
        wire::chunk(stream, "two");
        wire::end_stream(stream);
    });
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"m"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let head = client.head();
    assert_eq!(head.status(), 200);
    assert_eq!(head.header("transfer-encoding"), None);
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut client.reader, &mut rest).unwrap();
    assert_eq!(rest, "onetwo");
}

#[test]
fn path_of_a_backend_url_is_prepended_to_requests() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling_all(|request, stream| {
        let is_known = request.target().starts_with("/openai/v1/");
        let list = r#"{"data":[{"id":"m"}]}"#;
        wire::json(stream, if is_known { 200 } else { 404 }, list);
    });
    // Users copy the base URL that clients of the backend use, which ends in /v1. llmlb must not
    // forward requests to /openai/v1/v1/...
    let server = sandbox.serve(&format!("--backend {}/openai/v1/", mock.url()));
    assert_eq!(server.post(CHAT, r#"{"model":"m"}"#).status(), 200);
    let requests = mock.requests();
    assert_eq!(
        requests.last().unwrap().target(),
        "/openai/v1/chat/completions"
    );
}

#[test]
fn body_of_an_unknown_endpoint_is_forwarded_unless_it_may_hide_a_model() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let server = serve(&sandbox, &mock);
    for body in ["[1]", "7", r#"{"x":{}}"#] {
        assert_eq!(server.post("/v1/unknown", body).status(), 200, "{body}");
    }
    assert_eq!(mock.count(), 3);
    // Invalid JSON and invalid models are rejected: a backend might read a model from these bodies that llmlb
    // did not check.
    for body in ["{", r#"{"model":7}"#, r#"{"model":"m"}}"#] {
        assert_eq!(server.post("/v1/unknown", body).status(), 400, "{body}");
    }
    assert_eq!(mock.count(), 3);
}

#[test]
fn compressed_request_is_refused_with_the_reason() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-encoding: gzip\r\ncontent-length: 3\r\n\r\n\x1f\x08x"
    ));
    let answer = client.answer();
    assert_eq!(answer.status(), 415);
    assert_eq!(answer.json()["error"]["code"], "compressed_body");
}

#[test]
fn path_with_dot_segments_is_refused() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let server = serve(&sandbox, &mock);
    for path in ["/v1/../api/tags", "/v1/%2e%2e/api/tags", "/v1/files/.%2E/x"] {
        assert_eq!(server.get(path).status(), 400, "{path}");
    }
    assert_eq!(mock.count(), 0);
}

#[test]
fn http_1_0_response_is_forwarded_as_http_1_1() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nto the end");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = serve(&sandbox, &mock);
    let answer = server.post(CHAT, r#"{"model":"m"}"#);
    assert_eq!(answer.head.line, "HTTP/1.1 200 OK");
    // The client cannot see if the backend closed the connection too early unless the response has
    // chunks, so llmlb must add them.
    assert_eq!(
        answer.head.header("transfer-encoding").as_deref(),
        Some("chunked")
    );
    assert_eq!(answer.text(), "to the end");
}

#[test]
fn response_with_content_length_and_chunks_is_forwarded_complete() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n\
              a\r\n0123456789\r\n0\r\n\r\n",
        );
    });
    let server = serve(&sandbox, &mock);
    assert_eq!(server.post(CHAT, r#"{"model":"m"}"#).text(), "0123456789");
}

#[test]
fn unrequested_protocol_switch_of_a_backend_is_a_bad_gateway() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n");
    });
    let server = serve(&sandbox, &mock);
    assert_eq!(server.post(CHAT, r#"{"model":"m"}"#).status(), 502);
}

#[test]
fn web_page_of_another_site_cannot_use_a_private_server() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let private = serve(&sandbox, &mock);
    let public = sandbox.serve(&format!("--backend {} --allow-public", mock.url()));
    for (host, origin, expected) in [
        ("localhost", None, 200),
        ("127.0.0.1:1", Some("http://localhost:3000"), 200),
        ("[::1]", Some("null"), 200),
        ("localhost", Some("https://evil.example"), 403),
        ("evil.example", None, 403),
    ] {
        for (server, expected) in [(&private, expected), (&public, 200)] {
            let mut client = Connection::open(server.address);
            let origin = origin.map_or_else(String::new, |origin| format!("origin: {origin}\r\n"));
            client.send(format!(
                "GET /v1/models HTTP/1.1\r\nhost: {host}\r\n{origin}\r\n"
            ));
            assert_eq!(client.answer().status(), expected, "{host} {origin}");
        }
    }
}

#[test]
fn loopback_address_is_private_in_every_notation() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    for host in ["127.0.0.1", "::ffff:127.0.0.1"] {
        let server = sandbox.serve(&format!("-H {host} --backend {}", mock.url()));
        let mut client = Connection::open(server.address);
        client.send("GET /v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n");
        assert_eq!(client.answer().status(), 403, "{host}");
        let log = server.process.stderr();
        assert!(
            !log.contains("every client that can reach"),
            "{host}: {log}"
        );
    }
}

#[test]
fn model_name_with_control_characters_cannot_forge_the_log() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling_all(|_, stream| {
        wire::json(
            stream,
            200,
            r#"{"data":[{"id":"a\nllmlb: error: forged \u001b[31m"}]}"#,
        );
    });
    let server = serve(&sandbox, &mock);
    let log = server.process.stderr();
    assert!(log.contains("a?llmlb: error: forged"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log}");
}

#[cfg(target_os = "linux")]
#[test]
fn nagle_is_disabled_for_clients_and_backends() {
    let sandbox = testkit::sandbox!();
    let mock = echo();
    let serve = sandbox.command(&format!("serve -p 0 --backend {}", mock.url()));
    let trace = sandbox.path("trace");
    let mut command = std::process::Command::new("strace");
    command
        .args(["-f", "-e", "trace=setsockopt,accept4,connect", "-o"])
        .arg(&trace);
    command.arg(serve.get_program()).args(serve.get_args());
    command
        .env("LLMLB_LOCK_DIR", sandbox.locks())
        .env("LLMLB_DATA_DIR", sandbox.path("data"))
        .env("LLMLB_WORKERS", "1");
    let server = sandbox.serve_with(&mut command);
    let nodelay_calls = || {
        let trace = std::fs::read_to_string(&trace).unwrap();
        trace.matches("TCP_NODELAY, [1]").count()
    };
    let before = nodelay_calls();
    assert_eq!(server.post(CHAT, r#"{"model":"m"}"#).status(), 200);
    // Nagle's algorithm would delay small writes such as single tokens, so it must be disabled on
    // the client's connection and on the backend's.
    assert!(
        nodelay_calls() >= before + 2,
        "{}",
        std::fs::read_to_string(&trace).unwrap()
    );
    let _ = sandbox.run(&format!("stop -p {}", server.port()));
}
