//! Items 1 and 14k of docs/attacks.md: responses that reach the wrong client, because a backend connection is
//! reused although the backend did not consume the request.
//!
//! A carrier request hides a second request in its body. The fake backend leaves the body unread,
//! executes the hidden request slowly, and its response reaches the next client of the connection.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use testkit::{
    BodyHandling, FakeLlm, Head, Http1, Http2, Received, Reply, Request, Step, chat_completion,
    cpp_httplib, is_reached,
};

use crate::{Attack, Outcome, Target, listed, verdict};

/// Header field that marks the hidden request. A backend that receives the field in a head has
/// executed the hidden request.
const HIDDEN: &str = "x-hidden";
/// Text of the response to the hidden request. A victim whose response contains it got the response
/// to another client's request.
const SECRET: &str = "response-to-the-hidden-request";
/// Time in which the backend executes the hidden request. It is long enough that requests of
/// victims arrive meanwhile, on the same backend connection if llmlb reuses it.
const SLOW: Duration = Duration::from_millis(150);
const ATTEMPTS: usize = 3;
const VICTIMS: usize = 2;

/// Function that sends the attacker's request, called the carrier because most carriers hide a
/// second request in their body. Returns the status of the response; `None` if there was no
/// response.
type Carrier = Box<dyn Fn(SocketAddr) -> io::Result<Option<u16>> + Send + Sync>;

/// Effect for which the attack counts as successful.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Judged {
    /// The attack succeeds if a response reaches another client, or if the hidden request is
    /// executed.
    Execution,
    /// The attack succeeds only if a response reaches another client. The fake backend executes the
    /// hidden request in any case, so its execution proves nothing.
    Crossing,
}

pub(crate) fn attacks() -> Vec<Attack> {
    let mut attacks = Vec::new();
    let mut add = |name: &str, shows, carriers: fn() -> Vec<Carrier>| {
        attacks.push(Attack::fast(name, shows, move |target| {
            cross(target, &carriers())
        }));
    };
    add(
        "1-unread-body-get",
        "a GET's unread body is executed, and its response reaches another client",
        || {
            let chunked = Request::get("/v1/x")
                .without_length()
                .field("transfer-encoding", "chunked")
                .body(chunk(&hidden()));
            vec![plain(Request::get("/v1/x").body(hidden())), plain(chunked)]
        },
    );
    add(
        "1-unread-body-get-http2",
        "the same with a GET over HTTP/2",
        || vec![Box::new(over_http2)],
    );
    add("1-unread-body-head", "the same with HEAD", || {
        vec![plain(Request::new("HEAD", "/v1/x").body(hidden()))]
    });
    add("1-unread-body-options", "the same with OPTIONS", || {
        vec![plain(Request::new("OPTIONS", "/v1/x").body(hidden()))]
    });
    add("1-unread-body-delete", "the same with DELETE", || {
        vec![plain(Request::new("DELETE", "/v1/files/f").body(hidden()))]
    });
    add(
        "1-unread-body-websocket",
        "the same with a GET that requests a WebSocket",
        || {
            let upgrade = Request::websocket("/v1/realtime?model=m");
            vec![plain(upgrade.body(hidden()))]
        },
    );
    add(
        "1-unread-body-range",
        "a backend responds 416 to a POST with a bad Range and leaves its body unread",
        || vec![upload("range", "bytes=x"), upload("range", "lines=1-2")],
    );
    add(
        "1-unread-body-accept",
        "a backend responds 400 to a POST with a bad Accept and leaves its body unread",
        || {
            let accepts = [
                ",", "text", "a/b,", "a/b,,c/d", "a/b;q=2", "a/b;q=x", "a/b;q=-1",
            ];
            accepts.map(|accept| upload("accept", accept)).into()
        },
    );
    add(
        "1-unread-body-precondition",
        "a backend responds 412 to a POST with If-Match and leaves its body unread",
        || vec![upload("if-match", "\"x\"")],
    );
    for status in [400, 401, 413, 500, 503] {
        attacks.push(Attack::fast(
            format!("1-unread-body-status-{status}"),
            "a backend responds to a POST with an error and leaves its body unread",
            move |target| rejected_unread(target, status),
        ));
    }
    attacks.push(Attack::fast(
        "1-response-before-upload-ends",
        "a backend responds early, and the rest of the upload is executed",
        early_response,
    ));
    attacks.push(Attack::fast(
        "1-extra-bytes-after-response",
        "a second response behind the first one reaches the next client",
        extra_bytes,
    ));
    add_reused(&mut attacks);
    attacks.push(Attack::fast(
        "1-body-on-own-pages",
        "llmlb's own pages accept a GET with a body",
        own_pages,
    ));
    attacks
}

