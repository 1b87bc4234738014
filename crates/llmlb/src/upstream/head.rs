//! Parses the head of a backend's response, and determines how its body ends.

use std::mem::MaybeUninit;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};

use super::framing::{Chunk, Framing};
use crate::headers::is_removed_from_responses;

const MAX_BYTES: usize = 64 << 10;
/// Maximum number of header fields of a response. A response with more is invalid, so that a
/// backend cannot use up memory.
const MAX_FIELDS: usize = 128;

/// Head of a response, without the fields that are not sent to clients.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
}

#[derive(Debug)]
pub(super) struct ParsedHead {
    pub(super) head: Head,
    pub(super) framing: Framing,
    /// True if another request may follow on this connection after the response.
    pub(super) reusable: bool,
}

#[derive(Clone, Copy)]
struct FieldRange {
    name: (usize, usize),
    value: (usize, usize),
}

/// Parses a response head and removes it from the inbox; `None` if it is incomplete.
pub(super) fn parse(inbox: &mut BytesMut, method: &Method) -> Result<Option<ParsedHead>, String> {
    let mut fields = [const { MaybeUninit::uninit() }; MAX_FIELDS];
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut response,
        inbox,
        &mut fields,
    );
    let length = match parsed {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) if inbox.len() > MAX_BYTES => {
            return Err(format!(
                "the response head is longer than {} KiB",
                MAX_BYTES >> 10
            ));
        }
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(format!("the response is not valid HTTP ({error})")),
    };
    let status = response
        .code
        .and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or("the response has no valid status")?;
    let is_11 = response.version == Some(1);
    let origin = inbox.as_ptr() as usize;
    let range = |part: &[u8]| {
        let start = part.as_ptr() as usize - origin;
        (start, start + part.len())
    };
    let ranges = response.headers.iter().map(|field| FieldRange {
        name: range(field.name.as_bytes()),
        value: range(field.value),
    });
    let ranges: Vec<_> = ranges.collect();
    let bytes = inbox.split_to(length).freeze();
    let (headers, connection) = collect(&bytes, &ranges)?;
    let framing = if has_no_body(method, status) {
        Framing::Ended
    } else {
        connection.framing(&headers)?
    };
    let mut head = Head { status, headers };
    let is_certain = connection.has_certain_end(&framing, &head.headers, is_11);
    if connection.chunked {
        // The chunks determine the end of the body. Remove the Content-Length, because a client
        // must not see a contradicting length.
        head.headers.remove(header::CONTENT_LENGTH);
    }
    let reusable = connection.stays_open(is_11) && is_certain;
    Ok(Some(ParsedHead {
        head,
        framing,
        reusable,
    }))
}

/// Values of the fields `Connection` and `Transfer-Encoding` of a response head. They determine
/// where the body ends, and if the connection may be reused.
#[derive(Debug, Default)]
struct ConnectionFields {
    close: bool,
    keep_alive: bool,
    chunked: bool,
}

impl ConnectionFields {
    fn framing(&self, headers: &HeaderMap) -> Result<Framing, String> {
        if self.chunked {
            return Ok(Framing::Chunked(Chunk::Size));
        }
        let mut length = None;
        for value in headers.get_all(header::CONTENT_LENGTH) {
            let announced = content_length(value.as_bytes())
                .ok_or("the content-length of the response is not a number")?;
            if length.is_some_and(|before| before != announced) {
                return Err("the response has two different content-lengths".to_owned());
            }
            length = Some(announced);
        }
        Ok(length.map_or(Framing::UntilClose, Framing::Length))
    }

    fn stays_open(&self, is_11: bool) -> bool {
        !self.close && (is_11 || self.keep_alive)
    }

    /// True if the end of the response is unambiguous. Otherwise bytes that the backend sends as part of this
    /// response could be parsed as the next response, which another client would receive.
    fn has_certain_end(&self, framing: &Framing, headers: &HeaderMap, is_11: bool) -> bool {
        match framing {
            Framing::UntilClose => false,
            // HTTP/1.0 has no chunks, and a length besides chunks is a sign of smuggling. Do not
            // reuse the connection in either case.
            Framing::Chunked(_) => is_11 && !headers.contains_key(header::CONTENT_LENGTH),
            Framing::Length(_) => true,
            // The response has no body: its status is 204 or 304, or the request is a HEAD. If its
            // head announces a body, the backend may send one, so the connection must not be
            // reused.
            Framing::Ended => {
                let lengths = headers.get_all(header::CONTENT_LENGTH);
                !self.chunked && lengths.iter().all(|length| length == "0")
            }
        }
    }
}

fn content_length(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(value).ok()?.parse().ok())?
}

fn has_no_body(method: &Method, status: StatusCode) -> bool {
    *method == Method::HEAD
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED
}

/// Returns the header fields for the client, and separately those that concern the connection to
/// the backend.
fn collect(bytes: &Bytes, ranges: &[FieldRange]) -> Result<(HeaderMap, ConnectionFields), String> {
    let mut headers = HeaderMap::with_capacity(ranges.len() + 4);
    let mut connection = ConnectionFields::default();
    let mut named: Vec<HeaderName> = Vec::new();
    for range in ranges {
        let name = HeaderName::from_bytes(&bytes[range.name.0..range.name.1])
            .map_err(|_| "a header field of the response has no valid name")?;
        let value = bytes.slice(range.value.0..range.value.1);
        if name == header::CONNECTION {
            for token in value.split(|byte| *byte == b',') {
                let token = token.trim_ascii();
                if token.eq_ignore_ascii_case(b"close") {
                    connection.close = true;
                } else if token.eq_ignore_ascii_case(b"keep-alive") {
                    connection.keep_alive = true;
                } else if let Ok(name) = HeaderName::from_bytes(token) {
                    named.push(name);
                }
            }
        } else if name == header::TRANSFER_ENCODING {
            // Reject every transfer coding except a single `chunked`. llmlb could neither find the
            // end of such a body nor forward the body.
            if connection.chunked || !value.trim_ascii().eq_ignore_ascii_case(b"chunked") {
                return Err("the response has an unknown transfer coding".to_owned());
            }
            connection.chunked = true;
        } else if !is_removed_from_responses(name.as_str()) {
            let value = HeaderValue::from_maybe_shared(value)
                .map_err(|_| "a header field of the response has no valid value")?;
            headers.append(name, value);
        }
    }
    for name in named {
        // Ignore `Content-Length` and `Content-Type` in `Connection`, because the client needs them
        // to read the body.
        if name != header::CONTENT_LENGTH && name != header::CONTENT_TYPE {
            headers.remove(name);
        }
    }
    Ok((headers, connection))
}

