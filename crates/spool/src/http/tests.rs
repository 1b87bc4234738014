//! Requests to a scripted receiver on a real socket.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, SystemTime};

use super::*;
use crate::batch::Part;
use crate::record::Record;

const TOKEN: &str = "s3cret-token";

fn batch() -> Batch {
    let part = Part {
        name: "01890a5d-ac96-774b-bcce-b302099a8057.jsonl".to_owned(),
        from: 1,
        to: 1,
    };
    let record = Record::parse(r#"{"text":"é","tokens":12345678901234567890123}"#).unwrap();
    Batch::new(vec![part], vec![record])
}

#[cfg(target_os = "linux")]
fn large_batch() -> Batch {
    let record = |_| Record::parse(&format!(r#"{{"x":"{}"}}"#, "x".repeat(1_000_000))).unwrap();
    Batch::new(Vec::new(), (0..16).map(record).collect())
}

fn read_request(stream: &mut TcpStream) -> io::Result<(String, String)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.parse::<usize>().unwrap())
            });
            if body.len() >= length.unwrap() {
                return Ok((head.to_owned(), body.to_owned()));
            }
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}

/// Starts a receiver that calls `talk` for each connection. Returns its URL and the results of
/// `talk`.
fn receiver<T: Send + 'static>(
    mut talk: impl FnMut(TcpStream) -> T + Send + 'static,
) -> (String, Receiver<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/usage?x=1", listener.local_addr().unwrap());
    let (sender, results) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            if sender.send(talk(stream.unwrap())).is_err() {
                break;
            }
        }
    });
    (url, results)
}

