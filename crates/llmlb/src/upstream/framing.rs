//! Finds the end of a response body (RFC 9112, section 6). It does no I/O, so that it can be tested
//! and fuzzed with any split of the bytes.

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;

use super::head;

/// Maximum length of a line with the size of a chunk. Extensions on the line are ignored, but they
/// must not use up memory.
const MAX_SIZE_LINE: usize = 1024;
/// Maximum number of bytes that are buffered while the end of a chunked response's trailers is
/// awaited. Beyond it the response is invalid.
const MAX_TRAILERS: usize = 16 << 10;

/// Rule for the end of a body, and the state of reading it.
#[derive(Debug)]
pub(super) enum Framing {
    /// The body has a Content-Length. The number counts the body bytes that are not read yet.
    Length(u64),
    Chunked(Chunk),
    /// The body ends when the backend closes the connection.
    UntilClose,
    Ended,
}

/// Part of a chunked body that is expected next.
#[derive(Debug)]
pub(super) enum Chunk {
    Size,
    Data(u64),
    LineEnd,
    Trailers,
}

/// Next piece of a response body, parsed from the bytes that were received so far.
#[derive(Debug)]
pub(super) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    /// More bytes of the response are needed.
    More,
}

impl Framing {
    pub(super) fn is_ended(&self) -> bool {
        matches!(self, Self::Ended | Self::Length(0))
    }

    /// Returns the number of body bytes that are not read yet; `None` if the length of the body is
    /// not known in advance.
    pub(super) fn remaining(&self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(*left),
            Self::Ended => Some(0),
            Self::Chunked(_) | Self::UntilClose => None,
        }
    }

    /// Returns the next piece of the body. All buffered chunks are joined into one piece, for fewer
    /// and larger writes to the client.
    pub(super) fn next(&mut self, inbox: &mut BytesMut) -> Result<Piece, String> {
        match self {
            Self::Ended | Self::Length(0) => Ok(Piece::End),
            _ if inbox.is_empty() => Ok(Piece::More),
            Self::UntilClose => Ok(Piece::Data(inbox.split().freeze())),
            Self::Length(left) => {
                let available = usize::try_from(*left)
                    .unwrap_or(usize::MAX)
                    .min(inbox.len());
                *left -= available as u64;
                Ok(Piece::Data(inbox.split_to(available).freeze()))
            }
            Self::Chunked(chunk) => {
                let mut piece = chunks(chunk, inbox)?;
                // The chunk of size 0 may have arrived without data in front of it. Parse the
                // trailers now, since no further bytes may follow.
                let is_empty = matches!(&piece, Piece::Data(data) if data.is_empty());
                if is_empty && matches!(chunk, Chunk::Trailers) {
                    piece = trailers(inbox)?;
                }
                if let Piece::Trailers(fields) = piece {
                    *self = Self::Ended;
                    return Ok(if fields.is_empty() {
                        Piece::End
                    } else {
                        Piece::Trailers(fields)
                    });
                }
                // The end of the body often arrives together with its last data. Recognize it at
                // once, so that no further read is needed.
                if matches!(chunk, Chunk::Trailers) && inbox.starts_with(b"\r\n") {
                    inbox.advance(2);
                    *self = Self::Ended;
                }
                Ok(match piece {
                    Piece::Data(data) if data.is_empty() && self.is_ended() => Piece::End,
                    Piece::Data(data) if data.is_empty() => Piece::More,
                    piece => piece,
                })
            }
        }
    }
}

/// Joins the data of all buffered chunks in place, without a further buffer.
fn chunks(chunk: &mut Chunk, inbox: &mut BytesMut) -> Result<Piece, String> {
    if matches!(chunk, Chunk::Trailers) {
        return trailers(inbox);
    }
    // Data is collected in `start..end` of the buffer; `read` is the end of the input that was
    // parsed.
    let (mut start, mut end, mut read) = (0, 0, 0);
    loop {
        match chunk {
            Chunk::Size => match size_line(&inbox[read..])? {
                Some((0, line)) => {
                    read += line;
                    *chunk = Chunk::Trailers;
                    break;
                }
                Some((size, line)) => {
                    read += line;
                    *chunk = Chunk::Data(size);
                }
                None => break,
            },
            Chunk::Data(left) => {
                let available = usize::try_from(*left).unwrap_or(usize::MAX);
                let available = available.min(inbox.len() - read);
                if available == 0 {
                    break;
                }
                if start == end {
                    (start, end) = (read, read);
                }
                if end < read {
                    inbox.copy_within(read..read + available, end);
                }
                (end, read) = (end + available, read + available);
                *left -= available as u64;
                if *left == 0 {
                    *chunk = Chunk::LineEnd;
                }
            }
            Chunk::LineEnd => match inbox.get(read..read + 2) {
                Some(b"\r\n") => {
                    read += 2;
                    *chunk = Chunk::Size;
                }
                Some(_) => return Err("a chunk is longer than its announced size".to_owned()),
                None => break,
            },
            Chunk::Trailers => break,
        }
    }
    inbox.advance(start);
    let data = inbox.split_to(end - start).freeze();
    inbox.advance(read - end);
    Ok(Piece::Data(data))
}

