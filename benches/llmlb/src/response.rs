//! Parsing of responses by the load generator.

use memchr::memmem;

use crate::request::{decimal, header};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Head,
    Length(usize),
    ChunkSize,
    Chunk(usize),
    Trailer,
    Done,
}

/// A response that is parsed as it arrives.
pub struct Response {
    /// Bytes that arrived. They are parsed up to `at`.
    pub raw: Vec<u8>,
    at: usize,
    stage: Stage,
    pub status: u16,
    /// True if the server closes the connection after this response.
    pub closes: bool,
    pub body: Vec<u8>,
}

impl Default for Response {
    fn default() -> Self {
        Self {
            raw: Vec::new(),
            at: 0,
            stage: Stage::Head,
            status: 0,
            closes: false,
            body: Vec::new(),
        }
    }
}

impl Response {
    /// Resets the parser for the next response.
    pub fn clear(&mut self) {
        self.raw.clear();
        self.body.clear();
        self.at = 0;
        self.stage = Stage::Head;
    }

    /// Parses the bytes that arrived. Returns true if the response is complete.
    pub fn advance(&mut self) -> Result<bool, String> {
        loop {
            let rest = &self.raw[self.at..];
            match self.stage {
                Stage::Head => {
                    let Some(end) = memmem::find(rest, b"\r\n\r\n") else {
                        return Ok(false);
                    };
                    let head = &rest[..end + 2];
                    if !head.starts_with(b"HTTP/1.1 ") {
                        return Err("not an HTTP response".into());
                    }
                    self.status = u16::try_from(decimal(&head[9..12])).unwrap_or(0);
                    self.closes = header(head, b"connection")
                        .is_some_and(|value| value.eq_ignore_ascii_case(b"close"));
                    self.stage = match header(head, b"content-length") {
                        Some(length) => Stage::Length(decimal(length)),
                        None if header(head, b"transfer-encoding").is_some() => Stage::ChunkSize,
                        None => return Err("a response without a length".into()),
                    };
                    self.at += end + 4;
                }
                Stage::Length(length) => {
                    if rest.len() < length {
                        return Ok(false);
                    }
                    self.body.extend_from_slice(&rest[..length]);
                    self.at += length;
                    self.stage = Stage::Done;
                }
                Stage::ChunkSize => {
                    let Some(end) = memmem::find(rest, b"\r\n") else {
                        return Ok(false);
                    };
                    let size = std::str::from_utf8(&rest[..end])
                        .ok()
                        .and_then(|size| usize::from_str_radix(size, 16).ok())
                        .ok_or("a chunk without a size")?;
                    self.at += end + 2;
                    self.stage = if size == 0 {
                        Stage::Trailer
                    } else {
                        Stage::Chunk(size)
                    };
                }
                Stage::Chunk(size) => {
                    let Some(chunk) = rest.get(..size + 2) else {
                        return Ok(false);
                    };
                    if !chunk.ends_with(b"\r\n") {
                        return Err("a chunk without an end".into());
                    }
                    self.body.extend_from_slice(&chunk[..size]);
                    self.at += size + 2;
                    self.stage = Stage::ChunkSize;
                }
                Stage::Trailer => {
                    let Some(end) = memmem::find(rest, b"\r\n") else {
                        return Ok(false);
                    };
                    self.at += end + 2;
                    if end == 0 {
                        self.stage = Stage::Done;
                    }
                }
                Stage::Done if rest.is_empty() => return Ok(true),
                Stage::Done => return Err("more bytes than announced".into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n";

    #[test]
    fn chunks_are_joined_when_they_arrive_byte_by_byte() {
        let mut response = Response::default();
        for (n, byte) in CHUNKED.iter().enumerate() {
            response.raw.push(*byte);
            assert_eq!(response.advance(), Ok(n + 1 == CHUNKED.len()));
        }
        assert_eq!(
            (response.status, &response.body[..]),
            (200, &b"abc0123456789"[..])
        );
    }

    #[test]
    fn bytes_after_the_end_of_a_response_are_an_error() {
        let mut response = Response::default();
        response.raw.extend_from_slice(CHUNKED);
        response.raw.push(b'x');
        assert!(response.advance().is_err());
    }
}
