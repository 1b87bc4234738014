//! Clients that do not read their responses do not hold a backend's slot forever. (promises L8, L11)

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use ::http::Method;
use bytes::Bytes;
use h2::Reason;
use h2::client::Builder;
use testkit::{
    Connection, FakeLlm, LlmlbServer, Received,
    backends::{ASK, CHAT, backend, backend_of, ok, serve},
    h2_client::{connect, connected, next, post, request, run, send},
    until, wire,
};

const SHORT: &[(&str, &str)] = &[
    ("LLMLB_PROBE_INTERVAL", "1h"),
    ("LLMLB_SEND_TIMEOUT", "500ms"),
];

/// Response size that exceeds all socket buffers.
const LARGE: usize = 64 << 20;
const LARGE_REQUEST: &str = r#"{"model":"m","large":true}"#;

/// Returns a backend with very long responses to `LARGE_REQUEST`.
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
fn http_1_client_that_reads_nothing_is_disconnected_after_send_timeout() {
    let sandbox = testkit::sandbox!();
    let mock = backend_with_long_responses();
    let server = serve(&sandbox, &[&mock], SHORT);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, LARGE_REQUEST);
    assert_eq!(client.head().status(), 200);
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
    until_logged(&server);
}

/// Waits until the access log shows that `send_timeout` ended the response.
fn until_logged(server: &LlmlbServer) {
    let line = "POST /v1/chat/completions 200 send_timeout";
    until("the timeout is logged", || {
        server.process.stderr().contains(line)
    });
}

#[test]
fn http_2_stream_that_is_not_read_is_reset_after_send_timeout() {
    let sandbox = testkit::sandbox!();
    let mock = backend_with_long_responses();
    let server = serve(&sandbox, &[&mock], SHORT);
    connected(server.address, async |client| {
        let head = request(Method::POST, CHAT);
        let response = send(&client, head, LARGE_REQUEST).await;
        let mut body = response.await.unwrap().into_body();
        // The connection stays open and answers pings, so the server must notice by itself that the
        // client reads nothing of the stream.
        while server.status()["in_flight"] != 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(server.status()["backends"][0]["in_flight"], 0);
        let ended = loop {
            match next(&mut body).await {
                Some(Ok(_)) => {}
                ended => break ended,
            }
        };
        assert!(matches!(ended, Some(Err(error)) if error.is_reset()));
        assert_eq!(post(&client, CHAT, ASK).await.status, 200);
    });
    until_logged(&server);
}