/// Adds the attacks by backends whose responses have an ambiguous end, such as a 204 response with
/// a body.
fn add_reused(attacks: &mut Vec<Attack>) {
    let mut add = |name: &str, shows, method: &'static str, response: fn() -> String| {
        attacks.push(Attack::fast(name, shows, move |target| {
            reused(target, method, response)
        }));
    };
    add(
        "14k-both-lengths-reused",
        "a connection with both Transfer-Encoding and Content-Length in a response is reused",
        "POST",
        || {
            let length = chat_completion("ok", 100, 50).len();
            format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{}",
                chunked_rest()
            )
        },
    );
    add(
        "14k-chunked-http10-reused",
        "a connection with a chunked response of HTTP/1.0 is reused",
        "POST",
        || {
            let rest = chunked_rest();
            format!("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n{rest}")
        },
    );
    add(
        "14k-204-with-length-reused",
        "a connection is reused after a 204 whose announced body may still come",
        "POST",
        || "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n".to_owned(),
    );
    add(
        "14k-204-chunked-reused",
        "the same after a 204 that announces chunks",
        "POST",
        || "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n".to_owned(),
    );
    add(
        "14k-304-with-length-reused",
        "the same after a 304",
        "GET",
        || "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n".to_owned(),
    );
    add(
        "14k-head-with-length-reused",
        "the same after a response to HEAD",
        "HEAD",
        || "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n".to_owned(),
    );
}

/// Returns the end of a chunked response: its last two header fields (`Content-Type` and
/// `Transfer-Encoding`) and its body. The caller puts a status line and other fields in front.
fn chunked_rest() -> String {
    let body = chat_completion("ok", 100, 50);
    let size = body.len();
    format!(
        "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n\
         {size:x}\r\n{body}\r\n0\r\n\r\n"
    )
}

/// Returns the request that the attacks hide in the body of another request.
fn hidden() -> Vec<u8> {
    Request::chat("m", "hidden").field(HIDDEN, "1").to_bytes()
}

fn chunk(data: &[u8]) -> Vec<u8> {
    let size = format!("{:x}\r\n", data.len()).into_bytes();
    [&size, data, b"\r\n0\r\n\r\n"].concat()
}

fn plain(request: Request) -> Carrier {
    Box::new(move |address| {
        let mut client = Http1::connect(address)?;
        client.send(request.to_bytes())?;
        // Read only the head, since a response to HEAD has a length and no body.
        Ok(client.response_head().ok().map(|head| head.status()))
    })
}

/// Returns an upload whose body llmlb streams without parsing, with a header field that makes the
/// backend reject the upload early and leave its body unread.
fn upload(field: &str, value: &str) -> Carrier {
    let request = Request::new("POST", "/v1/files")
        .field("content-type", "application/octet-stream")
        .field(field, value);
    plain(request.body(hidden()))
}

fn over_http2(address: SocketAddr) -> io::Result<Option<u16>> {
    let mut client = Http2::connect(address)?;
    let fields = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", "/v1/x"),
    ];
    let stream = client.open(&fields, false)?;
    client.data(stream, &hidden(), true)?;
    let has_response = is_reached(Duration::from_secs(10), || client.end(stream).is_some());
    Ok(client.status(stream).filter(|_| has_response))
}

fn is_hidden(request: &Received) -> bool {
    request.head.field(HIDDEN).is_some()
}