/// Starts a receiver that reads the request and responds with these bytes.
fn responding(bytes: impl Into<Vec<u8>>) -> String {
    let bytes = bytes.into();
    let (url, results) = receiver(move |mut stream| {
        read_request(&mut stream).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    // Keep the channel of the results open: the receiver ends when the channel is closed.
    std::mem::forget(results);
    url
}

fn response(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n{body}")
}

fn options() -> HttpOptions {
    HttpOptions {
        token: Some(Token::new(TOKEN).unwrap()),
        ..HttpOptions::default()
    }
}

fn send(url: &str) -> Answer {
    Http::new(url, options()).unwrap().send(&batch())
}

fn reset(stream: TcpStream) {
    // The kernel resets a connection that is closed with unread data.
    let mut byte = [0];
    stream.peek(&mut byte).unwrap();
    drop(stream);
}

#[test]
fn batch_is_posted_with_its_key_and_token() {
    let (url, results) = receiver(|mut stream| {
        let request = read_request(&mut stream).unwrap();
        stream
            .write_all(response("200 OK", "", "").as_bytes())
            .unwrap();
        request
    });
    let batch = batch();
    let http = Http::new(&url, options()).unwrap();
    assert_eq!(http.send(&batch), Answer::accepted("200 OK"));
    let (head, body) = results.recv().unwrap();
    let (first, headers) = head.split_once("\r\n").unwrap();
    assert_eq!(first, "POST /usage?x=1 HTTP/1.1");
    let headers = headers.to_ascii_lowercase();
    for header in [
        "content-type: application/json".to_owned(),
        format!("idempotency-key: {}", batch.idempotency_key()),
        format!("authorization: bearer {TOKEN}"),
        format!("user-agent: spool/{}", env!("CARGO_PKG_VERSION")),
        format!("content-length: {}", batch.body().len()),
    ] {
        let count = headers.lines().filter(|line| **line == header).count();
        assert_eq!(count, 1, "{header} in {headers}");
    }
    assert!(!headers.contains("transfer-encoding"), "{headers}");
    assert_eq!(body.as_bytes(), batch.body());
}

#[test]
fn request_has_no_authorization_without_a_token() {
    let (url, results) = receiver(|mut stream| {
        let request = read_request(&mut stream).unwrap();
        stream
            .write_all(response("204 No Content", "", "").as_bytes())
            .unwrap();
        request
    });
    let http = Http::new(&url, HttpOptions::default()).unwrap();
    assert_eq!(http.send(&batch()), Answer::accepted("204 No Content"));
    let (head, _) = results.recv().unwrap();
    assert!(
        !head.to_ascii_lowercase().contains("authorization"),
        "{head}"
    );
}

#[test]
fn connection_is_reused_for_many_batches() {
    let (url, results) = receiver(|mut stream| {
        let mut count = 0;
        while read_request(&mut stream).is_ok() {
            count += 1;
            let text = response("200 OK", "", "{\"ok\":true}");
            stream.write_all(text.as_bytes()).unwrap();
        }
        count
    });
    let http = Http::new(&url, options()).unwrap();
    for _ in 0..5 {
        assert!(matches!(http.send(&batch()), Answer::Accepted { .. }));
    }
    drop(http);
    assert_eq!(results.recv().unwrap(), 5);
}

#[test]
fn conflict_is_acceptance_unless_configured_as_failure() {
    let url = responding(response("409 Conflict", "", "have it"));
    assert_eq!(send(&url), Answer::accepted("409 Conflict: have it"));
    let mut strict = options();
    strict.conflict_is_failure = true;
    let http = Http::new(&url, strict).unwrap();
    let rejected = Answer::rejected("409 Conflict: have it");
    assert_eq!(http.send(&batch()), rejected);
}

#[test]
fn status_decides_the_answer_and_is_in_its_message() {
    let url = responding(response("422 Unprocessable Entity", "", "{\"bad\":\n1}"));
    let message = "422 Unprocessable Entity: {\"bad\": 1}";
    assert_eq!(send(&url), Answer::rejected(message));
    let url = responding(response("500 Internal Server Error", "", ""));
    let message = "500 Internal Server Error";
    assert_eq!(send(&url), Answer::unknown(message, None));
    let url = responding(response("401 Unauthorized", "Retry-After: 5\r\n", ""));
    assert_eq!(send(&url), Answer::misconfigured("401 Unauthorized"));
}

#[test]
fn retry_after_is_honoured_in_seconds_and_as_a_date() {
    let url = responding(response("429 Too Many Requests", "Retry-After: 7\r\n", ""));
    let wait = Some(Duration::from_secs(7));
    let message = "429 Too Many Requests";
    assert_eq!(send(&url), Answer::later(message, wait));

    // A date in `Retry-After` counts from the receiver's own clock (`Date`).
    let headers = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                   Retry-After: Sun, 06 Nov 1994 08:50:37 GMT\r\n";
    let url = responding(response("503 Service Unavailable", headers, ""));
    let wait = Some(Duration::from_secs(60));
    let message = "503 Service Unavailable";
    assert_eq!(send(&url), Answer::unknown(message, wait));

    // Without `Date`, a date in `Retry-After` counts from the clock of this machine.
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
    let headers = format!("Retry-After: {date}\r\n");
    let url = responding(response("429 Too Many Requests", &headers, ""));
    let Answer::Later {
        after: Some(wait), ..
    } = send(&url)
    else {
        panic!("no wait");
    };
    assert!(
        wait <= Duration::from_secs(3600) && wait > Duration::from_secs(1800),
        "{wait:?}"
    );

    let url = responding(response(
        "429 Too Many Requests",
        "Retry-After: soon\r\n",
        "",
    ));
    let message = "429 Too Many Requests";
    assert_eq!(send(&url), Answer::later(message, None));
}

#[test]
fn redirects_are_not_followed() {
    let (target, results) = receiver(drop);
    let headers = format!("Location: {target}\r\n");
    for status in ["301 Moved Permanently", "307 Temporary Redirect"] {
        let url = responding(response(status, &headers, ""));
        // The query of the redirect's target is hidden, because it repeats the query of the URL,
        // which may contain a key.
        let shown = target.split('?').next().unwrap_or_default();
        let message = format!("{status} (to {shown}?***)");
        assert_eq!(send(&url), Answer::misconfigured(message));
    }
    assert!(results.try_recv().is_err(), "the redirect was followed");
}

#[test]
fn connection_reset_during_the_request_leaves_the_outcome_unknown() {
    let (url, _results) = receiver(reset);
    let answer = send(&url);
    assert!(
        matches!(answer, Answer::Later { unknown: true, .. }),
        "{answer:?}"
    );
}

#[test]
fn connection_reset_after_the_request_leaves_the_outcome_unknown() {
    let (url, _results) = receiver(|mut stream| drop(read_request(&mut stream)));
    let answer = send(&url);
    assert!(
        matches!(
            answer,
            Answer::Later {
                unknown: true,
                after: None,
                ..
            }
        ),
        "{answer:?}"
    );
}

#[test]
fn timeout_leaves_the_outcome_unknown() {
    let (url, _results) = receiver(|mut stream| {
        let _ = read_request(&mut stream);
        stream
    });
    let mut options = options();
    options.timeout = Duration::from_millis(200);
    let answer = Http::new(&url, options).unwrap().send(&batch());
    let message = format!(
        "{}: no response within 0.2 s",
        url.split('?').next().unwrap()
    );
    assert_eq!(answer, Answer::unknown(message, None));
}

#[test]
fn incomplete_response_head_leaves_the_outcome_unknown() {
    for half in [
        "",
        "HTT",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\nContent-Le",
    ] {
        let answer = send(&responding(half));
        assert!(
            matches!(answer, Answer::Later { unknown: true, .. }),
            "{half}: {answer:?}"
        );
    }
}

#[test]
fn informational_responses_are_skipped() {
    for interim in [
        "100 Continue",
        "102 Processing",
        "103 Early Hints\r\nLink: </x>",
    ] {
        let last = response("202 Accepted", "", "");
        let url = responding(format!("HTTP/1.1 {interim}\r\n\r\n{last}"));
        assert_eq!(send(&url), Answer::accepted("202 Accepted"), "{interim}");
    }
}

#[test]
fn response_that_is_not_http_leaves_the_outcome_unknown() {
    let answer = send(&responding("SSH-2.0-OpenSSH_9.2p1\r\n\r\n"));
    assert!(
        matches!(answer, Answer::Later { unknown: true, .. }),
        "{answer:?}"
    );
}

#[test]
fn status_decides_even_if_the_body_is_incomplete() {
    let incomplete = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"ok\":";
    assert_eq!(
        send(&responding(incomplete)),
        Answer::accepted("200 OK: {\"ok\":")
    );
    let incomplete = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz";
    assert!(matches!(
        send(&responding(incomplete)),
        Answer::Accepted { .. }
    ));
    let incomplete = "HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: 100\r\n\r\nbad";
    let message = "422 Unprocessable Entity: bad";
    assert_eq!(send(&responding(incomplete)), Answer::rejected(message));
}

#[test]
fn endless_response_body_is_not_read_to_its_end() {
    let (url, _results) = receiver(|mut stream| {
        read_request(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let Answer::Accepted { message } = send(&url) else {
        panic!("not accepted");
    };
    assert!(message.len() < 400, "{}", message.len());
}

#[test]
fn refused_connection_means_that_the_batch_was_not_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let Answer::Later {
        message, unknown, ..
    } = send(&url)
    else {
        panic!("no retry");
    };
    assert!(!unknown, "{message}");
    assert!(message.contains("refused"), "{message}");
}

#[test]
fn failed_tls_handshake_means_that_the_batch_was_not_sent() {
    let (url, results) = receiver(|mut stream| {
        let mut buffer = [0; 1024];
        let count = stream.read(&mut buffer).unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    });
    let url = url.replace("http://", "https://");
    let Answer::Later {
        message, unknown, ..
    } = send(&url)
    else {
        panic!("no retry");
    };
    assert!(!unknown, "{message}");
    let received = results.recv().unwrap();
    assert!(
        !received.contains(TOKEN) && !received.contains("POST"),
        "{received}"
    );
}

/// Starts a receiver that responds before it has read the request, and closes the connection.
#[cfg(target_os = "linux")]
fn early_receiver(status: &'static str) -> String {
    let (url, results) = receiver(move |mut stream| {
        let mut buffer = [0; 16];
        let _ = stream.read(&mut buffer);
        let text = response(status, "Connection: close\r\n", "so");
        let _ = stream.write_all(text.as_bytes());
    });
    std::mem::forget(results);
    url
}

/// Linux only: on other systems the reset of the connection may discard the response in front of
/// it.
#[cfg(target_os = "linux")]
#[test]
fn response_before_the_end_of_the_request_is_read() {
    let send = |url: &str| Http::new(url, options()).unwrap().send(&large_batch());
    let refusal = send(&early_receiver("413 Payload Too Large"));
    assert_eq!(refusal, Answer::too_large("413 Payload Too Large: so"));
    // The receiver responded 200 before it had read the whole batch. The batch must not count as
    // delivered.
    let answer = send(&early_receiver("200 OK"));
    let message = "200 OK: so, but the receiver did not read the whole batch, so the batch does \
                   not count as delivered";
    assert_eq!(answer, Answer::unknown(message, None));
}

#[test]
fn token_is_hidden_if_the_receiver_repeats_it() {
    let body = format!("your header was Bearer {TOKEN}");
    let headers = format!("Location: /login?token={TOKEN}\r\n");
    for status in ["200 OK", "302 Found", "401 Unauthorized", "500 Oops"] {
        let http = Http::new(&responding(response(status, &headers, &body)), options()).unwrap();
        let shown = format!("{:?} {http:?} {:?}", http.send(&batch()), http.options);
        assert!(!shown.contains(TOKEN), "{shown}");
        assert!(shown.contains("your header was Bearer ***"), "{shown}");
    }
}
