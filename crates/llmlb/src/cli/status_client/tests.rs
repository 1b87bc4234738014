use std::net::TcpListener;
use std::thread;

use super::*;

/// Behaviour of a fake server after it has read the request.
#[derive(Clone)]
pub(in crate::cli) enum Manner {
    /// Responds and closes the connection.
    Close(Vec<u8>),
    /// Responds and keeps the connection open.
    Keep(Vec<u8>),
    /// Sends a byte every 20 ms, without end.
    Dribble,
}

/// Starts a fake server on a free port. It runs until the tests end.
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
    let is_expected = request.starts_with("GET /status HTTP/1.1\r\n")
        && request.contains("\r\nConnection: close\r\n");
    match manner {
        _ if !is_expected => {}
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

/// Response of an llmlb server to `/status`.
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
fn status_response_is_parsed() {
    for (word, status) in [
        ("ok", ServerStatus::Ok),
        ("draining", ServerStatus::Draining),
    ] {
        let response = fetch(fake(Manner::Close(reply(word, 77))), LIMIT).unwrap();
        assert_eq!((response.status, response.pid), (status, 77));
        assert_eq!(response.version.as_deref(), Some("0.1.0"));
        assert_eq!(
            (response.in_flight, response.requests),
            (Some(3), Some(1000))
        );
        assert_eq!(response.backends.len(), 2);
        assert_eq!(
            response.backends[1].error.as_deref(),
            Some("connection refused")
        );
    }
}

#[test]
fn response_ends_at_its_length_when_the_connection_stays_open() {
    let address = fake(Manner::Keep(reply("ok", 77)));
    assert_eq!(fetch(address, LIMIT).map(|response| response.pid), Ok(77));
}

#[test]
fn response_without_a_length_ends_with_the_connection() {
    let bare = b"HTTP/1.0 200 OK\r\n\r\n{\"status\":\"ok\",\"pid\":5}".to_vec();
    assert_eq!(
        fetch(fake(Manner::Close(bare)), LIMIT).map(|response| response.pid),
        Ok(5)
    );
}

#[test]
fn invalid_response_is_rejected_with_a_reason() {
    let whole = reply("ok", 77);
    let mut huge = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
    huge.resize(STATUS.max + 1, b' ');
    let cases = [
        (Vec::new(), "the connection was closed without a response"),
        (b"SSH-2.0-OpenSSH\r\n".to_vec(), "the response is not HTTP"),
        (b"220 mail\r\n\r\n".to_vec(), "the response is not HTTP"),
        (b"HTTP/1.\r\n\r\n".to_vec(), "the response is not HTTP"),
        (b"\xff\xff\r\n\r\n".to_vec(), "the response is not HTTP"),
        (
            b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec(),
            "the response has HTTP status 404",
        ),
        (
            whole[..whole.len() - 1].to_vec(),
            "the response is incomplete",
        ),
        (ok("hello"), "the response is not llmlb's /status"),
        (
            ok("{\"status\":\"ok\"}"),
            "the response is not llmlb's /status",
        ),
        (
            ok("{\"status\":\"UP\",\"pid\":1}"),
            "the response is not llmlb's /status",
        ),
        (huge, "the response is too large for llmlb's /status"),
    ];
    for (reply, why) in cases {
        let start = String::from_utf8_lossy(&reply[..reply.len().min(30)]).into_owned();
        assert_eq!(
            fetch(fake(Manner::Close(reply)), LIMIT),
            Err(why.to_owned()),
            "{start}"
        );
    }
}

#[test]
fn silent_and_slow_servers_time_out() {
    for manner in [Manner::Keep(Vec::new()), Manner::Dribble] {
        assert_eq!(fetch(fake(manner), SHORT), Err("timed out".to_owned()));
    }
}

#[test]
fn unused_port_refuses_the_connection() {
    // Connections to port 1 are refused, since no program of a test machine listens there.
    let unused: SocketAddr = "127.0.0.1:1".parse().unwrap();
    assert_eq!(fetch(unused, LIMIT), Err("connection refused".to_owned()));
    assert!(!accepts(unused, LIMIT));
    assert!(accepts(fake(Manner::Dribble), LIMIT));
}

#[test]
fn socket_connected_to_itself_is_detected() {
    use socket2::{Domain, Socket, Type};

    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    socket.bind(&any.into()).unwrap();
    let own = socket.local_addr().unwrap();
    let connected = socket.connect(&own).is_ok();
    assert!(
        connected || cfg!(not(target_os = "linux")),
        "Linux permits it"
    );
    if connected {
        assert!(is_its_own_peer(&socket.into()).unwrap());
    }
    let other = TcpStream::connect(fake(Manner::Dribble)).unwrap();
    assert!(!is_its_own_peer(&other).unwrap());
}

#[test]
fn unspecified_address_is_reached_on_loopback() {
    for (given, asked) in [
        ("0.0.0.0:80", "127.0.0.1:80"),
        ("[::]:80", "[::1]:80"),
        ("10.0.0.1:80", "10.0.0.1:80"),
    ] {
        assert_eq!(reachable(given.parse().unwrap()), asked.parse().unwrap());
    }
}
