//! Fuzz targets for the parsers of backend responses.

#![expect(
    clippy::missing_panics_doc,
    reason = "a panic is how a fuzz target reports a broken property"
)]

use bytes::BytesMut;
use http::{HeaderMap, Method};

use super::framing::{Chunk, Framing, Piece};
use super::head;
use crate::dice::split;

/// Fuzz target: a response head is parsed only when it is complete, and the parsed head contains no
/// field that concerns the connection.
pub fn response_head(data: &[u8]) {
    let mut inbox = BytesMut::from(data);
    let Ok(Some(parsed)) = head::parse(&mut inbox, &Method::POST) else {
        return;
    };
    let length = data.len() - inbox.len();
    for field in [
        "connection",
        "transfer-encoding",
        "set-cookie",
        "keep-alive",
    ] {
        assert!(!parsed.head.headers.contains_key(field), "{field}");
    }
    let is_until_close = matches!(parsed.framing, Framing::UntilClose);
    assert!(!parsed.reusable || !is_until_close);
    let lengths = parsed.head.headers.get_all("content-length").iter();
    if let Framing::Length(expected) = parsed.framing {
        for length in lengths {
            assert_eq!(
                length.to_str().ok().and_then(|text| text.parse().ok()),
                Some(expected)
            );
        }
    }
    let step = 1 + length / 64;
    for cut in (0..length).step_by(step) {
        let mut part = BytesMut::from(&data[..cut]);
        let is_partial = matches!(head::parse(&mut part, &Method::POST), Ok(None));
        assert!(
            is_partial && part.len() == cut,
            "a head of {cut} bytes is not partial"
        );
    }
    let mut again = BytesMut::from(&data[..length]);
    let again = head::parse(&mut again, &Method::POST).ok().flatten();
    assert!(again.is_some_and(|again| again.head.headers == parsed.head.headers));
}

type ChunkedBody = (Vec<u8>, Option<HeaderMap>, Vec<u8>);

fn read(pieces: &[&[u8]]) -> Option<ChunkedBody> {
    let mut framing = Framing::Chunked(Chunk::Size);
    let (mut inbox, mut out, mut trailers) = (BytesMut::new(), Vec::new(), None);
    for piece in pieces {
        inbox.extend_from_slice(piece);
        loop {
            match framing.next(&mut inbox).ok()? {
                Piece::Data(data) => {
                    assert!(!data.is_empty());
                    out.extend_from_slice(&data);
                }
                Piece::Trailers(fields) => trailers = Some(fields),
                Piece::End | Piece::More => break,
            }
        }
    }
    framing.is_ended().then(|| (out, trailers, inbox.to_vec()))
}

/// Reference implementation of RFC 9112 for a chunked body, with which the product's parser is
/// compared.
fn reference(mut data: &[u8]) -> Option<(Vec<u8>, usize)> {
    let mut out = Vec::new();
    loop {
        let line = memchr::memmem::find(data, b"\r\n")?;
        let digits = data[..line]
            .iter()
            .take_while(|byte| byte.is_ascii_hexdigit());
        let size = std::str::from_utf8(&data[..digits.count()]).ok()?;
        let size = usize::from_str_radix(size, 16).ok()?;
        data = &data[line + 2..];
        if size == 0 {
            break;
        }
        out.extend_from_slice(data.get(..size)?);
        data = data[size..].strip_prefix(b"\r\n")?;
    }
    let end = match data {
        [b'\r', b'\n', ..] => 2,
        _ => memchr::memmem::find(data, b"\r\n\r\n")? + 4,
    };
    Some((out, data.len() - end))
}

/// Fuzz target: a chunked body ends where RFC 9112 defines, however it is split. Otherwise a client
/// could receive bytes of another response.
pub fn chunks(data: &[u8]) {
    let whole = read(&[data]);
    for pieces in split(data) {
        assert_eq!(read(&pieces), whole, "{pieces:?}");
    }
    if let Some((body, _, after)) = whole {
        assert_eq!(reference(data), Some((body, after.len())));
    }
}
