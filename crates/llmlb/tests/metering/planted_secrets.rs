//! Secrets of all kinds are planted, and none is in a log, an output, a file or a core dump.
//! (promise L11)

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

/// Texts that the test plants and then searches for. Each is unique, so that a match shows that
/// llmlb stored or printed it.
const CLIENT_KEY: &str = "planted-client-key-5b1f";
const BACKEND_KEY: &str = "planted-backend-key-83c0";
const RECEIVER_TOKEN: &str = "planted-receiver-token-2e77";
const PROMPT: &str = "planted-prompt-9d04";
const RESPONSE: &str = "planted-response-c6aa";
const ALL: [&str; 5] = [CLIENT_KEY, BACKEND_KEY, RECEIVER_TOKEN, PROMPT, RESPONSE];

fn assert_no_secret(place: &str, bytes: &[u8]) {
    assert_none(&ALL, place, bytes);
}

fn assert_none(secrets: &[&str], place: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} is in {place}:\n{text}");
    }
}

fn assert_no_secret_in_files(dir: &Path) {
    assert_none_in_files(&ALL, dir);
}

fn assert_none_in_files(secrets: &[&str], dir: &Path) {
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            assert_none_in_files(secrets, &path);
        } else if let Ok(bytes) = fs::read(&path) {
            // A running server moves and removes files, so a file that cannot be read is skipped.
            // All files are read again after the server was killed.
            assert_none(secrets, &path.display().to_string(), &bytes);
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
    // This receiver repeats the token in its responses, so that llmlb would leak it if it logged a
    // response.
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
    // Backends repeat the key and the prompt in error statuses, in garbage and in a cut stream, so
    // that llmlb would leak them if it logged or stored an error.
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
    // Leave a request in flight: its row is a file in the data directory, which must not contain a
    // secret either.
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
    assert_no_secret("/metrics", server.get("/metrics").text().as_bytes());
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
    // The next start makes a record of the request that was in flight. That record must not contain
    // a secret.
    let server = serve(&sandbox, &backend, &receiver);
    server.process.kill();
    assert_no_secret_in_files(&sandbox.data_dir());
    assert_no_secret("the log", server.process.output().as_bytes());
    drop(open);
}

/// Secret of a key that `llmlb.toml` contains only as its SHA-256.
const HASHED: &str = "planted-hashed-key-71aa";
const SHA_256: &str = "166605e53932a16eef24721d4e6a1fef59379d2fb42093e7cd8f4b469ff79d43";
/// Secret of a key that `llmlb.toml` reads from an environment variable (`key_env`).
const IN_VARIABLE: &str = "planted-variable-key-40d2";
/// Secret that the operator wrote into `llmlb.toml` by mistake, where its SHA-256 belongs. The
/// error must not repeat it.
const MISPLACED: &str = "planted-misplaced-key-e1c9";
/// Secret of no key. Rejecting it must not log it.
const WRONG: &str = "planted-wrong-key-0b33";

fn secret_of(sandbox: &Sandbox, words: &str) -> String {
    let done = sandbox.run(&format!("key {words}"));
    done.assert_code(0);
    done.stdout.trim_end().to_owned()
}

/// Sends a request with a key in each field in which clients send keys. Asserts that the status is
/// the same for all fields, and returns it.
fn ask(server: &LlmlbServer, secret: &str, request: &str) -> u16 {
    let mut statuses = statuses(server, secret, request);
    statuses.dedup();
    assert_eq!(statuses.len(), 1, "{request}: {statuses:?}");
    statuses[0]
}

/// Sends a request with a key in each of the fields in which clients send keys, and returns the statuses.
fn statuses(server: &LlmlbServer, secret: &str, request: &str) -> Vec<u16> {
    let mut statuses = Vec::new();
    let body = chat("Hello", false).to_string();
    for fields in [
        format!("authorization: Bearer {secret}\r\n"),
        format!("x-api-key: {secret}\r\nx-my-token: {secret}\r\n"),
        format!("api-key: {secret}\r\ncookie: k={secret}\r\n"),
    ] {
        let mut client = Connection::open(server.address);
        let (method, path) = request.split_once(' ').unwrap();
        let path = format!("{path}?api_key={secret}");
        let length = if method == "POST" { body.len() } else { 0 };
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             {fields}content-length: {length}\r\n\r\n{}",
            &body[..length]
        ));
        statuses.push(client.answer().status());
    }
    statuses
}

