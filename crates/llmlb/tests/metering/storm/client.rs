//! A client that asks for anything, and sometimes does not wait for the end.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::answers::questions;
use testkit::{Head, Http1, random::Random};

/// What becomes of a request on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fate {
    /// It is to be answered.
    Answer,
    /// The client leaves.
    Leave,
    /// The backend hangs up.
    Cut,
}

/// What a client saw of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Saw {
    /// A backend's whole answer.
    Whole,
    /// It left.
    Left,
    /// An answer that broke off.
    Broken,
    /// A whole answer that is the server's own.
    Refused,
    /// Nothing: the connection broke before an answer.
    Nothing,
}

/// A request that was sent, under an id of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    pub(super) fate: Fate,
    pub(super) is_stream: bool,
    pub(super) saw: Saw,
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

    /// Asks one thing, again under another id as long as the connection breaks.
    pub(super) fn ask(&mut self, gives_up: &AtomicBool) -> Vec<(String, Sent)> {
        let fate = match self.random.below(100) {
            0..10 => Fate::Leave,
            10..15 => Fate::Cut,
            _ => Fate::Answer,
        };
        let mut all = questions();
        let choice = self.random.below(all.len() as u64);
        let (path, api, mut question) = all.swap_remove(usize::try_from(choice).unwrap());
        // Whoever leaves is mostly tired of a long story.
        let streamed = if fate == Fate::Leave { 8 } else { 5 };
        let is_stream = api != "embeddings" && self.random.below(10) < streamed;
        question["model"] = json!("m");
        question["stream"] = json!(is_stream);
        let tokens = self.random.below(40) + 1;
        let wishes = match fate {
            Fate::Leave => format!("[tokens {}] [pace 2]", tokens + 20),
            Fate::Cut => format!("[tokens {tokens}] [cut {}]", self.random.below(tokens)),
            Fate::Answer => format!("[tokens {tokens}]"),
        };
        for field in ["prompt", "input"] {
            if question.get(field).is_some() {
                question[field] = json!(wishes);
            }
        }
        if question.get("messages").is_some() {
            question["messages"][0]["content"] = json!(wishes);
        }
        let body = question.to_string();
        let mut tries = Vec::new();
        loop {
            self.ids += 1;
            let id = format!("c{}-{}", self.number, self.ids);
            let saw = self.send(&id, path, &body, (fate, is_stream));
            let is_over = match fate {
                Fate::Answer => saw == Saw::Whole,
                Fate::Cut => saw == Saw::Broken,
                Fate::Leave => saw != Saw::Nothing,
            };
            tries.push((
                id,
                Sent {
                    fate,
                    is_stream,
                    saw,
                },
            ));
            if is_over || gives_up.load(Ordering::SeqCst) {
                return tries;
            }
            // The server is being started again.
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn send(&mut self, id: &str, path: &str, body: &str, how: (Fate, bool)) -> Saw {
        let (fate, is_stream) = how;
        let Some(mut connection) = self.connected() else {
            return Saw::Nothing;
        };
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if connection.get_mut().write_all(request.as_bytes()).is_err() {
            return Saw::Nothing;
        }
        if fate == Fate::Leave {
            return self.leave(connection, is_stream);
        }
        let Some(head) = Head::read(&mut connection) else {
            return Saw::Nothing;
        };
        if head.body(&mut connection).is_err() {
            return Saw::Broken;
        }
        self.connection = Some(connection);
        if head.status() == 200 {
            Saw::Whole
        } else {
            Saw::Refused
        }
    }

    /// Leaves before the answer, or after something of it.
    fn leave(&mut self, mut connection: BufReader<TcpStream>, is_stream: bool) -> Saw {
        if self.random.below(3) == 0 {
            thread::sleep(Duration::from_micros(self.random.below(3000)));
            return Saw::Left;
        }
        // A plain answer is over after the first.
        let pieces = if is_stream {
            self.random.below(4) + 1
        } else {
            1
        };
        for _ in 0..pieces {
            match connection.read(&mut [0; 512]) {
                Ok(0) | Err(_) => return Saw::Nothing,
                Ok(_) => {}
            }
        }
        Saw::Left
    }

    /// The connection of the last request, if that may be used again, or a new one.
    fn connected(&mut self) -> Option<BufReader<TcpStream>> {
        if let Some(connection) = self.connection.take() {
            return Some(connection);
        }
        let stream = TcpStream::connect(self.address).ok()?;
        Some(Http1::new(stream).ok()?.reader)
    }
}
