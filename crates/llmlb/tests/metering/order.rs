//! The record is with the kernel before the client has the last bytes: not even kill -9 loses it.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use crate::answers::world;
use crate::ask::{CHAT, Over, ask, chat, send};
use crate::records;
use crate::stream::{self, DONE, STOP, USAGE, WORD};
use testkit::{
    Connection, FakeLlm, LlmlbServer, Sandbox,
    api_server::{Backend, Reports, Sort},
    backends::{UNPROBED, backend},
    read_chunk, wire,
};

/// A server under strace, which writes down who writes what to whom.
fn traced(place: &Sandbox, url: &str) -> LlmlbServer {
    let serve = place.command(&format!("serve -p 0 --backend {url}"));
    let mut command = Command::new("strace");
    command
        .args(["-f", "-y", "-s", "4096", "-e"])
        .arg("trace=write,writev,pwrite64,pwritev,sendto,sendmsg")
        .arg("-o")
        .arg(place.path("trace"))
        .arg(serve.get_program())
        .args(serve.get_args());
    for (name, value) in serve.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
        .envs(UNPROBED.iter().copied())
        .env("LLMLB_WORKERS", "1");
    place.serve_with(&mut command)
}

/// Where in the trace a call that mentions all of these begins, and where it is over.
fn call(trace: &[&str], marks: &[&str]) -> (usize, usize) {
    let has = |line: &&str| marks.iter().all(|mark| line.contains(mark));
    let begun = trace.iter().position(has);
    let begun = begun.unwrap_or_else(|| panic!("{marks:?} in\n{}", trace.join("\n")));
    let thread = trace[begun].split(' ').next().unwrap();
    if !trace[begun].contains("<unfinished ...>") {
        return (begun, begun);
    }
    let after = trace[begun..].iter();
    let over = after
        .clone()
        .position(|line| line.starts_with(thread) && line.contains("resumed>"));
    (begun, begun + over.expect("it returned"))
}

/// The record of a request was written, wholly, before this was sent to its client.
fn assert_before(place: &Sandbox, id: &str, last: &str) {
    let trace = std::fs::read_to_string(place.path("trace")).unwrap();
    let trace: Vec<_> = trace.lines().collect();
    let in_record = format!("\\\"request_id\\\":\\\"{id}\\\"");
    let (_, written) = call(&trace, &[".jsonl.open>", &in_record]);
    let from = trace.iter().position(|line| {
        line.contains("<socket:")
            && line.contains(&format!("x-request-id: {id}"))
            && line.contains("HTTP/1.1 ")
    });
    let from = from.expect("the head of the answer");
    let (sent, _) = call(&trace[from..], &["socket:", last]);
    let sent = from + sent;
    assert!(
        written < sent,
        "{id}: record {written}, end {sent}:\n{}",
        trace.join("\n")
    );
}

const PLAIN: &str = r#"{"choices":[],"usage":{"prompt_tokens":9},"end":"here"}"#;

/// A backend that streams, and then waits for a word of the test before it ends the body: whoever has
/// the end mark has everything.
fn pausing_at_the_end() -> (mpsc::Sender<()>, FakeLlm) {
    let (sender, go_on) = mpsc::channel();
    let go_on = Mutex::new(go_on);
    let mock = backend(move |request, stream| {
        let text = request.text();
        if text.contains("\"stream\":true") {
            wire::begin_stream(stream);
            for piece in [WORD, STOP, USAGE, DONE] {
                wire::chunk(stream, piece);
            }
            let _ = go_on.lock().unwrap().recv();
            wire::end_stream(stream);
        } else {
            let status = if text.contains("fail") { 500 } else { 200 };
            wire::json(stream, status, PLAIN);
        }
    });
    (sender, mock)
}

/// Asks for a stream, and returns when the client has the end mark.
fn until_end_mark(server: &LlmlbServer, id: &str) -> Connection {
    let mut client = Connection::open(server.address);
    send(&mut client, id, CHAT, &chat("Hello", true).to_string());
    assert_eq!(client.head().status(), 200);
    stream::read(&mut client, [WORD, STOP, DONE].concat().len());
    client
}

