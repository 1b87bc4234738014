//! Time limits of backends and clients. (promises L8, L11)

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use ::http::Method;
use testkit::{
    Connection, DEADLINE, FakeLlm, Received,
    backends::{ASK, CHAT, backend, code, count, cut_answer, ok, serve, served_by},
    h2_client::{connected, post, request},
    raw, until, wire,
};

/// Handler that sends no response and waits until the connection is closed.
fn silent(_: &Received, stream: &mut TcpStream) {
    let _ = stream.read(&mut [0]);
}

const SHORT_WAIT: &[(&str, &str)] = &[
    ("LLMLB_PROBE_INTERVAL", "1h"),
    ("LLMLB_FIRST_BYTE_TIMEOUT", "300ms"),
];

#[test]
fn response_is_504_when_the_first_byte_times_out() {
    let sandbox = testkit::sandbox!();
    let mock = backend(silent);
    let server = serve(&sandbox, &[&mock], SHORT_WAIT);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 504);
    assert_eq!(code(&answer), "upstream_timeout");
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
}

#[test]
fn first_byte_timeout_of_one_backend_is_a_504_or_retried() {
    let sandbox = testkit::sandbox!();
    let (bad, good) = (backend(silent), backend(ok));
    let server = serve(&sandbox, &[&bad, &good], SHORT_WAIT);
    until("the silent backend is tried", || {
        let answer = server.post(CHAT, ASK);
        if answer.status() == 504 {
            assert_eq!(code(&answer), "upstream_timeout");
        } else {
            assert_eq!(answer.status(), 200, "{answer:?}");
        }
        count(&bad) > 0
    });
    server.until_in_flight(0);
}

/// Returns a backend that streams this many events with this pause between them.
fn paced(events: u32, pause: Duration) -> FakeLlm {
    backend(move |_, stream| {
        wire::begin_stream(stream);
        for number in 0..events {
            if !wire::chunk(stream, &format!("data: {number}\n\n")) {
                return;
            }
            thread::sleep(pause);
        }
        wire::end_stream(stream);
    })
}

#[test]
fn chunked_response_that_stalls_is_cut_after_idle_timeout() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        let _ = stream.read(&mut [0]);
    });
    let server = serve(&sandbox, &[&mock], &[("LLMLB_IDLE_TIMEOUT", "300ms")]);
    let (head, part) = cut_answer(&server, ASK);
    assert_eq!(head.status(), 200);
    assert_eq!(part, b"data: 1\n\n");
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
}

#[test]
fn response_with_a_length_that_stalls_is_cut_after_idle_timeout() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        use std::io::Write;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
        let _ = stream.read(&mut [0]);
    });
    let server = serve(&sandbox, &[&mock], &[("LLMLB_IDLE_TIMEOUT", "300ms")]);
    assert_eq!(cut_answer(&server, ASK).0.status(), 200);
    server.until_in_flight(0);
}

#[test]
fn slow_steady_response_is_complete() {
    let sandbox = testkit::sandbox!();
    // The whole response lasts longer than the idle timeout and the first-byte timeout. Only its
    // pauses are shorter, so no timeout may end it.
    let mock = paced(45, Duration::from_millis(100));
    let limits = [
        ("LLMLB_IDLE_TIMEOUT", "3s"),
        ("LLMLB_FIRST_BYTE_TIMEOUT", "3s"),
        ("LLMLB_PROBE_INTERVAL", "100ms"),
    ];
    let server = serve(&sandbox, &[&mock], &limits);
    let answer = server.post(CHAT, ASK);
    assert!(answer.text().ends_with("data: 44\n\n"), "{answer:?}");
}

#[test]
fn pause_of_the_client_does_not_count_towards_idle_timeout() {
    let sandbox = testkit::sandbox!();
    let body = "x".repeat(16 << 20);
    let length = body.len();
    let mock = backend(move |_, stream| wire::json(stream, 200, &body));
    let server = serve(&sandbox, &[&mock], &[("LLMLB_IDLE_TIMEOUT", "3s")]);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    let head = client.head();
    // While the client does not read, the server reads nothing of the backend. This pause exceeds
    // the backend's idle timeout and must not count as silence of the backend.
    thread::sleep(Duration::from_secs(5));
    let read = head.body(&mut client.reader).map(|body| body.len());
    assert_eq!(read.map_err(|_| "the response was cut"), Ok(length));
}

/// Returns the head of a request whose body has this content type and length.
fn upload(kind: &str, length: usize) -> String {
    format!(
        "POST /v1/whatever HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
         content-length: {length}\r\n\r\n"
    )
}

