//! Requests as the mock sees them, read no further than it must.

use memchr::memmem;

use crate::answer::Model;

/// How much of a body is looked at, at either end: the settings stand before or after the prompt.
const LOOK: usize = 512;

/// What a request asks for.
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
    /// Not all of it is there; it has at least this many bytes.
    Partial(usize),
    /// It asks for this, and has this many bytes.
    Whole(Ask, usize),
}

/// Reads the request that the bytes begin with.
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

/// What stands after the name and its colon, near either end of the body.
fn value<'a>(body: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let ends = [
        &body[body.len().saturating_sub(LOOK)..],
        &body[..body.len().min(LOOK)],
    ];
    ends.into_iter().find_map(|part| {
        let after = memmem::find(part, name)? + name.len();
        let value = part[after..].trim_ascii_start().strip_prefix(b":")?;
        Some(value.trim_ascii_start())
    })
}

/// The value of a header, whose name is given in lower case.
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

/// The number that the digits say; anything else says 0.
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
    fn what_is_asked_for_may_stand_before_or_after_the_prompt() {
        let long = "x".repeat(5000);
        let asks = Ask::Stream {
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
            assert!(matches!(chat(&body), Parsed::Whole(ask, _) if ask == asks));
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
    fn a_request_is_answered_once_all_of_it_is_there() {
        let whole = b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(parse(&whole[..20]), Parsed::Partial(0));
        assert_eq!(
            parse(&whole[..whole.len() - 1]),
            Parsed::Partial(whole.len())
        );
        assert_eq!(parse(whole), Parsed::Whole(Ask::Unknown, whole.len()));
    }
}