/// Parses trailers up to and including the empty line at their end.
pub(super) fn trailers(lines: &Bytes) -> Result<HeaderMap, String> {
    let mut fields = [httparse::EMPTY_HEADER; 32];
    let bad = || "the trailers of the response are not valid".to_owned();
    let fields = match httparse::parse_headers(lines, &mut fields) {
        Ok(httparse::Status::Complete((length, fields))) if length == lines.len() => fields,
        _ => return Err(bad()),
    };
    let mut trailers = HeaderMap::new();
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| bad())?;
        let value = HeaderValue::from_bytes(field.value).map_err(|_| bad())?;
        let frames = [
            header::CONNECTION,
            header::CONTENT_LENGTH,
            header::TRANSFER_ENCODING,
        ];
        if !is_removed_from_responses(name.as_str()) && !frames.contains(&name) {
            trailers.append(name, value);
        }
    }
    Ok(trailers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<ParsedHead>, String> {
        parse(&mut BytesMut::from(text.as_bytes()), &Method::POST)
    }

    fn framing(text: &str) -> String {
        match read(text) {
            Ok(Some(parsed)) => {
                let end = match parsed.framing {
                    Framing::Length(length) => length.to_string(),
                    Framing::Chunked(_) => "chunked".to_owned(),
                    Framing::UntilClose => "until close".to_owned(),
                    Framing::Ended => "none".to_owned(),
                };
                let after = if parsed.reusable { "kept" } else { "closed" };
                format!("{end}, {after}")
            }
            Ok(None) => "more".to_owned(),
            Err(error) => error,
        }
    }

    #[test]
    fn end_of_the_body_is_determined_as_in_rfc_9112() {
        for (text, expected) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", "5, kept"),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\n",
                "5, kept",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
                "chunked, kept",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\ncontent-length: 5\r\n\r\n",
                "chunked, closed",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
                "the response has an unknown transfer coding",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
                "the response has an unknown transfer coding",
            ),
            (
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
                "the response has an unknown transfer coding",
            ),
            (
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
                "0, closed",
            ),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n", "5, closed"),
            (
                "HTTP/1.0 200 OK\r\nconnection: Keep-Alive\r\ncontent-length: 5\r\n\r\n",
                "5, kept",
            ),
            ("HTTP/1.1 200 OK\r\n\r\n", "until close, closed"),
            ("HTTP/1.1 204 X\r\n\r\n", "none, kept"),
            ("HTTP/1.1 204 X\r\ncontent-length: 0\r\n\r\n", "none, kept"),
            (
                "HTTP/1.1 204 X\r\ncontent-length: 5\r\n\r\n",
                "none, closed",
            ),
            (
                "HTTP/1.1 204 X\r\ncontent-length: 0\r\ncontent-length: 5\r\n\r\n",
                "none, closed",
            ),
            (
                "HTTP/1.1 204 X\r\ntransfer-encoding: chunked\r\n\r\n",
                "none, closed",
            ),
            (
                "HTTP/1.1 304 X\r\ncontent-length: 5\r\n\r\n",
                "none, closed",
            ),
            (
                "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ntransfer-encoding: chunked\r\n\r\n",
                "chunked, closed",
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
                "the response has two different content-lengths",
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
                "the content-length of the response is not a number",
            ),
            (
                "HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\n",
                "the content-length of the response is not a number",
            ),
            ("HTTP/1.1 200 OK\r\ncontent-le", "more"),
        ] {
            assert_eq!(framing(text), expected, "{text}");
        }
        let head = parse(
            &mut BytesMut::from("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
            &Method::HEAD,
        );
        let head = head.unwrap().unwrap();
        assert!(head.framing.is_ended() && !head.reusable);
    }

    #[test]
    fn response_that_is_not_http_is_rejected() {
        for text in [
            "SSH-2.0-OpenSSH\r\n",
            "HTTP/1.1 2000 X\r\n\r\n",
            "HTTP/1.1 200 OK\r\na b: c\r\n\r\n",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        let long = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(70_000));
        assert!(read(&long).is_err());
    }

    #[test]
    fn fields_of_the_connection_and_cookies_are_removed() {
        let text = "HTTP/1.1 200 OK\r\nconnection: x-private, content-length\r\nx-private: 1\r\n\
                    keep-alive: timeout=5\r\nproxy-connection: a\r\nproxy-authenticate: b\r\n\
                    upgrade: h2c\r\nset-cookie: a=1\r\nx-many: 1\r\nx-many: 2\r\ncontent-length: 3\r\n\r\nabc";
        let head = read(text).unwrap().unwrap().head;
        let names: Vec<_> = head.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["content-length", "x-many"]);
        assert_eq!(head.headers.get_all("x-many").iter().count(), 2);
        let text = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n";
        assert!(read(text).unwrap().unwrap().head.headers.is_empty());
    }
}
