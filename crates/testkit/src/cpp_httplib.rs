//! Request handling of cpp-httplib 0.18 to 0.27, the HTTP library of llama.cpp until November 2025.
//!
//! The library responds to some requests without reading their bodies: 416 to a `Range` and 400 to
//! an `Accept` that it cannot parse, and any status to a GET with a body. It then parses the unread
//! bytes as the next request of the connection.

use crate::message::Head;
use crate::server::{BodyHandling, Received, Reply};

/// Returns the body rule of cpp-httplib: which request bodies a scripted server leaves unread.
/// These are bodies of GET, HEAD, OPTIONS and DELETE requests, and of requests that the library
/// rejects by their head.
pub fn body_rule(head: &Head) -> BodyHandling {
    let is_bodiless = matches!(head.method(), "GET" | "HEAD" | "OPTIONS" | "DELETE");
    if is_bodiless || rejection(head).is_some() {
        BodyHandling::Unread
    } else {
        BodyHandling::Read
    }
}

/// Returns the response to a request that cpp-httplib rejects by its head, or `None` for other
/// requests.
pub fn rejected(request: &Received) -> Option<Reply> {
    let status = rejection(&request.head)?;
    Some(Reply::response(status, &[], ""))
}

fn rejection(head: &Head) -> Option<u16> {
    if head.field("range").is_some_and(|value| !is_range(value)) {
        return Some(416);
    }
    if head.field("accept").is_some_and(|value| !is_accept(value)) {
        return Some(400);
    }
    // The 412 is not a response of cpp-httplib. Other HTTP libraries reject a request whose
    // `If-Match` fails and leave its body unread, so tests need such a backend as well.
    (head.field("if-match").is_some() && head.method() != "GET").then_some(412)
}

/// True if cpp-httplib can parse this `Range`. It responds 416 to any other and leaves the body
/// unread.
fn is_range(value: &str) -> bool {
    let is_number = |text: &str| text.is_empty() || text.bytes().all(|byte| byte.is_ascii_digit());
    value.strip_prefix("bytes=").is_some_and(|ranges| {
        ranges.split(',').all(|range| {
            let bounds = range.trim().split_once('-');
            bounds.is_some_and(|(first, last)| {
                is_number(first) && is_number(last) && !(first.is_empty() && last.is_empty())
            })
        })
    })
}

/// True if cpp-httplib can parse this `Accept`. It responds 400 to any other and leaves the body
/// unread.
fn is_accept(value: &str) -> bool {
    value.is_empty()
        || value.split(',').all(|entry| {
            let mut parts = entry.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let mut qualities = parts.filter_map(|part| part.strip_prefix("q="));
            (media_type == "*" || media_type.contains('/'))
                && qualities.all(|quality| {
                    let quality: Option<f32> = quality.parse().ok();
                    quality.is_some_and(|quality| (0.0..=1.0).contains(&quality))
                })
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(fields: &str) -> Option<u16> {
        let head = Head::parse(format!("POST / HTTP/1.1\r\n{fields}").as_bytes());
        rejection(&head)
    }

    #[test]
    fn unparsable_range_and_accept_are_rejected() {
        assert_eq!(status("Range: bytes=x"), Some(416));
        assert_eq!(status("Range: bytes=0-9"), None);
        for accept in [",", "text", "a/b;q=2", "a/b;q=x", "a/b,"] {
            assert_eq!(status(&format!("Accept: {accept}")), Some(400), "{accept}");
        }
        for accept in ["*/*", "application/json, text/event-stream;q=0.5", "*"] {
            assert_eq!(status(&format!("Accept: {accept}")), None, "{accept}");
        }
    }
}
