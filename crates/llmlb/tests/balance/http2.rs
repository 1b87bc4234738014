//! Clients that use HTTP/2 without TLS, on the same port as HTTP/1.1. (promise L5)

use std::sync::{Arc, Condvar, Mutex};

use ::http::Method;
use bytes::Bytes;
use testkit::{
    DEADLINE,
    backends::{ASK, CHAT, UNPROBED, asked, backend, ok, serve},
    h2_client::{answer, connected, next, post, request, send},
    wire,
};

#[test]
fn http_2_request_is_forwarded_as_http_1() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        wire::json(stream, 200, r#"{"id":"1"}"#);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        let answer = post(&client, &format!("{CHAT}?a=%20b"), ASK).await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.text(), r#"{"id":"1"}"#);
        assert_eq!(answer.header("content-type"), Some("application/json"));
        assert_eq!(answer.header("content-length"), Some("10"));
        assert!(answer.header("x-request-id").is_some());
        let backend = mock.address.to_string();
        assert_eq!(answer.header("x-llmlb-backend"), Some(&*backend));
        for name in ["connection", "transfer-encoding", "keep-alive"] {
            assert_eq!(answer.header(name), None);
        }
    });
    let asked = asked(&mock);
    assert_eq!(asked[0].head.line, format!("POST {CHAT}?a=%20b HTTP/1.1"));
    assert_eq!(asked[0].text(), ASK);
    assert_eq!(asked[0].head.header("host"), Some(mock.address.to_string()));
    // HTTP/2 clients must not displace HTTP/1.1 clients, which use the same port.
    assert_eq!(server.post(CHAT, ASK).status(), 200);
}

#[test]
fn pages_of_the_server_itself_are_served_over_http_2() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        let models = answer(send(&client, request(Method::GET, "/v1/models"), "").await).await;
        assert!(models.text().contains(r#""m""#));
        let unknown = post(&client, CHAT, r#"{"model":"other"}"#).await;
        assert_eq!(unknown.status, 404);
        assert!(unknown.text().contains("model_not_found"));
        let health = answer(send(&client, request(Method::GET, "/healthz"), "").await).await;
        assert_eq!(health.status, 200);
    });
}

#[test]
fn http_2_requests_on_one_connection_do_not_wait_for_each_other() {
    const STREAMS: usize = 20;
    let sandbox = testkit::sandbox!();
    // The backend holds its responses until it has all 20 requests. If requests on one connection
    // waited for each other, none would get a response.
    let received = Arc::new((Mutex::new(0), Condvar::new()));
    let mock = backend(move |request, stream| {
        let (count, all) = &*received;
        let mut count = count.lock().unwrap();
        *count += 1;
        all.notify_all();
        let (count, waited) = all
            .wait_timeout_while(count, DEADLINE, |count| *count < STREAMS)
            .unwrap();
        drop(count);
        assert!(!waited.timed_out());
        wire::json(stream, 200, &request.text());
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        let mut responses = Vec::new();
        for number in 0..STREAMS {
            let body = format!(r#"{{"model":"m","number":{number}}}"#);
            let response = send(&client, request(Method::POST, CHAT), &body).await;
            responses.push((response, body));
        }
        for (response, body) in responses {
            assert_eq!(answer(response).await.text(), body);
        }
    });
    server.until_in_flight(0);
}

#[test]
fn each_event_is_forwarded_over_http_2_before_the_next_one_is_sent() {
    let sandbox = testkit::sandbox!();
    let (events, to_send) = std::sync::mpsc::channel::<&str>();
    let to_send = Mutex::new(to_send);
    let mock = backend(move |_, stream| {
        wire::begin_stream(stream);
        while let Ok(event) = to_send.lock().unwrap().recv() {
            wire::chunk(stream, event);
        }
        wire::end_stream(stream);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        let response = send(&client, request(Method::POST, CHAT), ASK).await;
        let mut body = response.await.unwrap().into_body();
        for event in ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"] {
            events.send(event).unwrap();
            assert_eq!(next(&mut body).await.unwrap().unwrap(), event);
        }
        drop(events);
        assert!(next(&mut body).await.is_none());
    });
}

#[test]
fn large_bodies_are_forwarded_over_http_2_in_both_directions() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|request, stream| wire::json(stream, 200, &request.text()));
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let body = format!(r#"{{"model":"m","x":"{}"}}"#, "0123456789".repeat(400_000));
    connected(server.address, async |client| {
        let answer = post(&client, CHAT, &body).await;
        assert_eq!(answer.status, 200);
        assert!(answer.text() == body);
    });
}

#[test]
fn trailers_reach_an_http_2_client() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        use std::io::Write;
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n\
              5\r\nfirst\r\n0\r\nx-sum: 42\r\n\r\n",
        );
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        let mut head = request(Method::POST, CHAT);
        head.headers_mut().insert("te", "trailers".parse().unwrap());
        let answer = answer(send(&client, head, ASK).await).await;
        assert_eq!(answer.text(), "first");
        assert_eq!(answer.trailers.unwrap()["x-sum"], "42");
    });
}

#[test]
fn response_without_a_body_ends_its_http_2_stream() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|request, stream| {
        use std::io::Write;
        let answer = if request.head.line.starts_with("HEAD") {
            "HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n"
        } else {
            "HTTP/1.1 204 No Content\r\n\r\n"
        };
        let _ = stream.write_all(answer.as_bytes());
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        for _ in 0..3 {
            for (method, status, length) in [
                (Method::HEAD, 200, Some("1000")),
                (Method::DELETE, 204, None),
            ] {
                let answer = answer(send(&client, request(method, "/v1/files/1"), "").await).await;
                assert_eq!(answer.status, status);
                assert_eq!(answer.header("content-length"), length);
                assert_eq!(answer.text(), "");
            }
        }
    });
}

#[test]
fn http_2_upload_without_a_length_is_forwarded_unchanged() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let piece: Vec<u8> = (0..=255).cycle().take(1000).collect();
    connected(server.address, async |client| {
        for kind in [
            "multipart/form-data; boundary=x",
            "application/octet-stream",
        ] {
            let mut head = request(Method::POST, "/v1/whatever");
            head.headers_mut()
                .insert("content-type", kind.parse().unwrap());
            let mut ready = client.clone().ready().await.unwrap();
            let (response, mut body) = ready.send_request(head, false).unwrap();
            for _ in 0..20 {
                body.send_data(Bytes::copy_from_slice(&piece), false)
                    .unwrap();
            }
            body.send_data(Bytes::new(), true).unwrap();
            assert_eq!(answer(response).await.status, 200);
        }
    });
    for request in asked(&mock) {
        assert!(request.body == piece.repeat(20));
    }
}