/// Parses the line with the size of a chunk. Returns the size and the length of the line; `None` if
/// the line is incomplete.
fn size_line(bytes: &[u8]) -> Result<Option<(u64, usize)>, String> {
    let bad = || "a chunk of the response has no valid size".to_owned();
    let Some(line_end) = memchr::memchr(b'\n', &bytes[..bytes.len().min(MAX_SIZE_LINE)]) else {
        return if bytes.len() >= MAX_SIZE_LINE {
            Err(bad())
        } else {
            Ok(None)
        };
    };
    let line = bytes[..line_end].strip_suffix(b"\r").ok_or_else(bad)?;
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit());
    let digits = digits.count();
    // Reject sizes with sixteen or more digits, which could overflow later additions.
    if digits == 0 || digits > 15 {
        return Err(bad());
    }
    if !matches!(line.get(digits), None | Some(b';' | b' ' | b'\t')) {
        return Err(bad());
    }
    let size = std::str::from_utf8(&line[..digits])
        .ok()
        .and_then(|text| u64::from_str_radix(text, 16).ok())
        .ok_or_else(bad)?;
    Ok(Some((size, line_end + 1)))
}

/// Parses the trailers behind the last chunk; `None` if they are incomplete.
fn trailers(inbox: &mut BytesMut) -> Result<Piece, String> {
    if inbox.starts_with(b"\r\n") {
        inbox.advance(2);
        return Ok(Piece::Trailers(HeaderMap::new()));
    }
    let Some(end) = memchr::memmem::find(inbox, b"\r\n\r\n") else {
        return if inbox.len() > MAX_TRAILERS {
            Err("the trailers of the response are too long".to_owned())
        } else {
            Ok(Piece::More)
        };
    };
    let lines = inbox.split_to(end + 4).freeze();
    head::trailers(&lines).map(Piece::Trailers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        mut framing: Framing,
        input: &[u8],
        step: usize,
    ) -> Result<(String, Option<HeaderMap>), String> {
        let (mut inbox, mut out, mut fields) = (BytesMut::new(), Vec::new(), None);
        for part in input.chunks(step) {
            inbox.extend_from_slice(part);
            loop {
                match framing.next(&mut inbox)? {
                    Piece::Data(data) => {
                        assert!(!data.is_empty());
                        out.extend_from_slice(&data);
                    }
                    Piece::Trailers(found) => fields = Some(found),
                    Piece::End | Piece::More => break,
                }
            }
        }
        if !framing.is_ended() {
            return Err("no end".to_owned());
        }
        assert!(inbox.is_empty());
        Ok((String::from_utf8(out).unwrap(), fields))
    }

    fn chunked() -> Framing {
        Framing::Chunked(Chunk::Size)
    }

    #[test]
    fn chunked_body_is_read_the_same_however_the_input_is_split() {
        let input = b"5\r\nhello\r\nA;ext=1\r\n, world!!!\r\n1 \r\n.\r\n0\r\n\r\n";
        for step in 1..=input.len() {
            let (text, fields) = read(chunked(), input, step).unwrap();
            assert_eq!((text.as_str(), fields), ("hello, world!!!.", None));
        }
    }

    #[test]
    fn buffered_chunks_are_joined_and_their_end_is_recognized() {
        let mut framing = chunked();
        let mut inbox = BytesMut::from(&b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"[..]);
        let Ok(Piece::Data(data)) = framing.next(&mut inbox) else {
            panic!("data was expected");
        };
        assert_eq!(&data[..], b"abcde");
        assert!(framing.is_ended() && inbox.is_empty());
    }

    #[test]
    fn trailers_are_read() {
        let input = b"1\r\na\r\n0\r\nx-sum: 1\r\nx-sum: 2\r\n\r\n";
        for step in 1..=input.len() {
            let (text, fields) = read(chunked(), input, step).unwrap();
            assert_eq!(text, "a");
            assert_eq!(fields.unwrap().get_all("x-sum").iter().count(), 2);
        }
    }

    #[test]
    fn trailers_that_arrive_without_data_end_the_body_at_once() {
        for input in [&b"0\r\nx-sum: 1\r\n\r\n"[..], b"0\r\n\r\n"] {
            let (text, fields) = read(chunked(), input, input.len()).unwrap();
            assert_eq!((text.as_str(), fields.is_some()), ("", input.len() > 5));
        }
    }

    #[test]
    fn trailers_with_bare_line_feeds_are_rejected() {
        for input in [
            &b"0\r\n\nx-sum: 1\r\n\r\n"[..],
            b"0\r\nx: 1\n\ny: 2\r\n\r\n",
        ] {
            for step in 1..=input.len() {
                assert!(read(chunked(), input, step).is_err(), "{input:?}");
            }
        }
    }

    #[test]
    fn invalid_chunks_are_rejected() {
        for input in [
            &b"x\r\n"[..],
            b"\r\n",
            b"-1\r\n",
            b"5\nhello\r\n",
            b"3\r\nabcd\r\n",
            b"3x\r\nabc\r\n",
            b"fffffffffffffffff\r\n",
            b"0\r\nno field\r\n\r\n",
        ] {
            let read = read(chunked(), input, input.len());
            assert!(read.is_err(), "{input:?}: {read:?}");
        }
        assert!(read(chunked(), &[b'0'; 2000], 100).is_err());
    }

    #[test]
    fn body_with_a_length_ends_after_that_many_bytes() {
        for step in 1..6 {
            let (text, _) = read(Framing::Length(5), b"hello", step).unwrap();
            assert_eq!(text, "hello");
        }
        let mut framing = Framing::Length(2);
        let mut inbox = BytesMut::from(&b"abc"[..]);
        assert!(matches!(framing.next(&mut inbox), Ok(Piece::Data(_))));
        assert!(framing.is_ended());
        assert_eq!(&inbox[..], b"c");
    }
}
