//! What passes through unchanged, and what does not. (L5, L11)

use std::io::Write;

use crate::http::Connection;
use crate::mock::{self, Mock};
use crate::support::{Place, Server};

const CHAT: &str = "/v1/chat/completions";

fn echo() -> Mock {
    Mock::start(&["m"], |_, stream| mock::json(stream, 200, "{}"))
}

fn serve(place: &Place, mock: &Mock) -> Server {
    place.serve(&format!("--backend {}", mock.url()))
}

#[test]
fn the_bytes_of_a_request_are_the_clients() {
    let place = Place::new();
    let mock = echo();
    let server = serve(&place, &mock);
    let body = "{ \"big\": 123456789012345678901234567890, \"model\" :\"m\",\t\"x\":\"\\u00e9é\",\"x\":1.0 }\n";
    let answer = server.post(&format!("{CHAT}?a=%20b&c"), body);
    assert_eq!(answer.status(), 200);
    let requests = mock.requests.lock().unwrap();
    assert_eq!(requests[0].text(), body);
    assert_eq!(
        requests[0].head.line,
        format!("POST {CHAT}?a=%20b&c HTTP/1.1")
    );
    let length = requests[0].head.header("content-length");
    assert_eq!(length, Some(body.len().to_string()));
}

#[test]
fn hop_by_hop_headers_and_credentials_end_at_the_balancer() {
    let place = Place::new();
    let mock = Mock::start(&["m"], |_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\nconnection: x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=9\r\n\
              set-cookie: a=1\r\nx-many: 1\r\nx-many: 2\r\nserver: vllm\r\ncontent-length: 2\r\n\r\n{}",
        );
    });
    let server = serve(&place, &mock);
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"m"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: public.example\r\nauthorization: Bearer sk-client\r\n\
         x-api-key: sk-client\r\ncookie: s=1\r\nconnection: keep-alive, x-private\r\nx-private: 1\r\n\
         te: trailers\r\nupgrade: h2c\r\nproxy-authorization: Basic eA==\r\nx-many: 1\r\nx-many: 2\r\n\
         user-agent: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = client.answer();
    assert_eq!(answer.status(), 200);
    for gone in ["x-hop", "keep-alive", "set-cookie"] {
        assert_eq!(answer.head.header(gone), None, "{gone}");
    }
    assert_eq!(answer.head.header("x-many").as_deref(), Some("1, 2"));
    assert_eq!(answer.head.header("server").as_deref(), Some("vllm"));
    let served_by = answer.head.header("x-llmlb-backend");
    assert_eq!(served_by, Some(mock.address.to_string()));

    let requests = mock.requests.lock().unwrap();
    let head = &requests[0].head;
    for gone in [
        "authorization",
        "x-api-key",
        "cookie",
        "connection",
        "x-private",
        "te",
        "upgrade",
        "proxy-authorization",
    ] {
        assert_eq!(head.header(gone), None, "{gone}");
    }
    assert_eq!(head.header("x-many").as_deref(), Some("1, 2"));
    assert_eq!(head.header("user-agent").as_deref(), Some("test"));
    assert_eq!(head.header("host"), Some(mock.address.to_string()));
}

#[test]
fn a_backend_gets_the_key_that_is_its_own() {
    let place = Place::new();
    let mock = echo();
    let config = format!(
        "[[backend]]\nname = \"gpu\"\nurl = \"{}\"\napi_key_env = \"GPU_KEY\"\n",
        mock.url()
    );
    std::fs::write(place.path("llmlb.toml"), config).unwrap();
    let server = place.serve_with(place.command("serve -v -p 0").env("GPU_KEY", "sk-backend"));
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"m"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-client\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.answer().status(), 200);
    let requests = mock.requests.lock().unwrap();
    let key = requests[0].head.header("authorization");
    assert_eq!(key.as_deref(), Some("Bearer sk-backend"));
    let said = server.process.err() + &server.get("/status").text();
    assert!(!said.contains("sk-"), "{said}");
}

#[test]
fn a_refusal_of_the_backend_reaches_the_client_as_it_is() {
    let place = Place::new();
    let mock = Mock::start(&["m"], |_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 429 Slow Down\r\nretry-after: 7\r\ncontent-length: 4\r\n\r\nbusy",
        );
    });
    let server = serve(&place, &mock);
    let answer = server.post(CHAT, r#"{"model":"m"}"#);
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.head.header("retry-after").as_deref(), Some("7"));
    assert_eq!(answer.text(), "busy");
    assert_eq!(mock.count(), 1, "it was tried once");
}

