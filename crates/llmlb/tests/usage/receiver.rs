//! A tiny receiver that answers as a test wants and keeps what it was sent.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;

/// What it was sent.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: Value,
}

/// The status of the answer and what comes after it, up to the length: headers, each with its end.
pub(crate) type Answer = (&'static str, String, String);

pub(crate) struct Receiver {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Receiver {
    /// Answers every request with this status.
    pub(crate) fn always(status: &'static str) -> Self {
        Self::new(move |_| (status, String::new(), String::new()))
    }

    /// Asks `judge` for each answer.
    pub(crate) fn new(judge: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!(
            "http://{}/usage",
            listener.local_addr().expect("an address")
        );
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (kept, judge) = (Arc::clone(&requests), Arc::new(judge));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (kept, judge) = (Arc::clone(&kept), Arc::clone(&judge));
                thread::spawn(move || serve(stream, &kept, &*judge));
            }
        });
        Self { url, requests }
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }

    /// The numbers of the records in all requests.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let requests = self.requests();
        let mut numbers: Vec<u64> = requests.iter().flat_map(Request::numbers).collect();
        numbers.sort_unstable();
        numbers
    }
}

impl Request {
    /// The numbers of its records.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let records = self.body["records"].as_array().expect("records");
        let number = |record: &Value| record["n"].as_u64().expect("a number");
        records.iter().map(number).collect()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

fn serve(
    stream: TcpStream,
    kept: &Mutex<Vec<Request>>,
    judge: &dyn Fn(&Request) -> Answer,
) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let request = read(&mut reader).ok()?;
        let (status, headers, body) = judge(&request);
        kept.lock().unwrap().push(request);
        let length = body.len();
        let text = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\n\r\n{body}");
        writer.write_all(text.as_bytes()).ok()?;
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> io::Result<Request> {
    let mut request = Request {
        head: String::new(),
        body: Value::Null,
    };
    while !request.head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut request.head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let length = request.header("content-length").expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    reader.read_exact(&mut body)?;
    request.body = serde_json::from_slice(&body).expect("JSON");
    Ok(request)
}
