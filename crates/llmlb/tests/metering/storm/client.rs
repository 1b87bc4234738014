//! A client that sends random requests and sometimes disconnects before the response is complete.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::responses::bodies_of_every_api;
use testkit::{Head, Http1, random::Random};

/// Intended end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// Client reads the response to its end, so the record must have the outcome `complete`.
    Complete,
    /// Client disconnects.
    Disconnect,
    /// Backend closes the connection in the middle of the response, so the record must have the
    /// outcome `cut`.
    Cut,
}

/// End of a request as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Seen {
    /// Client received a complete response that a backend produced.
    Complete,
    /// Client disconnected.
    Disconnected,
    /// Response was incomplete.
    Incomplete,
    /// Complete response of llmlb itself.
    Refused,
    /// Connection failed before the client received any response, for example because the server
    /// was killed.
    Nothing,
}

/// One request that was sent, with an id of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) fate: Fate,
    pub(super) is_stream: bool,
    pub(super) seen: Seen,
}

pub(super) struct Client {
    address: SocketAddr,
    number: usize,
    random: Random,
    ids: u64,
    connection: Option<BufReader<TcpStream>>,
}

impl Client {
    pub(super) fn new(address: SocketAddr, number: usize, seed: usize) -> Self {
        Self {
            address,
            number,
            random: Random::new((seed * 1000 + number) as u64),
            ids: 0,
            connection: None,
        }
    }

    /// Sends one random request. While it does not end as intended, it is sent again with another id.
    pub(super) fn run(&mut self, gives_up: &AtomicBool) -> Vec<(String, Sent)> {
        let fate = match self.random.below(100) {
            0..10 => Fate::Disconnect,
            10..15 => Fate::Cut,
            _ => Fate::Complete,
        };
        let mut all = bodies_of_every_api();
        let choice = self.random.below(all.len() as u64);
        let (path, api, mut request_body) = all.swap_remove(usize::try_from(choice).unwrap());
        // Clients that are to disconnect stream most of their requests (8 of 10), so that many
        // disconnects occur in the middle of a stream.
        let streamed = if fate == Fate::Disconnect { 8 } else { 5 };
        let is_stream = api != "embeddings" && self.random.below(10) < streamed;
        request_body["model"] = json!("m");
        request_body["stream"] = json!(is_stream);
        let tokens = self.random.below(40) + 1;
        let directives = match fate {
            Fate::Disconnect => format!("[tokens {}] [pace 2]", tokens + 20),
            Fate::Cut => format!("[tokens {tokens}] [cut {}]", self.random.below(tokens)),
            Fate::Complete => format!("[tokens {tokens}]"),
        };
        for field in ["prompt", "input"] {
            if request_body.get(field).is_some() {
                request_body[field] = json!(directives);
            }
        }
        if request_body.get("messages").is_some() {
            request_body["messages"][0]["content"] = json!(directives);
        }
        let body = request_body.to_string();
        let mut tries = Vec::new();
        loop {
            self.ids += 1;
            let id = format!("c{}-{}", self.number, self.ids);
            let seen = self.send(&id, path, &body, (fate, is_stream));
            let is_over = match fate {
                Fate::Complete => seen == Seen::Complete,
                Fate::Cut => seen == Seen::Incomplete,
                Fate::Disconnect => seen != Seen::Nothing,
            };
            tries.push((
                id,
                Sent {
                    fate,
                    is_stream,
                    seen,
                },
            ));
            if is_over || gives_up.load(Ordering::SeqCst) {
                return tries;
            }
            // Pause before the request is repeated: the server may be restarting after a kill.
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn send(&mut self, id: &str, path: &str, body: &str, plan: (Fate, bool)) -> Seen {
        let (fate, is_stream) = plan;
        let Some(mut connection) = self.connected() else {
            return Seen::Nothing;
        };
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if connection.get_mut().write_all(request.as_bytes()).is_err() {
            return Seen::Nothing;
        }
        if fate == Fate::Disconnect {
            return self.disconnect(connection, is_stream);
        }
        let Some(head) = Head::read(&mut connection) else {
            return Seen::Nothing;
        };
        if head.body(&mut connection).is_err() {
            return Seen::Incomplete;
        }
        self.connection = Some(connection);
        if head.status() == 200 {
            Seen::Complete
        } else {
            Seen::Refused
        }
    }

    /// Disconnects from the server at a random time: in front of the response or after a part of
    /// it.
    fn disconnect(&mut self, mut connection: BufReader<TcpStream>, is_stream: bool) -> Seen {
        if self.random.below(3) == 0 {
            thread::sleep(Duration::from_micros(self.random.below(3000)));
            return Seen::Disconnected;
        }
        // Read only once from a response that is not streamed: it may be complete after one read,
        // and a second read would wait for bytes that never come.
        let pieces = if is_stream {
            self.random.below(4) + 1
        } else {
            1
        };
        for _ in 0..pieces {
            match connection.read(&mut [0; 512]) {
                Ok(0) | Err(_) => return Seen::Nothing,
                Ok(_) => {}
            }
        }
        Seen::Disconnected
    }

    /// Returns the connection of the last request if it can be reused, or a new connection.
    fn connected(&mut self) -> Option<BufReader<TcpStream>> {
        if let Some(connection) = self.connection.take() {
            return Some(connection);
        }
        let stream = TcpStream::connect(self.address).ok()?;
        Some(Http1::new(stream).ok()?.reader)
    }
}