/// Opens a WebSocket with a key among its subprotocols.
fn handshake(server: &LlmlbServer, path: &str, secret: &str) -> u16 {
    let mut client = Connection::open(server.address);
    client.send(format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         sec-websocket-protocol: realtime, openai-insecure-api-key.{secret}\r\n\r\n"
    ));
    client.head().status()
}

#[test]
fn no_api_key_is_in_logs_outputs_files_and_requests_to_backends() {
    let sandbox = testkit::sandbox!();
    let user = secret_of(&sandbox, "add user --team t");
    let admin = secret_of(&sandbox, "add root --admin");
    let limited = secret_of(&sandbox, "add limited --models other");
    let expired = secret_of(&sandbox, "add expired --expires 1s");
    let backend = Scripted::start();
    let config = |more: &str| {
        format!(
            "[[key]]\nname = \"hashed\"\nsha256 = \"{SHA_256}\"\n[[key]]\nname = \"variable\"\n\
             key_env = \"PLANTED\"\n{more}\n[[backend]]\nname = \"b\"\nurl = \"{}\"\n",
            backend.mock.url()
        )
    };
    let file = sandbox.file("llmlb.toml", config(""));
    let start = || {
        let words = format!("serve -v -p 0 --config {}", file.display());
        let mut command = sandbox.command(&words);
        command.envs(UNPROBED.iter().copied());
        sandbox.serve_with(command.env("PLANTED", IN_VARIABLE))
    };
    let server = start();
    let post = format!("POST {CHAT}");
    for secret in [&*user, &admin, HASHED, IN_VARIABLE] {
        assert_eq!(ask(&server, secret, &post), 200);
        assert_ne!(handshake(&server, "/v1/realtime?model=m", secret), 401);
        assert_eq!(ask(&server, secret, "GET /no-such-page"), 404);
    }
    until("a key has expired", || {
        statuses(&server, &expired, &post) == [401; 3]
    });
    for (secret, status) in [(WRONG, 401), (MISPLACED, 401), (&limited, 403)] {
        assert_eq!(ask(&server, secret, &post), status);
        let opened = handshake(&server, "/v1/realtime?model=m", secret);
        assert_eq!(opened, status);
    }
    assert_eq!(ask(&server, &admin, "GET /status"), 200);
    // Change keys while the server runs, by command and by file, because messages about the changes
    // could contain a secret.
    let rotated = secret_of(&sandbox, "rotate user --grace 1h");
    until("the new secret works", || {
        statuses(&server, &rotated, &post) == [200; 3]
    });
    assert_eq!(ask(&server, &user, &post), 200);
    fs::write(
        &file,
        config(&format!("[[key]]\nname = \"x\"\nsha256 = \"{MISPLACED}\"")),
    )
    .unwrap();
    until("the file is refused", || {
        server.get("/status").json()["config"]["refused"].is_object()
    });
    let check = sandbox.run(&format!("check --config {}", file.display()));
    fs::write(&file, config("team = \"t\"")).unwrap();
    until("the file is used", || {
        server.get("/status").json()["config"]["reloads"] == 1
    });
    assert_eq!(ask(&server, IN_VARIABLE, &post), 200);

    let stored = [&user, &admin, &limited, &expired, &rotated].map(String::as_str);
    let planted = [HASHED, IN_VARIABLE, MISPLACED, WRONG];
    let secrets: Vec<&str> = stored.into_iter().chain(planted).collect();
    let none = |place: &str, text: &str| assert_none(&secrets, place, text.as_bytes());
    none("check", &check.output());
    none("/status", &server.get("/status").text());
    none("/metrics", &server.get("/metrics").text());
    for verb in [
        "key list",
        "key list --json",
        "status",
        "status --json",
        "usage",
        "usage --by key,team --json",
        "usage export",
        "usage verify",
    ] {
        none(verb, &sandbox.run(verb).output());
    }
    for request in testkit::backends::asked(&backend.mock) {
        none("a request to the backend", &format!("{request:?}"));
    }
    server.process.kill();
    none("the log", &server.process.output());
    let server = start();
    server.process.kill();
    none("the log of the next start", &server.process.output());
    assert_none_in_files(&secrets, &sandbox.data_dir());
    assert_none_in_files(&secrets, &sandbox.locks());
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
            // Raise the limit, so that the server must lower it itself. Without the right to do so,
            // the call fails and the limit stays as it was.
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