/// Returns the reply of a backend to a request that it accepts.
fn reply(request: &Received) -> Reply {
    if is_hidden(request) {
        return Reply::json(200, chat_completion(SECRET, 9, 9)).after(SLOW);
    }
    if request.head.method() == "HEAD" {
        return Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n");
    }
    Reply::json(200, chat_completion("ok", 100, 50))
}

/// Sends carriers, which hide a second request in their body, to a backend that leaves bodies
/// unread as cpp-httplib does. Such a backend parses an unread body as the next request. llmlb
/// holds if the hidden request is not executed and no victim gets its response.
fn cross(target: &Target, carriers: &[Carrier]) -> Outcome {
    let builder = FakeLlm::builder(&["m"]).bodies(cpp_httplib::body_rule);
    let llm = builder
        .start(|request| cpp_httplib::rejected(request).unwrap_or_else(|| reply(request)))?;
    crossing(target, &llm, carriers, Judged::Execution)
}

/// Sends each carrier (a request that hides a second request) several times, each time followed at
/// once by requests of victims. The attack succeeds if a victim receives the response to the hidden
/// request.
fn crossing(target: &Target, llm: &FakeLlm, carriers: &[Carrier], judged: Judged) -> Outcome {
    let sandbox = target.sandbox()?;
    // With one worker all clients share the idle backend connections, so that a victim's request
    // can follow the carrier on the same connection.
    let server = sandbox.server().backend(&llm.url());
    let server = server.setting("server.workers", "1").start()?;
    let (mut attempts, mut crossed, mut statuses) = (0, 0, Vec::new());
    for carrier in carriers {
        for _ in 0..ATTEMPTS {
            attempts += 1;
            statuses.extend(carrier(server.address)?);
            crossed += usize::from(victims(server.address)? > 0);
        }
    }
    // Wait until the backend has parsed all bytes that it received. A hidden request that it
    // executes later would not be counted.
    thread::sleep(Duration::from_millis(30));
    let executed = llm.requests().iter().filter(|one| is_hidden(one)).count();
    statuses.dedup();
    let evidence = format!(
        "{crossed} of {attempts} responses reached another client, {executed} hidden requests \
         executed; carrier got {statuses:?}"
    );
    let holds = crossed == 0 && (executed == 0 || judged == Judged::Crossing);
    verdict(holds, evidence)
}

/// Sends requests of other clients and returns how many received the secret.
fn victims(address: SocketAddr) -> Result<usize, Box<dyn Error>> {
    let victims: Vec<_> = (0..VICTIMS)
        .map(|_| thread::spawn(move || testkit::send(address, &Request::chat("m", "victim"))))
        .collect();
    let mut crossed = 0;
    for victim in victims {
        let response = victim.join().map_err(|_| "a victim's thread panicked")??;
        if response.status() != 200 {
            return Err(format!("a victim got {}", response.status()).into());
        }
        crossed += usize::from(response.text().contains(SECRET));
    }
    Ok(crossed)
}

