//! A lease in Redis as it is often written, wrong on purpose: `SET NX PX`, no renewal, and a release
//! that deletes the key without a comparison of its owner. The witness must detect it.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A lease in Redis with the faults of the naive algorithm: no renewal, and no comparison of the
/// owner on deletion.
#[derive(Debug)]
pub struct NaiveLease {
    connection: TcpStream,
    token: u64,
    deadline: Duration,
    ttl: Duration,
}

impl NaiveLease {
    /// Tries to acquire the lease in the Redis server at `redis://HOST:PORT`. The error is an empty
    /// text if another process holds the lease.
    pub fn acquire(url: &str, ttl: Duration) -> Result<Self, String> {
        let address = url.trim_start_matches("redis://");
        let sent = tenure::boot_time();
        let mut connection = TcpStream::connect(address).map_err(|error| error.to_string())?;
        let millis = ttl.as_millis().to_string();
        let set = command(&mut connection, &["SET", "naive", "x", "NX", "PX", &millis]);
        if !set.starts_with("+OK") {
            return Err(String::new());
        }
        let token = command(&mut connection, &["INCR", "naive-token"]);
        Ok(Self {
            connection,
            token: token.trim_start_matches(':').trim().parse().unwrap_or(0),
            deadline: sent + ttl,
            ttl,
        })
    }

    /// Number of this acquisition, from a counter in Redis. It takes the place of a fencing token.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// TTL of the lease.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// True if the TTL has passed since the acquisition, as the lease is not renewed.
    pub fn is_lost(&self) -> bool {
        tenure::boot_time() >= self.deadline
    }

    /// Deletes the lease without checking its owner: wrong on purpose, since the lease may have
    /// expired and belong to another process.
    pub fn delete_unchecked(mut self) {
        command(&mut self.connection, &["DEL", "naive"]);
    }
}

/// Sends a command to Redis and returns the beginning of the response; empty if the connection
/// failed.
fn command(connection: &mut TcpStream, words: &[&str]) -> String {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        let _ = write!(text, "${}\r\n{word}\r\n", word.len());
    }
    let mut reply = [0; 512];
    let length = connection
        .write_all(text.as_bytes())
        .and_then(|()| connection.read(&mut reply))
        .unwrap_or(0);
    String::from_utf8_lossy(&reply[..length]).into_owned()
}
