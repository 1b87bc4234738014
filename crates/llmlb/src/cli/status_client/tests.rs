use std::net::TcpListener;
use std::thread;

use super::*;

/// How a server that is none behaves.
#[derive(Clone)]
pub(in crate::cli) enum Manner {
    /// Answers and closes the connection.
    Close(Vec<u8>),
    /// Answers and keeps the connection open.
    Keep(Vec<u8>),
    /// Sends a byte now and then, without end.
    Dribble,
}

/// Answers everybody who connects to a port of its own, until the tests end.
pub(in crate::cli) fn fake(manner: Manner) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let manner = manner.clone();
            thread::spawn(move || serve(stream.unwrap(), &manner));
        }
    });
    address
}

fn serve(mut stream: TcpStream, manner: &Manner) {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => request.extend_from_slice(&buffer[..count]),
        }
    }
    let request = String::from_utf8(request).unwrap();
    let asked = request.starts_with("GET /status HTTP/1.1\r\n")
        && request.contains("\r\nConnection: close\r\n");
    match manner {
        _ if !asked => {}
        Manner::Close(reply) => {
            let _ = stream.write_all(reply);
        }
        Manner::Keep(reply) => {
            let _ = stream.write_all(reply);
            thread::sleep(Duration::from_secs(60));
        }
        Manner::Dribble => {
            while stream.write_all(b"H").is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        }
    }
}

/// What llmlb's server answers.
pub(in crate::cli) fn reply(status: &str, pid: u32) -> Vec<u8> {
    ok(&format!(
        r#"{{"status":"{status}","version":"0.1.0","pid":{pid},"uptime_ms":123456,"in_flight":3,
           "requests":1000,"new":[],"backends":[
           {{"name":"gpu1","url":"http://10.0.0.5:8000","up":true,"models":3,"in_flight":1,
             "requests":500,"error":null}},
           {{"name":"gpu2","url":"http://10.0.0.6:8000","up":false,"models":0,"in_flight":0,
             "requests":2,"error":"connection refused"}}]}}"#
    ))
}

fn ok(body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\ncontent-Length: {length}\r\n\r\n{body}").into_bytes()
}

const LIMIT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

#[test]
fn a_server_that_answers_is_understood() {
    for (word, status) in [("ok", Word::Ok), ("draining", Word::Draining)] {
        let answer = ask(fake(Manner::Close(reply(word, 77))), LIMIT).unwrap();
        assert_eq!((answer.status, answer.pid), (status, 77));
        assert_eq!(answer.version.as_deref(), Some("0.1.0"));
        assert_eq!((answer.in_flight, answer.requests), (Some(3), Some(1000)));
        assert_eq!(answer.backends.len(), 2);
        assert_eq!(
            answer.backends[1].error.as_deref(),
            Some("connection refused")
        );
    }
}

#[test]
fn the_end_of_an_answer_is_seen_although_the_connection_stays_open() {
    let address = fake(Manner::Keep(reply("ok", 77)));
    assert_eq!(ask(address, LIMIT).map(|answer| answer.pid), Ok(77));
}

#[test]
fn an_answer_without_a_length_ends_with_the_connection() {
    let bare = b"HTTP/1.0 200 OK\r\n\r\n{\"status\":\"ok\",\"pid\":5}".to_vec();
    assert_eq!(
        ask(fake(Manner::Close(bare)), LIMIT).map(|answer| answer.pid),
        Ok(5)
    );
}

#[test]
fn every_other_answer_is_none_for_a_reason() {
    let whole = reply("ok", 77);
    let mut huge = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    huge.resize(LARGEST + 1, b' ');
    let cases = [
        (Vec::new(), "it closed the connection"),
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), "its answer is not HTTP"),
        (b"220 mail\r\n\r\n".to_vec(), "its answer is not HTTP"),
        (b"HTTP/1.\r\n\r\n".to_vec(), "its answer is not HTTP"),
        (b"\xff\xff\r\n\r\n".to_vec(), "its answer is not HTTP"),
        (
            b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec(),
            "it answered with HTTP status 404",
        ),
        (
            whole[..whole.len() - 1].to_vec(),
            "its answer was cut short",
        ),
        (ok("hello"), "its answer is not llmlb's"),
        (ok("{\"status\":\"ok\"}"), "its answer is not llmlb's"),
        (
            ok("{\"status\":\"UP\",\"pid\":1}"),
            "its answer is not llmlb's",
        ),
        (huge, "its answer is larger than any of llmlb's"),
    ];
    for (reply, why) in cases {
        let start = String::from_utf8_lossy(&reply[..reply.len().min(30)]).into_owned();
        assert_eq!(
            ask(fake(Manner::Close(reply)), LIMIT),
            Err(why.to_owned()),
            "{start}"
        );
    }
}

#[test]
fn silence_and_dribbling_end_with_the_time() {
    for manner in [Manner::Keep(Vec::new()), Manner::Dribble] {
        assert_eq!(ask(fake(manner), SHORT), Err("timed out".to_owned()));
    }
}

#[test]
fn nobody_there_is_a_refusal() {
    // Port 1 has been nobody's for decades.
    let nobody: SocketAddr = "127.0.0.1:1".parse().unwrap();
    assert_eq!(ask(nobody, LIMIT), Err("connection refused".to_owned()));
    assert!(!accepts(nobody, LIMIT));
    assert!(accepts(fake(Manner::Dribble), LIMIT));
}

#[test]
fn a_socket_that_connected_to_itself_is_nobodys_answer() {
    use socket2::{Domain, Socket, Type};

    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let own = socket.local_addr().unwrap();
    let connected = socket.connect(&own).is_ok();
    assert!(connected || cfg!(not(target_os = "linux")), "Linux lets it");
    if connected {
        assert!(is_its_own_peer(&socket.into()).unwrap());
    }
    let other = TcpStream::connect(fake(Manner::Dribble)).unwrap();
    assert!(!is_its_own_peer(&other).unwrap());
}

#[test]
fn a_server_on_every_address_is_asked_on_loopback() {
    for (given, asked) in [
        ("0.0.0.0:80", "127.0.0.1:80"),
        ("[::]:80", "[::1]:80"),
        ("10.0.0.1:80", "10.0.0.1:80"),
    ] {
        assert_eq!(reachable(given.parse().unwrap()), asked.parse().unwrap());
    }
}