#[test]
fn connections_are_used_again_on_both_sides() {
    let place = Place::new();
    let mock = echo();
    let mut command = place.command(&format!("serve -p 0 --backend {}", mock.url()));
    let server = place.serve_with(command.env("LLMLB_WORKERS", "1"));
    let mut client = Connection::open(server.address);
    for _ in 0..5 {
        client.send_post(CHAT, r#"{"model":"m"}"#);
        assert_eq!(client.answer().status(), 200);
    }
    let requests = mock.requests.lock().unwrap();
    assert!(
        requests
            .iter()
            .all(|one| one.connection == requests[0].connection)
    );
}

#[test]
fn an_upload_in_chunks_arrives_whole() {
    let place = Place::new();
    let mock = echo();
    let server = serve(&place, &mock);
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n7\r\n{{\"model\r\n"
    ));
    client.send("6\r\n\":\"m\"}\r\n0\r\n\r\n");
    assert_eq!(client.answer().status(), 200);
    assert_eq!(mock.requests.lock().unwrap()[0].text(), r#"{"model":"m"}"#);
}

#[test]
fn a_length_beside_chunks_smuggles_nothing() {
    let place = Place::new();
    let mock = echo();
    let server = serve(&place, &mock);
    let mut client = Connection::open(server.address);
    // For who believes the length, a second request follows the first.
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/octet-stream\r\n\
         content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n\
         2b\r\nGET /v1/smuggled HTTP/1.1\r\nhost: x\r\nx: yz\r\n\r\n0\r\n\r\n"
    ));
    let status = client.head().status();
    assert!(status == 200 || status == 400, "{status}");
    let requests = mock.requests.lock().unwrap();
    assert!(requests.iter().all(|one| one.path() != "/v1/smuggled"));
    for request in requests.iter() {
        assert_eq!(request.head.header("content-length"), None);
        assert_eq!(request.body.len(), 0x2b);
    }
}

#[test]
fn an_upload_that_breaks_off_is_the_clients_fault() {
    let place = Place::new();
    let mock = echo();
    let server = serve(&place, &mock);
    for kind in ["application/json", "application/octet-stream"] {
        let mut client = Connection::open(server.address);
        client.send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\n\
             transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nnonsense\r\n"
        ));
        let answer = client.answer();
        assert_eq!(answer.status(), 400, "{kind}");
        assert_eq!(answer.json()["error"]["code"], "incomplete_body", "{kind}");
    }
    let said = server.process.err();
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn a_client_that_asks_first_is_told_to_go_on() {
    let place = Place::new();
    let mock = echo();
    let server = serve(&place, &mock);
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"m"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         expect: 100-continue\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ));
    assert_eq!(client.head().status(), 100);
    client.send(body);
    assert_eq!(client.answer().status(), 200);
    assert_eq!(mock.requests.lock().unwrap()[0].head.header("expect"), None);
}

#[test]
fn a_body_that_is_not_json_passes_through_as_it_comes() {
    let place = Place::new();
    let mock = echo();
    let server = serve(&place, &mock);
    let mut client = Connection::open(server.address);
    let body: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    client.send(format!(
        "POST /v1/audio/transcriptions HTTP/1.1\r\nhost: x\r\n\
         content-type: multipart/form-data; boundary=b\r\ncontent-length: {}\r\n\r\n",
        body.len()
    ));
    client.send(&body);
    assert_eq!(client.answer().status(), 200);
    let requests = mock.requests.lock().unwrap();
    assert_eq!(requests[0].body, body);
    assert_eq!(requests[0].path(), "/v1/audio/transcriptions");
}

#[test]
fn a_body_beyond_the_limit_is_refused_and_says_which_limit() {
    let place = Place::new();
    let mock = echo();
    let mut command = place.command(&format!("serve -p 0 --backend {}", mock.url()));
    let server = place.serve_with(command.env("LLMLB_MAX_BODY", "1KiB"));
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

    // The same without a length beforehand.
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    ));
    assert_eq!(client.answer().status(), 413);
    assert_eq!(mock.count(), 1);
}

#[test]
fn bad_json_is_refused_with_the_place() {
    let place = Place::new();
    let mock = echo();
    let server = serve(&place, &mock);
    for (body, why) in [
        (r#"{"model":"m""#, "line 1 column 12"),
        ("[1]", "a JSON object"),
        (r#"{"model":7}"#, "expected a string"),
    ] {
        let answer = server.post(CHAT, body);
        assert_eq!(answer.status(), 400, "{body}");
        let error = &answer.json()["error"];
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
    }
    assert_eq!(mock.count(), 0);
}

#[test]
fn json_that_curl_calls_a_form_is_routed_by_its_model() {
    let place = Place::new();
    let (first, second) = (
        echo(),
        Mock::start(&["other"], |_, stream| mock::json(stream, 200, "{}")),
    );
    let server = place.serve(&format!(
        "--backend {} --backend {}",
        first.url(),
        second.url()
    ));
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"other"}"#;
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    assert_eq!(client.answer().status(), 200);
    assert_eq!((first.count(), second.count()), (0, 1));
}

#[test]
fn an_old_client_gets_its_answer_too() {
    let place = Place::new();
    let mock = Mock::start(&["m"], |_, stream| {
        mock::begin_stream(stream);
        mock::chunk(stream, "one");
        mock::chunk(stream, "two");
        mock::end_stream(stream);
    });
    let server = serve(&place, &mock);
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
fn a_backend_behind_a_path_is_asked_there() {
    let place = Place::new();
    let mock = Mock::raw("127.0.0.1:0".parse().unwrap(), |request, stream| {
        let known = request.path().starts_with("/openai/v1/");
        let list = r#"{"data":[{"id":"m"}]}"#;
        mock::json(stream, if known { 200 } else { 404 }, list);
    });
    // The base URL as people have it for their clients.
    let server = place.serve(&format!("--backend {}/openai/v1/", mock.url()));
    assert_eq!(server.post(CHAT, r#"{"model":"m"}"#).status(), 200);
    let requests = mock.requests.lock().unwrap();
    assert_eq!(
        requests.last().unwrap().path(),
        "/openai/v1/chat/completions"
    );
}
