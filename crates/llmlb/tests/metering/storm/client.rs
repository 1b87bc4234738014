//! A client that asks for anything, and sometimes does not wait for the end.

use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use serde_json::json;

use crate::answers::questions;
use crate::http::{Connection, Head};
use crate::random::Random;

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
    pub(super) fn ask(&mut self) -> Vec<(String, Sent)> {
        let fate = match self.random.below(100) {
            0..10 => Fate::Leave,
            10..15 => Fate::Cut,
            _ => Fate::Answer,
        };
        let mut all = questions();
        let choice = self.random.below(all.len() as u64);
        let (path, api, mut question) = all.swap_remove(usize::try_from(choice).unwrap());
        let is_stream = api != "embeddings" && self.random.below(2) == 0;
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
            let saw = self.send(&id, path, &body, fate);
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
            if is_over {
                return tries;
            }
            // The server is being started again.
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn send(&mut self, id: &str, path: &str, body: &str, fate: Fate) -> Saw {
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
            return self.leave(connection);
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

    /// Leaves at once, or after something of the answer.
    fn leave(&mut self, mut connection: BufReader<TcpStream>) -> Saw {
        let most = self.random.below(4) * 300;
        let mut buffer = vec![0; usize::try_from(most).unwrap()];
        // The head and some of what follows.
        if most > 0 && connection.read(&mut buffer).is_ok_and(|count| count == 0) {
            return Saw::Nothing;
        }
        Saw::Left
    }

    /// The connection of the last request, if that may be used again, or a new one.
    fn connected(&mut self) -> Option<BufReader<TcpStream>> {
        if let Some(connection) = self.connection.take() {
            return Some(connection);
        }
        let stream = TcpStream::connect(self.address).ok()?;
        Some(Connection::over(stream).reader)
    }
}