/// The backend rejects uploads and leaves their bodies unread. llmlb holds if no other client
/// receives the response to a request that is hidden in such a body.
fn rejected_unread(target: &Target, status: u16) -> Outcome {
    let is_upload = |head: &Head| head.path() == "/v1/files";
    let rule = move |head: &Head| {
        if is_upload(head) {
            BodyHandling::Unread
        } else {
            BodyHandling::Read
        }
    };
    let builder = FakeLlm::builder(&["m"]).bodies(rule);
    let llm = builder.start(move |request| {
        if is_upload(&request.head) {
            return Reply::json(status, r#"{"error":{"message":"rejected"}}"#);
        }
        reply(request)
    })?;
    let carrier = upload("x-none", "1");
    crossing(target, &llm, &[carrier], Judged::Crossing)
}

/// The backend responds to an upload before the upload is complete, and leaves the rest of the body
/// unread. llmlb holds if it does not reuse the connection, on which the rest would be parsed as a
/// request.
fn early_response(target: &Target) -> Outcome {
    let rule = |head: &Head| match head.path() {
        "/v1/files" => BodyHandling::Unread,
        _ => BodyHandling::Read,
    };
    let llm = FakeLlm::builder(&["m"]).bodies(rule).start(reply)?;
    let carrier: Carrier = Box::new(|address| {
        let mut client = Http1::connect(address)?;
        let request = Request::new("POST", "/v1/files")
            .field("content-type", "application/octet-stream")
            .body(hidden());
        let bytes = request.to_bytes();
        let (head, body) = bytes.split_at(bytes.len() - hidden().len());
        client.send(head)?;
        let status = client.response_head().map(|head| head.status())?;
        // Ignore a write error: the server may have closed the connection already.
        let _ = client.send(body);
        Ok(Some(status))
    });
    crossing(target, &llm, &[carrier], Judged::Crossing)
}

/// The backend sends a second response behind the first one, at once or a little later. llmlb holds
/// if it discards the connection, so that no other client receives the second response.
fn extra_bytes(target: &Target) -> Outcome {
    let llm = FakeLlm::start("m", |request| {
        let second = Reply::json(200, chat_completion(SECRET, 9, 9));
        match request.path() {
            "/v1/at-once" => {
                let body = chat_completion(SECRET, 9, 9);
                let length = body.len();
                Reply::raw(format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{{}}HTTP/1.1 200 OK\r\n\
                     content-length: {length}\r\n\r\n{body}"
                ))
            }
            "/v1/later" => {
                let first = Reply::json(200, "{}");
                let pause = Step::Pause(Duration::from_millis(10));
                first.then(pause).then_reply(second)
            }
            _ => reply(request),
        }
    })?;
    let carrier = |path: &'static str| -> Carrier {
        Box::new(move |address| {
            let response = testkit::send(address, &Request::post(path, "{}"))?;
            thread::sleep(Duration::from_millis(30));
            Ok(Some(response.status()))
        })
    };
    let carriers = [carrier("/v1/at-once"), carrier("/v1/later")];
    crossing(target, &llm, &carriers, Judged::Crossing)
}

/// Sends requests one after the other to a backend whose responses have an ambiguous end. llmlb
/// holds if it opens a new backend connection for each request: on a reused connection, the rest of
/// one response could reach another client.
fn reused(target: &Target, method: &str, response: fn() -> String) -> Outcome {
    let llm = FakeLlm::start("m", move |_| Reply::raw(response()))?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url());
    let server = server.setting("server.workers", "1").start()?;
    for _ in 0..ATTEMPTS {
        let mut client = Http1::connect(server.address)?;
        let request = match method {
            "POST" => Request::chat("m", "hello"),
            method => Request::new(method, "/v1/files/f"),
        };
        client.send(request.to_bytes())?;
        // Read only the head, since a response to HEAD has a length and no body.
        client.response_head()?;
    }
    let mut connections: Vec<_> = llm.requests().iter().map(|one| one.connection).collect();
    let requests = connections.len();
    connections.dedup();
    let evidence = format!("{requests} requests on {} connections", connections.len());
    // llmlb may forward the ambiguous responses or reject them. In both cases it holds only if
    // every request had a backend connection of its own.
    verdict(requests > 0 && connections.len() == requests, evidence)
}

fn own_pages(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let mut accepted = Vec::new();
    for path in [
        "/v1/models",
        "/v1/models/m",
        "/healthz",
        "/status",
        "/metrics",
    ] {
        let chunked = Request::get(path)
            .without_length()
            .field("transfer-encoding", "chunked")
            .body(chunk(b"x"));
        for request in [Request::get(path).body("x"), chunked] {
            let status = server.send(&request)?.status();
            if status != 400 && server.send(&Request::get(path))?.status() == 200 {
                accepted.push(format!("{path}: {status}"));
            }
        }
    }
    let evidence = if accepted.is_empty() {
        "all rejected".to_owned()
    } else {
        format!("accepted: {}", listed(&accepted))
    };
    verdict(accepted.is_empty(), evidence)
}
