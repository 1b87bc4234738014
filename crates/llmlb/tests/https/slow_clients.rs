//! Clients that do not read their responses over TLS. (promises L8, L11)

use std::io::Write;
use std::net::TcpStream;

use http::Method;
use testkit::backends::{CHAT, backend, ok};
use testkit::{Connection, FakeLlm, Received, h2_client, until};

use crate::tunnel::H2;
use crate::world;

/// Response size that exceeds all socket buffers.
const LARGE: usize = 64 << 20;
const LARGE_REQUEST: &str = r#"{"model":"m","large":true}"#;

fn backend_with_long_responses() -> FakeLlm {
    backend(|request: &Received, stream: &mut TcpStream| {
        if !request.text().contains("large") {
            return ok(request, stream);
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        let piece = vec![b'x'; 1 << 20];
        while stream.write_all(&piece).is_ok() {}
    })
}

#[test]
fn client_that_reads_nothing_is_disconnected_after_send_timeout() {
    let sandbox = testkit::sandbox!();
    let settings = [("server.send_timeout", "\"500ms\"")];
    let backend = backend_with_long_responses();
    let Some(world) = world::start_before(&sandbox, &settings, backend) else {
        return;
    };
    let mut client = Connection::open(world.tunnel);
    client.send_post(CHAT, LARGE_REQUEST);
    assert_eq!(client.head().status(), 200);
    world.until_in_flight(0);
    let line = "POST /v1/chat/completions 200 send_timeout";
    until("the timeout is logged", || {
        world.server.log().contains(line)
    });
}

#[test]
fn http_2_stream_that_is_not_read_is_reset_after_send_timeout() {
    let sandbox = testkit::sandbox!();
    let settings = [("server.send_timeout", "\"500ms\"")];
    let backend = backend_with_long_responses();
    let Some(world) = world::start_before(&sandbox, &settings, backend) else {
        return;
    };
    let tunnel = world::open(&world.authority, &world.server, &H2);
    h2_client::connected(tunnel, async |client| {
        let request = h2_client::request(Method::POST, CHAT);
        let response = h2_client::send(&client, request, LARGE_REQUEST).await;
        let mut body = response.await.unwrap().into_body();
        let ended = loop {
            // The client does not release received data, so the flow-control window of the stream
            // stays closed and the server cannot send.
            match body.data().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => break error,
                None => panic!("the response is complete"),
            }
        };
        assert!(ended.is_reset() || ended.is_go_away(), "{ended:?}");
    });
}

#[test]
fn client_that_reads_slowly_gets_the_whole_response() {
    const SIZE: usize = 4 << 20;
    let sandbox = testkit::sandbox!();
    let backend = backend(|_: &Received, stream: &mut TcpStream| {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {SIZE}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&vec![b'x'; SIZE]);
    });
    let Some(world) = world::start_before(&sandbox, &[], backend) else {
        return;
    };
    let mut client = Connection::open(world.tunnel);
    client.send_post(CHAT, LARGE_REQUEST);
    let answer = client.answer();
    assert_eq!(answer.body.unwrap().len(), SIZE);
}
