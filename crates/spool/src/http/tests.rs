//! A real receiver that does what a test wants.

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

/// Reads a request; gives its head and its body.
fn request(stream: &mut TcpStream) -> io::Result<(String, String)> {
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

/// Starts a receiver. What `talk` gives for each connection is kept.
fn receiver<T: Send + 'static>(
    mut talk: impl FnMut(TcpStream) -> T + Send + 'static,
) -> (String, Receiver<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/usage?x=1", listener.local_addr().unwrap());
    let (sender, kept) = channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            if sender.send(talk(stream.unwrap())).is_err() {
                break;
            }
        }
    });
    (url, kept)
}

/// A receiver that reads the request and answers with these bytes.
fn answering(bytes: impl Into<Vec<u8>>) -> String {
    let bytes = bytes.into();
    let (url, kept) = receiver(move |mut stream| {
        request(&mut stream).unwrap();
        stream.write_all(&bytes).unwrap();
    });
    // It answers for as long as the test lasts.
    std::mem::forget(kept);
    url
}

fn answer(status: &str, headers: &str, body: &str) -> String {
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

/// Makes the end of a connection a reset.
fn reset(stream: TcpStream) {
    // What was not read when it is closed is refused.
    let mut some = [0];
    stream.peek(&mut some).unwrap();
    drop(stream);
}

#[test]
fn a_batch_is_posted_as_promised() {
    let (url, kept) = receiver(|mut stream| {
        let request = request(&mut stream).unwrap();
        stream
            .write_all(answer("200 OK", "", "").as_bytes())
            .unwrap();
        request
    });
    let batch = batch();
    let http = Http::new(&url, options()).unwrap();
    assert_eq!(http.send(&batch), Answer::accepted("200 OK"));
    let (head, body) = kept.recv().unwrap();
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
fn without_a_token_none_is_sent() {
    let (url, kept) = receiver(|mut stream| {
        let request = request(&mut stream).unwrap();
        stream
            .write_all(answer("204 No Content", "", "").as_bytes())
            .unwrap();
        request
    });
    let http = Http::new(&url, HttpOptions::default()).unwrap();
    assert_eq!(http.send(&batch()), Answer::accepted("204 No Content"));
    let (head, _) = kept.recv().unwrap();
    assert!(
        !head.to_ascii_lowercase().contains("authorization"),
        "{head}"
    );
}

#[test]
fn one_connection_serves_many_batches() {
    let (url, kept) = receiver(|mut stream| {
        let mut count = 0;
        while request(&mut stream).is_ok() {
            count += 1;
            let text = answer("200 OK", "", "{\"ok\":true}");
            stream.write_all(text.as_bytes()).unwrap();
        }
        count
    });
    let http = Http::new(&url, options()).unwrap();
    for _ in 0..5 {
        assert!(matches!(http.send(&batch()), Answer::Accepted { .. }));
    }
    drop(http);
    assert_eq!(kept.recv().unwrap(), 5);
}

#[test]
fn a_conflict_is_acceptance_unless_it_is_said_to_be_a_failure() {
    let url = answering(answer("409 Conflict", "", "have it"));
    assert_eq!(send(&url), Answer::accepted("409 Conflict: have it"));
    let mut strict = options();
    strict.conflict_is_failure = true;
    let http = Http::new(&url, strict).unwrap();
    let rejected = Answer::rejected("409 Conflict: have it");
    assert_eq!(http.send(&batch()), rejected);
}

#[test]
fn statuses_are_judged_and_told() {
    let url = answering(answer("422 Unprocessable Entity", "", "{\"bad\":\n1}"));
    let said = "422 Unprocessable Entity: {\"bad\": 1}";
    assert_eq!(send(&url), Answer::rejected(said));
    let url = answering(answer("500 Internal Server Error", "", ""));
    let said = "500 Internal Server Error";
    assert_eq!(send(&url), Answer::later(said, true, None));
    let url = answering(answer("401 Unauthorized", "Retry-After: 5\r\n", ""));
    assert_eq!(send(&url), Answer::misconfigured("401 Unauthorized"));
}

#[test]
fn a_receiver_may_ask_to_wait_in_seconds_or_until_a_date() {
    let url = answering(answer("429 Too Many Requests", "Retry-After: 7\r\n", ""));
    let wait = Some(Duration::from_secs(7));
    let said = "429 Too Many Requests";
    assert_eq!(send(&url), Answer::later(said, false, wait));

    // By its own clock, however wrong that is.
    let headers = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                   Retry-After: Sun, 06 Nov 1994 08:50:37 GMT\r\n";
    let url = answering(answer("503 Service Unavailable", headers, ""));
    let wait = Some(Duration::from_secs(60));
    let said = "503 Service Unavailable";
    assert_eq!(send(&url), Answer::later(said, true, wait));

    // By ours, if it does not tell its own.
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(3600));
    let headers = format!("Retry-After: {date}\r\n");
    let url = answering(answer("429 Too Many Requests", &headers, ""));
    let Answer::Later {
        after: Some(wait), ..
    } = send(&url)
    else {
        panic!("it asked to wait");
    };
    assert!(
        wait <= Duration::from_secs(3600) && wait > Duration::from_secs(1800),
        "{wait:?}"
    );

    let url = answering(answer("429 Too Many Requests", "Retry-After: soon\r\n", ""));
    let said = "429 Too Many Requests";
    assert_eq!(send(&url), Answer::later(said, false, None));
}

#[test]
fn redirects_are_not_followed() {
    let (elsewhere, kept) = receiver(drop);
    let headers = format!("Location: {elsewhere}\r\n");
    for status in ["301 Moved Permanently", "307 Temporary Redirect"] {
        let url = answering(answer(status, &headers, ""));
        // The query may hold a key, and is the same as that of the URL.
        let shown = elsewhere.split('?').next().unwrap_or_default();
        let said = format!("{status} (to {shown}?***)");
        assert_eq!(send(&url), Answer::misconfigured(said));
    }
    assert!(kept.try_recv().is_err(), "nobody went there");
}

#[test]
fn a_connection_that_is_reset_at_once_leaves_it_unknown_whether_the_batch_arrived() {
    let (url, _kept) = receiver(reset);
    let answer = send(&url);
    assert!(
        matches!(answer, Answer::Later { unknown: true, .. }),
        "{answer:?}"
    );
}

#[test]
fn a_connection_that_is_reset_after_the_request_leaves_it_unknown() {
    let (url, _kept) = receiver(|mut stream| drop(request(&mut stream)));
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
fn a_receiver_that_hangs_leaves_it_unknown() {
    let (url, _kept) = receiver(|mut stream| {
        let _ = request(&mut stream);
        stream
    });
    let mut options = options();
    options.timeout = Duration::from_millis(200);
    let answer = Http::new(&url, options).unwrap().send(&batch());
    let said = format!("{}: no answer within 0.2 s", url.split('?').next().unwrap());
    assert_eq!(answer, Answer::later(said, true, None));
}

#[test]
fn half_a_head_is_no_answer() {
    for half in [
        "",
        "HTT",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\nContent-Le",
    ] {
        let answer = send(&answering(half));
        assert!(
            matches!(answer, Answer::Later { unknown: true, .. }),
            "{half}: {answer:?}"
        );
    }
}

#[test]
fn interim_answers_are_none() {
    for interim in [
        "100 Continue",
        "102 Processing",
        "103 Early Hints\r\nLink: </x>",
    ] {
        let last = answer("202 Accepted", "", "");
        let url = answering(format!("HTTP/1.1 {interim}\r\n\r\n{last}"));
        assert_eq!(send(&url), Answer::accepted("202 Accepted"), "{interim}");
    }
}

#[test]
fn what_is_no_http_is_no_answer() {
    let answer = send(&answering("SSH-2.0-OpenSSH_9.2p1\r\n\r\n"));
    assert!(
        matches!(answer, Answer::Later { unknown: true, .. }),
        "{answer:?}"
    );
}

#[test]
fn a_whole_head_is_an_answer_whatever_the_body_does() {
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{\"ok\":";
    assert_eq!(send(&answering(cut)), Answer::accepted("200 OK: {\"ok\":"));
    let cut = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz";
    assert!(matches!(send(&answering(cut)), Answer::Accepted { .. }));
    let cut = "HTTP/1.1 422 Unprocessable Entity\r\nContent-Length: 100\r\n\r\nbad";
    let said = "422 Unprocessable Entity: bad";
    assert_eq!(send(&answering(cut)), Answer::rejected(said));
}

#[test]
fn an_endless_answer_is_not_read_to_its_end() {
    let (url, _kept) = receiver(|mut stream| {
        request(&mut stream).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let Answer::Accepted { said } = send(&url) else {
        panic!("it was accepted");
    };
    assert!(said.len() < 400, "{}", said.len());
}

#[test]
fn where_nobody_listens_nothing_was_sent() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    drop(listener);
    let Answer::Later { said, unknown, .. } = send(&url) else {
        panic!("it may be there later");
    };
    assert!(!unknown, "{said}");
    assert!(said.contains("refused"), "{said}");
}

#[test]
fn where_tls_fails_nothing_was_sent() {
    let (url, kept) = receiver(|mut stream| {
        let mut buffer = [0; 1024];
        let count = stream.read(&mut buffer).unwrap();
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
        let _ = stream.shutdown(Shutdown::Write);
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    });
    let url = url.replace("http://", "https://");
    let Answer::Later { said, unknown, .. } = send(&url) else {
        panic!("it may be right later");
    };
    assert!(!unknown, "{said}");
    let heard = kept.recv().unwrap();
    assert!(!heard.contains(TOKEN) && !heard.contains("POST"), "{heard}");
}

/// Answers before it has read the request, and closes.
#[cfg(target_os = "linux")]
fn hasty(status: &'static str) -> String {
    let (url, kept) = receiver(move |mut stream| {
        let mut some = [0; 16];
        let _ = stream.read(&mut some);
        let text = answer(status, "Connection: close\r\n", "so");
        let _ = stream.write_all(text.as_bytes());
    });
    std::mem::forget(kept);
    url
}

/// Elsewhere the reset that follows the answer may take the answer with it.
#[cfg(target_os = "linux")]
#[test]
fn an_answer_that_comes_before_the_body_was_sent_is_heard() {
    let send = |url: &str| Http::new(url, options()).unwrap().send(&large_batch());
    let refusal = send(&hasty("413 Payload Too Large"));
    assert_eq!(refusal, Answer::too_large("413 Payload Too Large: so"));
    // But nobody has what he did not read.
    let answer = send(&hasty("200 OK"));
    let said = "200 OK: so, but it did not read the batch";
    assert_eq!(answer, Answer::later(said, true, None));
}

#[test]
fn the_token_is_not_shown_even_if_the_receiver_repeats_it() {
    let body = format!("your header was Bearer {TOKEN}");
    let headers = format!("Location: /login?token={TOKEN}\r\n");
    for status in ["200 OK", "302 Found", "401 Unauthorized", "500 Oops"] {
        let http = Http::new(&answering(answer(status, &headers, &body)), options()).unwrap();
        let told = format!("{:?} {http:?} {:?}", http.send(&batch()), http.options);
        assert!(!told.contains(TOKEN), "{told}");
        assert!(told.contains("your header was Bearer ***"), "{told}");
    }
}