#[test]
fn stalled_upload_holds_no_slot() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[("LLMLB_BODY_TIMEOUT", "300ms")]);
    // Eight stalled uploads are more than the three failures that eject a backend. Stalled clients
    // must not count as failures of the backend.
    for kind in ["application/octet-stream", "application/json"].repeat(4) {
        let mut client = Connection::open(server.address);
        client.send(upload(kind, 1000));
        client.send("half");
        let answer = client.answer();
        assert_eq!(answer.status(), 408, "{kind}: {answer:?}");
        assert_eq!(code(&answer), "body_timeout", "{kind}");
        server.until_in_flight(0);
        let status = &server.status()["backends"][0];
        assert_eq!(status["in_flight"], 0, "{kind}");
        assert_eq!(status["ejected"], false, "{kind}");
    }
    assert_eq!(count(&mock), 0);
}

#[test]
fn stalled_upload_within_its_response_does_not_count_against_the_backend() {
    let sandbox = testkit::sandbox!();
    let raw = raw::heads(|_, reader| {
        // The response begins before the body is complete. The backend then waits for the rest of
        // the body, which the client never sends.
        wire::begin_stream(reader.get_mut());
        wire::chunk(reader.get_mut(), "1");
        let _ = reader.read(&mut [0; 100]);
        let _ = reader.read(&mut [0]);
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.env("LLMLB_BODY_TIMEOUT", "300ms"));
    for _ in 0..4 {
        let mut client = Connection::open(server.address);
        client.send(upload("application/octet-stream", 1000));
        client.send("half");
        let head = client.head();
        assert_eq!(head.status(), 200);
        assert!(
            head.body(&mut client.reader).is_err(),
            "the response is cut"
        );
        server.until_in_flight(0);
        assert_eq!(server.status()["backends"][0]["ejected"], false);
    }
}

#[test]
fn stalled_http_2_upload_holds_no_slot() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[("LLMLB_BODY_TIMEOUT", "300ms")]);
    connected(server.address, async |client| {
        let mut head = request(Method::POST, "/v1/whatever");
        let kind = "application/octet-stream".parse().unwrap();
        head.headers_mut().insert("content-type", kind);
        let mut ready = client.clone().ready().await.unwrap();
        let (response, mut body) = ready.send_request(head, false).unwrap();
        body.send_data("half".into(), false).unwrap();
        assert_eq!(response.await.unwrap().status(), 408);
        // Only the stalled stream is ended. The HTTP/2 connection still serves requests.
        assert_eq!(post(&client, CHAT, ASK).await.status, 200);
    });
    server.until_in_flight(0);
}

/// Sends a byte every 50 ms until there is a response.
fn response_to_slow_upload(client: &mut Connection) -> testkit::Answer {
    let stream = client.reader.get_ref().try_clone().unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.peek(&mut [0]).is_err() {
        (&stream).write_all(b"x").unwrap();
        thread::sleep(Duration::from_millis(50));
    }
    stream.set_nonblocking(false).unwrap();
    client.answer()
}

#[test]
fn upload_below_the_minimum_rate_holds_no_slot() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    // The setting is a rate in bytes per second and must also apply to a body timeout of less than
    // a second.
    for limit in ["700ms", "1200ms"] {
        let server = serve(&sandbox, &[&mock], &[("LLMLB_BODY_TIMEOUT", limit)]);
        for kind in ["application/octet-stream", "application/json"] {
            let mut client = Connection::open(server.address);
            client.send(upload(kind, 100_000));
            let answer = response_to_slow_upload(&mut client);
            assert_eq!(answer.status(), 408, "{limit} {kind}: {answer:?}");
            assert_eq!(code(&answer), "body_timeout", "{limit} {kind}");
            server.until_in_flight(0);
            assert_eq!(server.status()["backends"][0]["in_flight"], 0);
        }
    }
    assert_eq!(count(&mock), 0);
}

#[test]
fn http_2_upload_below_the_minimum_rate_holds_no_slot() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[("LLMLB_BODY_TIMEOUT", "700ms")]);
    connected(server.address, async |client| {
        for kind in ["application/octet-stream", "application/json"] {
            let mut head = request(Method::POST, "/v1/whatever");
            let kind = kind.parse().unwrap();
            head.headers_mut().insert("content-type", kind);
            let mut ready = client.clone().ready().await.unwrap();
            let (mut response, mut body) = ready.send_request(head, false).unwrap();
            let answer = loop {
                let pause = Duration::from_millis(50);
                match tokio::time::timeout(pause, &mut response).await {
                    Ok(answer) => break answer.unwrap(),
                    Err(_) => body.send_data("x".into(), false).unwrap(),
                }
            };
            assert_eq!(answer.status(), 408);
        }
    });
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
}

