//! Order of the last bytes and the record: the record is written to its file before the client
//! receives the last bytes of the response, so that `kill -9` loses no finished request.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;

use crate::records;
use crate::requests::{CHAT, SetOnDrop, chat, post, send};
use crate::responses::world;
use crate::stream::{self, DONE, STOP, USAGE, WORD, counting_backend};
use testkit::{
    Connection, FakeLlm, LlmlbServer, Sandbox,
    api_server::Reports,
    backends::{UNPROBED, backend},
    read_chunk, wire,
};

/// Starts a server under strace, which logs every write and its file or socket.
fn traced(sandbox: &Sandbox, url: &str) -> LlmlbServer {
    let serve = sandbox.command(&format!("serve -p 0 --backend {url}"));
    let mut command = Command::new("strace");
    command
        .args(["-f", "-y", "-s", "4096", "-e"])
        .arg("trace=write,writev,pwrite64,pwritev,sendto,sendmsg")
        .arg("-o")
        .arg(sandbox.path("trace"))
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
    sandbox.serve_with(&mut command)
}

/// Finds the first system call in the output of strace whose line contains all `marks`. Returns the
/// indexes of the lines at which the call begins and returns. They differ if strace shows another
/// thread's call in between.
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
    (begun, begun + over.expect("the call returned"))
}

/// Checks that the write of a request's record returned before `last` was sent to the client.
fn assert_before(sandbox: &Sandbox, id: &str, last: &str) {
    let trace = std::fs::read_to_string(sandbox.path("trace")).unwrap();
    let trace: Vec<_> = trace.lines().collect();
    let in_record = format!("\\\"request_id\\\":\\\"{id}\\\"");
    let (_, written) = call(&trace, &[".jsonl.open>", &in_record]);
    let from = trace.iter().position(|line| {
        line.contains("<socket:")
            && line.contains(&format!("x-request-id: {id}"))
            && line.contains("HTTP/1.1 ")
    });
    let from = from.expect("the head of the response");
    let (sent, _) = call(&trace[from..], &["socket:", last]);
    let sent = from + sent;
    assert!(
        written < sent,
        "{id}: record {written}, end {sent}:\n{}",
        trace.join("\n")
    );
}

const PLAIN: &str = r#"{"choices":[],"usage":{"prompt_tokens":9},"end":"here"}"#;

/// Starts a backend that sends a stream up to `[DONE]` and ends the body when the test says so. Clients
/// treat `[DONE]` as the end of the response.
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

/// Requests a stream and returns when the client has received `[DONE]`.
fn read_until_done(server: &LlmlbServer, id: &str) -> Connection {
    let mut client = Connection::open(server.address);
    send(&mut client, id, CHAT, &chat("Hello", true).to_string());
    assert_eq!(client.head().status(), 200);
    stream::read(&mut client, [WORD, STOP, DONE].concat().len());
    client
}

#[test]
fn record_is_written_before_the_last_bytes_are_sent() {
    let sandbox = testkit::sandbox!();
    let (go_on, mock) = pausing_at_the_end();
    let server = traced(&sandbox, &mock.url());
    let plain = post(&server, "plain", CHAT, &chat("Hello", false));
    assert_eq!(plain.status(), 200);
    let mut client = read_until_done(&server, "streamed");
    go_on.send(()).unwrap();
    assert_eq!(read_chunk(&mut client.reader), Some(None));
    let fails = chat("fail", false);
    assert_eq!(post(&server, "failed", CHAT, &fails).status(), 500);
    let mut unknown = chat("Hello", true);
    unknown["model"] = "unknown".into();
    assert_eq!(post(&server, "refused", CHAT, &unknown).status(), 404);
    assert_eq!(records::all(&sandbox).len(), 4);
    let _ = sandbox.run(&format!("stop -p {}", server.port()));
    assert_before(&sandbox, "plain", "\\\"end\\\":\\\"here\\\"");
    assert_before(&sandbox, "streamed", "[DONE]");
    assert_before(&sandbox, "failed", "\\\"end\\\":\\\"here\\\"");
    assert_before(&sandbox, "refused", "model_not_found");
}

#[test]
fn kill_nine_after_the_done_event_loses_no_record() {
    let sandbox = testkit::sandbox!();
    let (_go_on, mock) = pausing_at_the_end();
    for round in 0..20 {
        let server = sandbox.serve(&format!("--backend {}", mock.url()));
        let id = format!("r-{round}");
        let _client = read_until_done(&server, &id);
        server.process.kill();
        let record = records::one(&sandbox, &id);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_eq!(record["tokens"], 12, "{record:#}");
    }
}

/// Kills the server as soon as a client has received the last byte of its response. The record of
/// the request must exist already.
#[test]
fn kill_nine_after_the_last_byte_loses_no_record() {
    const ROUNDS: usize = 25;
    let sandbox = testkit::sandbox!();
    let backend = counting_backend(Reports::IfAsked);
    let answered = Mutex::new(BTreeSet::new());
    for round in 0..ROUNDS {
        let server = sandbox.serve(&format!("--backend {}", backend.mock.url()));
        let address = server.address;
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for client in 0..4 {
                let (is_over, answered) = (&is_over, &answered);
                scope.spawn(move || {
                    for number in 0.. {
                        let id = format!("r-{round}-{client}-{number}");
                        if is_over.load(Ordering::SeqCst)
                            || !is_served(address, &id, number % 2 == 0)
                        {
                            return;
                        }
                        answered.lock().unwrap().insert(id);
                    }
                });
            }
            let _over = SetOnDrop(&is_over);
            assert!(is_served(address, &format!("last-{round}"), round % 2 == 0));
            server.process.kill();
        });
        answered.lock().unwrap().insert(format!("last-{round}"));
        assert_eq!(
            records::of_request(&sandbox, &format!("last-{round}")).len(),
            1
        );
    }
    let answered = answered.into_inner().unwrap();
    let all = records::all(&sandbox);
    let recorded: BTreeSet<_> = all
        .iter()
        .map(|record| record["request_id"].as_str().unwrap())
        .collect();
    assert_eq!(recorded.len(), all.len(), "some request has two records");
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

/// True if the client received a complete response.
fn is_served(address: std::net::SocketAddr, id: &str, is_stream: bool) -> bool {
    let Ok(stream) = std::net::TcpStream::connect(address) else {
        return false;
    };
    let mut client = Connection::over(stream);
    let request_body = chat("[tokens 5]", is_stream).to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        request_body.len()
    );
    if client
        .reader
        .get_mut()
        .write_all([head, request_body].concat().as_bytes())
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
    let sandbox = testkit::sandbox!();
    let (_backend, server) = world(&sandbox, Reports::IfAsked);
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
        receiver.deliver(&sandbox);
    }
    assert_eq!(receiver.distinct_records().len(), 10);
    assert_eq!(receiver.repeated_records(), 0);
    let verified = sandbox.run("usage verify --json");
    assert_eq!(verified.code, Some(0), "{verified:?}");
}
