//! Reads heads, chunks and bodies of HTTP/1.1 messages up to their ends.

use std::io::{self, BufRead, Read};

use crate::message::Head;

/// Meaning of a body without a length and without chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unframed {
    /// The message has no body. This is the rule for requests.
    Empty,
    /// The body ends when the connection is closed. This is the rule for responses.
    ToEnd,
}

/// Reads a head; `None` if the connection ends before the head is complete.
pub(crate) fn read_head(from: &mut impl BufRead) -> io::Result<Option<Head>> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        if from.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(Head::parse(&bytes[..bytes.len() - 4])))
}

/// Reads the body that belongs to a head, without its framing. After an error, `body` has the part
/// that was received.
pub(crate) fn read_body(
    head: &Head,
    unframed: Unframed,
    from: &mut impl BufRead,
    body: &mut Vec<u8>,
) -> io::Result<()> {
    if matches!(head.status(), 101 | 204 | 304) {
        return Ok(());
    }
    if head.is_chunked() {
        while let Some(chunk) = read_chunk(from)? {
            body.extend(chunk);
        }
        return Ok(());
    }
    match head.content_length() {
        Some(length) => exactly(length, from, body),
        None if unframed == Unframed::ToEnd => from.read_to_end(body).map(drop),
        None => Ok(()),
    }
}

/// Reads a chunk. Returns `None` for the last chunk, whose trailers are read and dropped.
pub(crate) fn read_chunk(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let line = read_line(from)?;
    let size = line.split(';').next().unwrap_or_default().trim();
    let size = usize::from_str_radix(size, 16)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "chunk size"))?;
    if size == 0 {
        while !read_line(from)?.is_empty() {}
        return Ok(None);
    }
    let mut chunk = Vec::new();
    exactly(size, from, &mut chunk)?;
    from.read_exact(&mut [0; 2])?;
    Ok(Some(chunk))
}

fn exactly(count: usize, from: &mut impl BufRead, to: &mut Vec<u8>) -> io::Result<()> {
    let count = count as u64;
    if from.take(count).read_to_end(to)? as u64 == count {
        return Ok(());
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    let line = line.strip_suffix(b"\r\n");
    let line = line.ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(String::from_utf8_lossy(line).into_owned())
}
