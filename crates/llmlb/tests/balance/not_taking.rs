//! Clients that do not take their answers do not keep a backend's place for ever. (L8, L11)

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

/// More than the systems on the way hold.
const LARGE: usize = 64 << 20;
const LARGE_QUESTION: &str = r#"{"model":"m","large":true}"#;

/// A backend with long answers, if they are asked for.
fn talkative() -> FakeLlm {
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
fn a_client_that_takes_nothing_is_given_up() {
    let place = testkit::sandbox!();
    let mock = talkative();
    let server = serve(&place, &[&mock], SHORT);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, LARGE_QUESTION);
    assert_eq!(client.head().status(), 200);
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
    assert_logged(&server);
}

/// The log names the limit.
fn assert_logged(server: &LlmlbServer) {
    let line = "POST /v1/chat/completions 200 send_timeout";
    until("it is logged", || server.process.stderr().contains(line));
}

#[test]
fn a_stream_of_http_2_of_which_nothing_is_taken_is_given_up_and_no_other() {
    let place = testkit::sandbox!();
    let mock = talkative();
    let server = serve(&place, &[&mock], SHORT);
    connected(server.address, async |client| {
        let asking = request(Method::POST, CHAT);
        let response = send(&client, asking, LARGE_QUESTION).await;
        let mut body = response.await.unwrap().into_body();
        // What is there is not taken, while the connection lives and answers pings.
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
    assert_logged(&server);
}

#[test]
fn a_stream_of_http_2_of_which_little_is_taken_goes_on() {
    let place = testkit::sandbox!();
    let text = "x".repeat(1 << 20);
    let sent = text.clone();
    let mock = backend(move |_, stream| wire::json(stream, 200, &sent));
    let limits = [("LLMLB_SEND_TIMEOUT", "2s")];
    let server = serve(&place, &[&mock], &limits);
    connected(server.address, async |client| {
        let response = send(&client, request(Method::POST, CHAT), ASK).await;
        let mut body = response.await.unwrap().into_body();
        let mut taken = 0;
        while let Some(piece) = next(&mut body).await {
            let piece: Bytes = piece.expect("it goes on");
            taken += piece.len();
            // All of it lasts longer than nothing may be taken.
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        assert_eq!(taken, text.len());
    });
}

/// Waits for the end of a stream of which nothing is taken. Returns the code it was reset with.
async fn reset_of(response: h2::client::ResponseFuture) -> Option<Reason> {
    let ended = async {
        let mut body = response.await?.into_body();
        // Only what has arrived is read, and no window is opened for more.
        while let Some(data) = body.data().await {
            data?;
        }
        Ok::<_, h2::Error>(())
    };
    ended.await.err().filter(h2::Error::is_reset)?.reason()
}

#[test]
fn responses_over_http_2_are_reset_while_the_window_of_their_stream_stays_shut() {
    let place = testkit::sandbox!();
    let mock = backend(|_, stream| wire::json(stream, 200, r#"{"id":"short"}"#));
    let server = serve(&place, &[&mock], SHORT);
    run(async {
        let shut = Builder::new().initial_window_size(0).clone();
        let (client, connection) = connect(server.address, &shut).await;
        // The list of models, an error, a page of our own, and a short response of a backend.
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
        // The connection is as good as before.
        let head = send(&client, request(Method::HEAD, "/v1/models"), "").await;
        assert_eq!(head.await.unwrap().status(), 200);
        assert!(!connection.is_finished());
    });
}

#[test]
fn long_response_of_our_own_is_reset_when_its_rest_is_not_taken() {
    let place = testkit::sandbox!();
    let names: Vec<_> = (0..1000).map(|number| format!("{number:0>100}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mock = backend_of(&names, ok);
    let server = serve(&place, &[&mock], SHORT);
    run(async {
        let narrow = Builder::new().initial_window_size(1000).clone();
        let (client, connection) = connect(server.address, &narrow).await;
        let response = send(&client, request(Method::GET, "/v1/models"), "").await;
        assert_eq!(reset_of(response).await, Some(Reason::CANCEL));
        let health = send(&client, request(Method::HEAD, "/v1/models"), "").await;
        assert_eq!(health.await.unwrap().status(), 200);
        assert!(!connection.is_finished());
    });
}

#[test]
fn connection_is_closed_when_the_end_of_a_short_response_is_not_taken() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], SHORT);
    run(async {
        // One byte is taken, and so the rest is queued with the end of the stream.
        let narrow = Builder::new().initial_window_size(1).clone();
        let (client, connection) = connect(server.address, &narrow).await;
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
fn stream_of_http_2_is_reset_when_it_is_taken_byte_by_byte() {
    let place = testkit::sandbox!();
    let mock = talkative();
    let server = serve(&place, &[&mock], SHORT);
    run(async {
        let (client, _) = connect(server.address, &Builder::new()).await;
        let asking = request(Method::POST, CHAT);
        let response = send(&client, asking, LARGE_QUESTION).await;
        let mut body = response.await.unwrap().into_body();
        let mut flow = body.flow_control().clone();
        let ended = loop {
            tokio::select! {
                data = body.data() => match data {
                    Some(Ok(_)) => {}
                    ended => break ended,
                },
                // A window that opens by a few bytes keeps no response alive.
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
