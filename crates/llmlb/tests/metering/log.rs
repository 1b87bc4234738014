//! The line of a request in the log agrees with its record.

use std::io::Read;

use crate::records;
use crate::requests::{CHAT, chat, post, send, send_with};
use crate::stream::{self, DONE, STOP, USAGE, WORD, streaming};
use testkit::{
    Connection, LlmlbServer,
    backends::{UNPROBED, backend, close, count, serve},
    until, wire,
};

/// Waits for the line of the log with this request id.
fn line(server: &LlmlbServer, id: &str) -> String {
    let mark = format!(" id={id}");
    let find = || {
        let log = server.process.stderr();
        let line = log.lines().find(|line| line.ends_with(&mark));
        line.map(str::to_owned)
    };
    testkit::eventually("the request is logged", find)
}

#[test]
fn stream_without_a_finish_reason_is_cut_in_log_and_record() {
    let sandbox = testkit::sandbox!();
    for (pieces, outcome) in [
        (&[WORD, STOP, DONE][..], "complete"),
        (&[WORD, STOP], "complete"),
        (&[WORD, WORD], "cut"),
    ] {
        let mock = streaming(pieces);
        let server = serve(&sandbox, &[&mock], UNPROBED);
        let id = format!("{outcome}-{}", pieces.len());
        post(&server, &id, CHAT, &chat("Hello", true));
        let record = records::one(&sandbox, &id);
        assert_eq!(record["outcome"], outcome, "{record:#}");
        let line = line(&server, &id);
        let is_cut = line.contains(" 200 cut by the backend ");
        assert_eq!(is_cut, outcome == "cut", "{line}");
        assert!(is_cut || line.contains(" 200 model=m "), "{line}");
    }
}

#[test]
fn stream_open_at_the_drain_deadline_is_cut_in_log_and_record() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, WORD);
        let _ = stream.read(&mut [0]);
        close(stream);
    });
    let settings = [("LLMLB_DRAIN_TIMEOUT", "100ms")];
    let server = serve(&sandbox, &[&mock], &settings);
    let mut client = Connection::open(server.address);
    send(&mut client, "a", CHAT, &chat("Hello", true).to_string());
    assert_eq!(client.head().status(), 200);
    stream::read(&mut client, WORD.len());
    sandbox.run(&format!("stop -p {}", server.port()));
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["outcome"], "cut", "{record:#}");
    let line = line(&server, "a");
    assert!(line.contains(" 200 cut by the shutdown "), "{line}");
}

#[test]
fn client_disconnect_is_cancelled_in_log_and_record() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let _ = stream.read(&mut [0]);
        close(stream);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    send(&mut client, "a", CHAT, &chat("Hello", true).to_string());
    until("the backend has the request", || count(&mock) == 1);
    drop(client);
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["outcome"], "cancelled", "{record:#}");
    let line = line(&server, "a");
    assert!(line.contains(" - client disconnected "), "{line}");
}

/// Returns the number after `name=` in a line of the log.
fn figure(line: &str, name: &str) -> usize {
    let words = line.split(' ').filter_map(|word| word.split_once('='));
    let found = words.filter(|(word, _)| *word == name);
    found
        .map(|(_, value)| value.parse().unwrap())
        .next()
        .unwrap()
}

#[test]
fn log_and_record_have_the_size_of_the_body_that_the_client_received() {
    let sandbox = testkit::sandbox!();
    let mock = streaming(&[WORD, STOP, USAGE, DONE]);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for (id, method, path, body, is_recorded) in [
        (
            "hidden",
            "POST",
            CHAT,
            chat("Hello", true).to_string(),
            true,
        ),
        ("unknown", "POST", CHAT, r#"{"model":"x"}"#.to_owned(), true),
        ("list", "GET", "/v1/models", String::new(), false),
        ("missing", "GET", "/nothing", String::new(), false),
    ] {
        let mut client = Connection::open(server.address);
        send_with(&mut client, method, id, path, "", &body);
        let length = client.answer().text().len();
        assert!(length > 0);
        assert_eq!(figure(&line(&server, id), "bytes"), length, "{id}");
        if is_recorded {
            let record = records::one(&sandbox, id);
            assert_eq!(record["bytes"], length, "{record:#}");
        }
    }
    let mut client = Connection::open(server.address);
    client.send("HEAD /v1/models HTTP/1.1\r\nhost: localhost\r\nx-request-id: head\r\n\r\n");
    assert_eq!(client.head().status(), 200);
    assert_eq!(figure(&line(&server, "head"), "bytes"), 0);
}
