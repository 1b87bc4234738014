//! Benchmark: CPU time of llmlb's HTTP client and of hyper's client connection for the same exchanges, in
//! turn within one run.
//!
//! `scripts/bench-client` runs the benchmark. `docs/decisions/0011-an-http-client-of-its-own.md` has the
//! results.

#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "an error fails the benchmark, and its numbers are small"
)]

use std::future::poll_fn;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::time::{ClockId, clock_gettime};
use tokio::task::{JoinSet, LocalSet};

use super::{Connector, Exchange, Stream, Upload};
use crate::body_edit::BodyPieces;
use crate::config::BackendUrl;
use crate::descriptors::Division;

const CONNECTIONS: usize = 16;
const ROUNDS: usize = 15;
const EVENTS: usize = 50;

/// A kind of exchange.
#[derive(Clone, Copy, Debug)]
struct Case {
    name: &'static str,
    prompt: usize,
    streams: bool,
    pause: Duration,
    reconnects: bool,
    requests: usize,
}

const CASES: [Case; 5] = [
    Case {
        name: "small",
        prompt: 1 << 10,
        streams: false,
        pause: Duration::ZERO,
        reconnects: false,
        requests: 500,
    },
    Case {
        name: "large",
        prompt: 64 << 10,
        streams: false,
        pause: Duration::ZERO,
        reconnects: false,
        requests: 150,
    },
    Case {
        name: "burst",
        prompt: 1 << 10,
        streams: true,
        pause: Duration::ZERO,
        reconnects: false,
        requests: 60,
    },
    Case {
        name: "paced",
        prompt: 1 << 10,
        streams: true,
        pause: Duration::from_millis(1),
        reconnects: false,
        requests: 8,
    },
    Case {
        name: "new connection",
        prompt: 1 << 10,
        streams: false,
        pause: Duration::ZERO,
        reconnects: true,
        requests: 100,
    },
];

#[derive(Clone, Copy, Debug)]
enum Client {
    Own,
    Hyper,
}

/// Starts a backend with a thread for each connection, so that its CPU time is not counted as that
/// of the clients.
fn start_backend(case: Case) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            std::thread::spawn(move || serve(&connection.unwrap(), case));
        }
    });
    address
}

fn serve(connection: &TcpStream, case: Case) {
    connection.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(connection);
    let mut body = Vec::new();
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or_default() == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        body.resize(length, 0);
        reader.read_exact(&mut body).unwrap();
        let mut writer = connection;
        if !case.streams {
            let text = "x".repeat(560);
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 560\r\n\r\n";
            writer
                .write_all(format!("{head}{text}").as_bytes())
                .unwrap();
            continue;
        }
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        writer.write_all(head.as_bytes()).unwrap();
        let event = format!("data: {}\n\n", "x".repeat(180));
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        for _ in 0..EVENTS {
            writer.write_all(chunk.as_bytes()).unwrap();
            if !case.pause.is_zero() {
                std::thread::sleep(case.pause);
            }
        }
        writer.write_all(b"0\r\n\r\n").unwrap();
    }
}

fn expected_length(case: Case) -> usize {
    if case.streams { EVENTS * 188 } else { 560 }
}

async fn run_own(case: Case, connector: Connector, url: BackendUrl) {
    let mut idle: Option<Stream> = None;
    for number in 0..case.requests {
        let reused = idle
            .take()
            .and_then(|mut stream| stream.is_reusable().then_some(stream));
        let stream = match reused {
            Some(stream) => stream,
            None => connector.connect(&url).await.unwrap(),
        };
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: {}\r\nx-request-id: {number}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            url.authority(),
            case.prompt
        );
        let body = BodyPieces {
            first: Bytes::from(vec![b'p'; case.prompt]),
            ..BodyPieces::default()
        };
        let upload = Upload::buffered(Bytes::from(head), body);
        let mut exchange = Exchange::new(stream, Method::POST, upload);
        assert!(exchange.head().await.unwrap().status.is_success());
        let mut length = 0;
        while let Some(frame) = poll_fn(|cx| exchange.poll_frame(cx)).await {
            length += frame.unwrap().data_ref().map_or(0, Bytes::len);
        }
        assert_eq!(length, expected_length(case));
        idle = exchange.into_idle(false).filter(|_| !case.reconnects);
    }
}

async fn run_hyper(case: Case, address: SocketAddr) {
    let mut idle: Option<http1::SendRequest<Full<Bytes>>> = None;
    for number in 0..case.requests {
        let mut sender = if let Some(sender) = idle.take() {
            sender
        } else {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::task::spawn_local(connection);
            sender
        };
        sender.ready().await.unwrap();
        let request = Request::post("/v1/chat/completions")
            .header("host", address.to_string())
            .header("x-request-id", number)
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(vec![b'p'; case.prompt])))
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert!(response.status().is_success());
        let mut body = response.into_body();
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            length += frame.unwrap().data_ref().map_or(0, Bytes::len);
        }
        assert_eq!(length, expected_length(case));
        idle = Some(sender).filter(|_| !case.reconnects);
    }
}

/// Returns the CPU time of this thread for each request, in microseconds.
fn measure(case: Case, client: Client, address: SocketAddr) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let division = Division {
        connections: 100,
        per_address: 100,
        backend_connections: 100,
        probes: 1,
        lookups: 1,
    };
    let connector = Connector::new(Duration::from_secs(5), &division);
    let url = BackendUrl::parse(&format!("http://{address}")).unwrap();
    let cpu_time = || {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        now.tv_sec as f64 * 1e6 + now.tv_nsec as f64 / 1e3
    };
    let start = cpu_time();
    LocalSet::new().block_on(&runtime, async {
        let mut tasks = JoinSet::new();
        for _ in 0..CONNECTIONS {
            match client {
                Client::Own => tasks.spawn_local(run_own(case, connector.clone(), url.clone())),
                Client::Hyper => tasks.spawn_local(run_hyper(case, address)),
            };
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    });
    (cpu_time() - start) / (CONNECTIONS * case.requests) as f64
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[test]
#[ignore = "benchmark: run scripts/bench-client"]
fn cpu_time_of_this_client_and_of_hyper() {
    println!("case             own us   hyper us   own / hyper (range)");
    for case in CASES {
        let address = start_backend(case);
        let (mut own, mut hyper, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        measure(case, Client::Own, address);
        measure(case, Client::Hyper, address);
        for round in 0..ROUNDS {
            let mut order = [Client::Own, Client::Hyper];
            if round % 2 == 1 {
                order.reverse();
            }
            for client in order {
                let cost = measure(case, client, address);
                match client {
                    Client::Own => own.push(cost),
                    Client::Hyper => hyper.push(cost),
                }
            }
            ratios.push(own[round] / hyper[round]);
        }
        let low = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        println!(
            "{:<15} {:>7.1} {:>10.1}   {:.2} ({low:.2}..{high:.2})",
            case.name,
            median(own),
            median(hyper),
            median(ratios)
        );
    }
}
