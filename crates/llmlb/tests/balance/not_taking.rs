//! Clients that do not take their answers do not keep a backend's place for ever. (L8, L11)

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use ::http::Method;
use bytes::Bytes;

use crate::backends::{ASK, CHAT, backend, ok, serve};
use crate::h2_client::{connected, next, post, request, send};
use crate::http::Connection;
use crate::mock::{Mock, Request};
use crate::support::Place;

const SHORT: &[(&str, &str)] = &[
    ("LLMLB_PROBE_INTERVAL", "1h"),
    ("LLMLB_SEND_TIMEOUT", "500ms"),
];

/// More than the systems on the way hold.
const LARGE: usize = 64 << 20;
const LARGE_QUESTION: &str = r#"{"model":"m","large":true}"#;

/// A backend with long answers, if they are asked for.
fn talkative() -> Mock {
    backend(|request: &Request, stream: &mut TcpStream| {
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
    let place = Place::new();
    let mock = talkative();
    let server = serve(&place, &[&mock], SHORT);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, LARGE_QUESTION);
    assert_eq!(client.head().status(), 200);
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
}

#[test]
fn a_stream_of_http_2_of_which_nothing_is_taken_is_given_up_and_no_other() {
    let place = Place::new();
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
}

#[test]
fn a_stream_of_http_2_of_which_little_is_taken_goes_on() {
    let place = Place::new();
    let text = "x".repeat(1 << 20);
    let sent = text.clone();
    let mock = backend(move |_, stream| crate::mock::json(stream, 200, &sent));
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