#[test]
fn http_2_stream_that_is_read_slowly_is_complete() {
    let sandbox = testkit::sandbox!();
    let text = "x".repeat(1 << 20);
    let sent = text.clone();
    let mock = backend(move |_, stream| wire::json(stream, 200, &sent));
    let limits = [("LLMLB_SEND_TIMEOUT", "2s")];
    let server = serve(&sandbox, &[&mock], &limits);
    connected(server.address, async |client| {
        let response = send(&client, request(Method::POST, CHAT), ASK).await;
        let mut body = response.await.unwrap().into_body();
        let mut received = 0;
        while let Some(piece) = next(&mut body).await {
            let piece: Bytes = piece.expect("the response continues");
            received += piece.len();
            // The client needs longer than `send_timeout` for the whole response. Each piece it
            // reads counts as progress, so the stream must not be reset.
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        assert_eq!(received, text.len());
    });
}

/// Waits for the end of an HTTP/2 stream without enlarging its flow-control window. Returns the
/// code with which the server reset the stream, or `None` if the stream ended otherwise.
async fn reset_of(response: h2::client::ResponseFuture) -> Option<Reason> {
    let ended = async {
        let mut body = response.await?.into_body();
        // The `h2` library does not enlarge the flow-control window when data is read. So the
        // server cannot send the rest of the response and must reset the stream.
        while let Some(data) = body.data().await {
            data?;
        }
        Ok::<_, h2::Error>(())
    };
    ended.await.err().filter(h2::Error::is_reset)?.reason()
}

#[test]
fn http_2_responses_are_reset_when_their_window_stays_closed() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| wire::json(stream, 200, r#"{"id":"short"}"#));
    let server = serve(&sandbox, &[&mock], SHORT);
    run(async {
        let closed_window = Builder::new().initial_window_size(0).clone();
        let (client, connection) = connect(server.address, &closed_window).await;
        // Request each kind of short response: the model list, an error, a page of the server
        // itself, and one that a backend sends.
        let mut responses = Vec::new();
        for (method, path, body) in [
            (Method::GET, "/v1/models", ""),
            (Method::POST, CHAT, r#"{"model":"unknown"}"#),
            (Method::GET, "/healthz", ""),
            (Method::POST, CHAT, ASK),
        ] {
            responses.push(send(&client, request(method, path), body).await);
        }
        for response in responses {
            assert_eq!(reset_of(response).await, Some(Reason::CANCEL));
        }
        // Only the unread streams are reset. The HTTP/2 connection still serves requests.
        let head = send(&client, request(Method::HEAD, "/v1/models"), "").await;
        assert_eq!(head.await.unwrap().status(), 200);
        assert!(!connection.is_finished());
    });
}

#[test]
fn model_list_over_http_2_is_reset_when_its_rest_is_not_read() {
    let sandbox = testkit::sandbox!();
    let names: Vec<_> = (0..1000).map(|number| format!("{number:0>100}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mock = backend_of(&names, ok);
    let server = serve(&sandbox, &[&mock], SHORT);
    run(async {
        let small_window = Builder::new().initial_window_size(1000).clone();
        let (client, connection) = connect(server.address, &small_window).await;
        let response = send(&client, request(Method::GET, "/v1/models"), "").await;
        assert_eq!(reset_of(response).await, Some(Reason::CANCEL));
        let health = send(&client, request(Method::HEAD, "/v1/models"), "").await;
        assert_eq!(health.await.unwrap().status(), 200);
        assert!(!connection.is_finished());
    });
}

#[test]
fn http_2_connection_is_closed_when_the_end_of_a_short_response_is_not_read() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], SHORT);
    run(async {
        // The flow-control window admits one byte, and the HTTP library queues the rest together
        // with the end of the stream. Such a stream cannot be reset, so the server must close the
        // connection.
        let small_window = Builder::new().initial_window_size(1).clone();
        let (client, connection) = connect(server.address, &small_window).await;
        let response = send(&client, request(Method::GET, "/v1/models"), "").await;
        let error = connection.await.unwrap().unwrap_err();
        assert!(error.is_go_away(), "{error}");
        assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));
        assert!(error.to_string().contains("server.send_timeout"), "{error}");
        assert!(
            response
                .await
                .is_ok_and(|response| response.status() == 200)
        );
    });
}

#[test]
fn http_2_stream_is_reset_when_it_is_read_byte_by_byte() {
    let sandbox = testkit::sandbox!();
    let mock = backend_with_long_responses();
    let server = serve(&sandbox, &[&mock], SHORT);
    run(async {
        let (client, _) = connect(server.address, &Builder::new()).await;
        let head = request(Method::POST, CHAT);
        let response = send(&client, head, LARGE_REQUEST).await;
        let mut body = response.await.unwrap().into_body();
        let mut flow = body.flow_control().clone();
        let ended = loop {
            tokio::select! {
                data = body.data() => match data {
                    Some(Ok(_)) => {}
                    ended => break ended,
                },
                // A window that grows by single bytes must not count as progress, otherwise a
                // client could hold a response forever.
                () = tokio::time::sleep(Duration::from_millis(20)) => {
                    let _ = flow.release_capacity(1);
                }
            }
        };
        assert!(matches!(ended, Some(Err(error)) if error.is_reset()));
    });
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
}