#[test]
fn upload_above_the_minimum_rate_is_served_however_long_it_takes() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    // The timeout is generous, because a busy machine may suspend the client for seconds.
    let limits = [("LLMLB_BODY_TIMEOUT", "5s"), ("LLMLB_MIN_BODY_RATE", "1")];
    let server = serve(&sandbox, &[&mock], &limits);
    thread::scope(|scope| {
        for kind in ["application/octet-stream", "application/json"] {
            let mut client = Connection::open(server.address);
            scope.spawn(move || {
                client.send(upload(kind, 6000));
                // Sixty pieces with pauses of 100 ms take longer than the body timeout of 5 s,
                // which a client above the minimum rate may exceed.
                for _ in 0..60 {
                    client.send([b' '; 98]);
                    thread::sleep(Duration::from_millis(100));
                }
                client.send([[b' '; 118].as_slice(), b"{}"].concat());
                assert_eq!(client.answer().status(), 200, "{kind}");
            });
        }
    });
}

#[test]
fn backend_that_reads_slowly_does_not_count_as_a_slow_client() {
    const LENGTH: usize = 24 << 20;
    let sandbox = testkit::sandbox!();
    let raw = raw::heads(|_, reader| {
        // The backend reads nothing for longer than the client's body timeout. The client cannot
        // send meanwhile and must not be blamed.
        thread::sleep(Duration::from_secs(5));
        let mut rest = LENGTH;
        let mut piece = vec![0; 1 << 20];
        while rest > 0 {
            match reader.read(&mut piece) {
                Ok(count @ 1..) => rest -= count,
                _ => return,
            }
        }
        wire::json(reader.get_mut(), 200, "{}");
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.env("LLMLB_BODY_TIMEOUT", "3s"));
    let mut client = Connection::open(server.address);
    client.send(upload("application/octet-stream", LENGTH));
    client.send(vec![b'x'; LENGTH]);
    assert_eq!(client.answer().status(), 200);
}

#[test]
fn client_that_sends_slowly_does_not_count_against_the_backend() {
    let sandbox = testkit::sandbox!();
    let quick = backend(ok);
    let slow = backend(|request, stream| {
        thread::sleep(Duration::from_millis(500));
        ok(request, stream);
    });
    let limits = [
        ("LLMLB_PROBE_INTERVAL", "1h"),
        ("LLMLB_FIRST_BYTE_TIMEOUT", "5s"),
    ];
    let server = serve(&sandbox, &[&quick, &slow], &limits);
    let mut client = Connection::open(server.address);
    client.send(upload("application/octet-stream", 8));
    client.send("half");
    // The client pauses for longer than the backend's first-byte timeout, which must not start
    // before the body is complete.
    thread::sleep(Duration::from_secs(7));
    client.send("rest");
    let answer = client.answer();
    assert_eq!(answer.status(), 200, "{answer:?}");
    assert_eq!(served_by(&answer), quick.address.to_string());
    // The pause of the client must not be measured as latency of the backend `quick`. If it were,
    // all requests would go to the slow backend.
    for _ in 0..4 {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
    assert!(
        count(&quick) > 1,
        "the slow backend got {} requests",
        count(&slow)
    );
}

#[test]
fn response_is_504_when_the_backend_does_not_read_the_request() {
    let sandbox = testkit::sandbox!();
    // The backend never reads the body and never responds, so only a timeout can end the request.
    let raw = raw::heads(|_, _| thread::park_timeout(DEADLINE));
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.envs(SHORT_WAIT.iter().copied()));
    // The body exceeds the socket buffers, so the server cannot finish sending it.
    let large = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(24 << 20));
    let answer = server.post(CHAT, &large);
    assert_eq!(answer.status(), 504, "{answer:?}");
    assert_eq!(code(&answer), "upstream_timeout");
    let mut client = Connection::open(server.address);
    client.send(upload("application/octet-stream", 100 << 20));
    thread::scope(|scope| {
        let mut writer = client.reader.get_ref().try_clone().unwrap();
        scope.spawn(move || while writer.write_all(&[0; 1 << 14]).is_ok() {});
        until("the timeout is logged", || {
            let log = server.process.stderr();
            log.contains("POST /v1/whatever 504 upstream_timeout")
        });
        raw::reset(client.reader.get_ref());
    });
    server.until_in_flight(0);
}
