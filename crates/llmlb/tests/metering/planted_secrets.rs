//! Secrets of all kinds are planted, and none is in a log, an output, a file or a core dump. (L11)

use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;

use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde_json::json;
use testkit::{
    Connection, LlmlbServer, Reply, Sandbox, UsageReceiver,
    backends::{UNPROBED, close},
    until, wire,
};

use crate::requests::{CHAT, chat, send_with};
use crate::stream::{self, DONE, STOP, Scripted, USAGE, WORD};

/// Secrets and texts, each of which exists nowhere but where it was planted.
const CLIENT_KEY: &str = "planted-client-key-5b1f";
const BACKEND_KEY: &str = "planted-backend-key-83c0";
const RECEIVER_TOKEN: &str = "planted-receiver-token-2e77";
const PROMPT: &str = "planted-prompt-9d04";
const RESPONSE: &str = "planted-response-c6aa";
const ALL: [&str; 5] = [CLIENT_KEY, BACKEND_KEY, RECEIVER_TOKEN, PROMPT, RESPONSE];

fn assert_no_secret(place: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for secret in ALL {
        assert!(!text.contains(secret), "{secret} is in {place}:\n{text}");
    }
}

fn assert_no_secret_in_files(dir: &Path) {
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            assert_no_secret_in_files(&path);
        } else if let Ok(bytes) = fs::read(&path) {
            // A running server moves and removes files. All are read again after it was killed.
            assert_no_secret(&path.display().to_string(), &bytes);
        }
    }
}

/// Sends a request that has every secret of a client, in all fields in which clients send keys.
fn request(server: &LlmlbServer, id: &str, is_stream: bool) -> Connection {
    let mut client = Connection::open(server.address);
    let fields = format!(
        "content-type: application/json\r\nauthorization: Bearer {CLIENT_KEY}\r\n\
         x-api-key: {CLIENT_KEY}\r\napi-key: {CLIENT_KEY}\r\ncookie: k={CLIENT_KEY}\r\n"
    );
    let path = format!("{CHAT}?key={CLIENT_KEY}");
    let body = chat(PROMPT, is_stream).to_string();
    send_with(&mut client, "POST", id, &path, &fields, &body);
    client
}

fn serve(sandbox: &Sandbox, backend: &Scripted, receiver: &UsageReceiver) -> LlmlbServer {
    let config = sandbox.file(
        "llmlb.toml",
        format!(
            "[[backend]]\nname = \"b\"\nurl = \"{}\"\napi_key_env = \"PLANTED\"\n",
            backend.mock.url()
        ),
    );
    let words = format!("serve -v -p 0 --config {}", config.display());
    let mut command = sandbox.command(&words);
    command
        .envs(UNPROBED.iter().copied())
        .env("PLANTED", BACKEND_KEY)
        .env("LLMLB_FIRST_BYTE_TIMEOUT", "2s")
        .env("LLMLB_USAGE_URL", &receiver.url)
        .env("LLMLB_USAGE_TOKEN", RECEIVER_TOKEN)
        .env("LLMLB_USAGE_EVERY", "1s");
    sandbox.serve_with(&mut command)
}

#[test]
fn no_secret_is_in_logs_outputs_and_files() {
    let sandbox = testkit::sandbox!();
    let backend = Scripted::start();
    // A receiver that repeats the token in its responses.
    let receiver = UsageReceiver::judging(|request| {
        let repeated = request
            .head
            .field("authorization")
            .unwrap_or_default()
            .to_owned();
        Reply::response(
            422,
            &[("x-repeated", &repeated)],
            format!("you sent {repeated}"),
        )
    });
    let server = serve(&sandbox, &backend, &receiver);
    let word = WORD.replace("Hi", RESPONSE);
    let whole = [&word, STOP, USAGE, DONE].concat();
    backend.next(move |_, stream| {
        stream::send(
            stream,
            "content-type: text/event-stream\r\n",
            whole.as_bytes(),
        );
    });
    assert_eq!(request(&server, "whole", true).answer().status(), 200);
    // Backends that repeat the key and the prompt in errors: as a status, in garbage, in a cut stream.
    for status in [400, 401, 403, 429, 500, 503] {
        let text = format!("{BACKEND_KEY} {PROMPT} {RESPONSE}");
        let body = json!({ "error": { "message": text } }).to_string();
        backend.next(move |_, stream| wire::json(stream, status, &body));
        request(&server, &format!("status-{status}"), false).answer();
    }
    for garbage in [
        format!("{BACKEND_KEY} {RESPONSE}\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\n{BACKEND_KEY}\r\n\r\n"),
    ] {
        backend.next(move |_, stream| {
            let _ = std::io::Write::write_all(stream, garbage.as_bytes());
            close(stream);
        });
        let _ = request(&server, "garbage", false).answer();
    }
    backend.next(|_, stream| {
        let _ = stream.read(&mut [0]);
        close(stream);
    });
    let _ = request(&server, "timeout", false).answer();
    // A request in flight has a row in the data directory.
    let begun = word.clone();
    backend.next(move |_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, &begun);
        let _ = stream.read(&mut [0]);
        close(stream);
    });
    let mut open = request(&server, "open", true);
    assert_eq!(open.head().status(), 200);
    stream::read(&mut open, word.len());
    until("a batch was sent", || !receiver.batches().is_empty());

    let status = server.get("/status");
    assert_no_secret("/status", status.text().as_bytes());
    for verb in [
        "status --json",
        "status",
        "usage --json",
        "usage",
        "usage pending",
        "usage failed",
        "usage verify",
    ] {
        assert_no_secret(verb, sandbox.run(verb).output().as_bytes());
    }
    assert_no_secret_in_files(&sandbox.data_dir());
    assert_no_secret_in_files(&sandbox.locks());
    server.process.kill();
    assert_no_secret("the log", server.process.output().as_bytes());
    assert_no_secret_in_files(&sandbox.data_dir());
    // The next start turns the open request into a record.
    let server = serve(&sandbox, &backend, &receiver);
    server.process.kill();
    assert_no_secret_in_files(&sandbox.data_dir());
    assert_no_secret("the log", server.process.output().as_bytes());
    drop(open);
}

#[test]
fn crash_of_the_server_leaves_no_core_dump() {
    let sandbox = testkit::sandbox!();
    let dir = sandbox.path("cwd");
    fs::create_dir_all(&dir).unwrap();
    let mut command = sandbox.command("serve -p 0 --backend http://127.0.0.1:1");
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    // SAFETY: `setrlimit` is a system call, which may be made between `fork` and `exec`.
    #[expect(unsafe_code, reason = "code between `fork` and `exec`")]
    unsafe {
        command.pre_exec(move || {
            // Without the right to raise the hard limit, the soft limit is what it was.
            let _ = setrlimit(Resource::Core, unlimited);
            Ok(())
        });
    }
    let server = sandbox.serve_with(command.current_dir(&dir));
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let core = limits
        .lines()
        .find(|line| line.starts_with("Max core file size"))
        .unwrap();
    let soft = core.split_whitespace().nth(4).unwrap();
    assert!(matches!(soft, "0" | "1"), "{core}");
    server.process.signal(Signal::ABORT).unwrap();
    server.process.end();
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}