#[test]
fn the_record_is_written_before_the_last_bytes_are_sent() {
    let place = testkit::sandbox!();
    let (go_on, mock) = pausing_at_the_end();
    let server = traced(&place, &mock.url());
    let plain = ask(&server, "plain", CHAT, &chat("Hello", false));
    assert_eq!(plain.status(), 200);
    let mut client = until_end_mark(&server, "streamed");
    go_on.send(()).unwrap();
    assert_eq!(read_chunk(&mut client.reader), Some(None));
    let fails = chat("fail", false);
    assert_eq!(ask(&server, "failed", CHAT, &fails).status(), 500);
    let mut unknown = chat("Hello", true);
    unknown["model"] = "unknown".into();
    assert_eq!(ask(&server, "refused", CHAT, &unknown).status(), 404);
    assert_eq!(records::all(&place).len(), 4);
    let _ = place.run(&format!("stop -p {}", server.port()));
    assert_before(&place, "plain", "\\\"end\\\":\\\"here\\\"");
    assert_before(&place, "streamed", "[DONE]");
    assert_before(&place, "failed", "\\\"end\\\":\\\"here\\\"");
    assert_before(&place, "refused", "model_not_found");
}

#[test]
fn kill_nine_after_the_end_mark_loses_no_record() {
    let place = testkit::sandbox!();
    let (_go_on, mock) = pausing_at_the_end();
    for round in 0..20 {
        let server = place.serve(&format!("--backend {}", mock.url()));
        let id = format!("r-{round}");
        let _client = until_end_mark(&server, &id);
        server.process.kill();
        let record = records::one(&place, &id);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_eq!(record["tokens"], 12, "{record:#}");
    }
}

/// Whoever has the whole answer has been recorded, even if the server is killed that very moment.
#[test]
fn kill_nine_after_the_last_byte_loses_no_record() {
    const ROUNDS: usize = 25;
    let place = testkit::sandbox!();
    let backend = Backend::start(Sort {
        name: "b",
        models: &["m"],
        reports: Reports::IfAsked,
        key: None,
    });
    let answered = Mutex::new(BTreeSet::new());
    for round in 0..ROUNDS {
        let server = place.serve(&format!("--backend {}", backend.mock.url()));
        let address = server.address;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for client in 0..4 {
                let (is_over, answered) = (&is_over, &answered);
                scope.spawn(move || {
                    for number in 0.. {
                        let id = format!("r-{round}-{client}-{number}");
                        if is_over.load(Ordering::SeqCst)
                            || !is_whole(address, &id, number % 2 == 0)
                        {
                            return;
                        }
                        answered.lock().unwrap().insert(id);
                    }
                });
            }
            let _over = Over(&is_over);
            // One more, and at once:
            assert!(is_whole(address, &format!("last-{round}"), round % 2 == 0));
            server.process.kill();
        });
        answered.lock().unwrap().insert(format!("last-{round}"));
        assert_eq!(
            records::of_request(&place, &format!("last-{round}")).len(),
            1
        );
    }
    let answered = answered.into_inner().unwrap();
    let all = records::all(&place);
    let recorded: BTreeSet<_> = all
        .iter()
        .map(|one| one["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(recorded.len(), all.len(), "a request has two records");
    let lost: Vec<_> = answered
        .iter()
        .filter(|id| !recorded.contains(id.as_str()))
        .collect();
    assert!(
        lost.is_empty(),
        "{} of {} are lost: {lost:?}",
        lost.len(),
        answered.len()
    );
    assert!(answered.len() > ROUNDS, "{}", answered.len());
}

/// Whether the client got an answer to its last byte.
fn is_whole(address: std::net::SocketAddr, id: &str, is_stream: bool) -> bool {
    let Ok(stream) = std::net::TcpStream::connect(address) else {
        return false;
    };
    let mut client = Connection::over(stream);
    let question = chat("[tokens 5]", is_stream).to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        question.len()
    );
    if client
        .reader
        .get_mut()
        .write_all([head, question].concat().as_bytes())
        .is_err()
    {
        return false;
    }
    let Some(head) = testkit::Head::read(&mut client.reader) else {
        return false;
    };
    head.status() == 200 && head.body(&mut client.reader).is_ok()
}

#[test]
fn records_of_a_killed_server_are_delivered_once() {
    let place = testkit::sandbox!();
    let (_backend, server) = world(&place, Reports::IfAsked);
    for number in 0..10 {
        let mut client = Connection::open(server.address);
        send(
            &mut client,
            &format!("r-{number}"),
            CHAT,
            &chat("Hello", true).to_string(),
        );
        assert_eq!(client.answer().status(), 200);
    }
    server.process.kill();
    let receiver = testkit::UsageReceiver::accepting().unwrap();
    for _ in 0..2 {
        receiver.deliver(&place);
    }
    assert_eq!(receiver.distinct_records().len(), 10);
    assert_eq!(receiver.repeated_records(), 0);
    let verified = place.run("usage verify --json");
    assert_eq!(verified.code, Some(0), "{verified:?}");
}
