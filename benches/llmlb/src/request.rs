//! Parsing of requests by the mock backend, limited to the fields that it needs.

use memchr::memmem;

use crate::answer::Model;

/// Bytes at each end of a body that are searched: the fields precede or follow the prompt.
const SEARCHED: usize = 512;

/// Content of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Ask {
    Models,
    Whole(Model),
    Stream { model: Model, usage: bool },
    Unknown,
}

/// A request at the start of some bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The request is incomplete, and has at least this many bytes.
    Partial(usize),
    /// The request is complete, and has this many bytes.
    Whole(Ask, usize),
}

/// Parses the request at the start of the bytes.
pub fn parse(bytes: &[u8]) -> Parsed {
    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else {
        return Parsed::Partial(0);
    };
    let head = &bytes[..end + 2];
    let body_at = end + 4;
    let length = header(head, b"content-length").map_or(0, decimal);
    let Some(body) = bytes.get(body_at..body_at + length) else {
        return Parsed::Partial(body_at + length);
    };
    let ask = if head.starts_with(b"GET /v1/models ") {
        Ask::Models
    } else if head.starts_with(b"POST /v1/chat/completions ")
        && header(head, b"transfer-encoding").is_none()
    {
        chat(body)
    } else {
        Ask::Unknown
    };
    Parsed::Whole(ask, body_at + length)
}

fn chat(body: &[u8]) -> Ask {
    let Some(model) = value(body, b"\"model\"").and_then(|name| {
        Model::ALL.into_iter().find(|model| {
            name.strip_prefix(b"\"")
                .is_some_and(|name| name.starts_with(model.name().as_bytes()))
        })
    }) else {
        return Ask::Unknown;
    };
    let is_set = |name: &[u8]| value(body, name).is_some_and(|value| value.starts_with(b"true"));
    if is_set(b"\"stream\"") {
        let usage = is_set(b"\"include_usage\"");
        Ask::Stream { model, usage }
    } else {
        Ask::Whole(model)
    }
}

/// Returns the text after the name and its colon, near either end of the body.
fn value<'a>(body: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let ends = [
        &body[body.len().saturating_sub(SEARCHED)..],
        &body[..body.len().min(SEARCHED)],
    ];
    ends.into_iter().find_map(|part| {
        let after = memmem::find(part, name)? + name.len();
        let value = part[after..].trim_ascii_start().strip_prefix(b":")?;
        Some(value.trim_ascii_start())
    })
}

/// Returns the value of a header, whose name is in lower case.
pub fn header<'a>(head: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let mut from = 0;
    while let Some(end) = memchr::memchr(b'\n', &head[from..]) {
        let line = &head[from..from + end];
        if line.len() > name.len()
            && line[name.len()] == b':'
            && line[..name.len()].eq_ignore_ascii_case(name)
        {
            return Some(line[name.len() + 1..].trim_ascii());
        }
        from += end + 1;
    }
    None
}

/// Parses a decimal number. Returns 0 for any other text.
pub fn decimal(digits: &[u8]) -> usize {
    std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &str) -> Parsed {
        let length = body.len();
        let head =
            format!("POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {length}\r\n\r\n");
        parse((head + body).as_bytes())
    }

    #[test]
    fn fields_are_found_in_front_of_and_behind_the_prompt() {
        let long = "x".repeat(5000);
        let expected = Ask::Stream {
            model: Model::Paced,
            usage: true,
        };
        for body in [
            format!(
                r#"{{"messages":"{long}","model":"paced","stream":true,"stream_options":{{"include_usage":true}}}}"#
            ),
            format!(
                r#"{{"stream_options": {{"include_usage": true}}, "model": "paced", "stream": true, "messages":"{long}"}}"#
            ),
        ] {
            assert!(matches!(chat(&body), Parsed::Whole(ask, _) if ask == expected));
        }
        assert!(matches!(
            chat(r#"{"model":"burst"}"#),
            Parsed::Whole(Ask::Whole(Model::Burst), _)
        ));
        assert!(matches!(
            chat(r#"{"model":"other"}"#),
            Parsed::Whole(Ask::Unknown, _)
        ));
    }

    #[test]
    fn incomplete_request_is_partial() {
        let whole = b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(parse(&whole[..20]), Parsed::Partial(0));
        assert_eq!(
            parse(&whole[..whole.len() - 1]),
            Parsed::Partial(whole.len())
        );
        assert_eq!(parse(whole), Parsed::Whole(Ask::Unknown, whole.len()));
    }
}
