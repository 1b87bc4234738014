//! Finding a field in a form with files (`multipart/form-data`, RFC 7578) without taking it apart.

use std::ops::Range;

use http::{HeaderMap, header};
use memchr::memmem;

/// What separates the parts, with the dashes before it.
pub(super) fn boundary(headers: &HeaderMap) -> Option<Vec<u8>> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    let (name, parameters) = kind.split_once(';')?;
    if !name.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let boundary = parameters.split(';').find_map(|parameter| {
        let (name, value) = parameter.trim().split_once('=')?;
        name.eq_ignore_ascii_case("boundary")
            .then(|| value.trim().trim_matches('"'))
    })?;
    (!boundary.is_empty()).then(|| format!("--{boundary}").into_bytes())
}

/// The fields of this name, in any case: how it is written, and where the content is.
pub(super) fn fields<'a>(
    body: &'a [u8],
    boundary: &'a [u8],
    wanted: &'a [u8],
) -> impl Iterator<Item = (&'a [u8], Range<usize>)> {
    let finder = memmem::Finder::new(boundary);
    let mut part = next(body, 0, &finder).map(|(_, part)| part);
    std::iter::from_fn(move || {
        loop {
            let begin = part?;
            let (end, next_part) = next(body, begin, &finder)?;
            part = Some(next_part);
            // A part without a head has no name.
            if let Some(head) = memmem::find(&body[begin..end], b"\r\n\r\n")
                && let Some(name) = named(&body[begin..begin + head], wanted)
            {
                return Some((name, begin + head + 4..end));
            }
        }
    })
}

/// The next line that is a boundary: where what is before it ends, and where the next part begins.
/// After the last one, which ends in `--`, that is the end of the body.
fn next(body: &[u8], from: usize, finder: &memmem::Finder<'_>) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let start = at + finder.find(&body[at..])?;
        let after = start + finder.needle().len();
        let begins_line = start == 0 || body[..start].ends_with(b"\r\n");
        let rest = body[after..].trim_ascii_start();
        let blank = body.len() - after - rest.len();
        let gap = &body[after..after + blank];
        if begins_line && gap.contains(&b'\n') {
            let line = after + memchr::memchr(b'\n', gap)? + 1;
            return Some((start.saturating_sub(2).max(from), line));
        }
        if begins_line && body[after..].starts_with(b"--") {
            return Some((start.saturating_sub(2).max(from), body.len()));
        }
        at = after;
    }
}

/// The name in a part's head, if it is this one in any case.
fn named<'a>(head: &'a [u8], wanted: &[u8]) -> Option<&'a [u8]> {
    const DISPOSITION: &[u8] = b"content-disposition:";
    let lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let told = lines.filter_map(|line| {
        let (name, value) = line.split_at_checked(DISPOSITION.len())?;
        name.eq_ignore_ascii_case(DISPOSITION).then_some(value)
    });
    told.flat_map(parameters)
        .filter_map(|parameter| {
            let equals = parameter.iter().position(|byte| *byte == b'=')?;
            let (key, value) = (&parameter[..equals], &parameter[equals + 1..]);
            let is_name = key.trim_ascii().eq_ignore_ascii_case(b"name");
            is_name.then(|| value.trim_ascii())
        })
        .map(|name| {
            let quoted = name.strip_prefix(b"\"");
            let quoted = quoted.and_then(|name| name.strip_suffix(b"\""));
            quoted.unwrap_or(name)
        })
        .find(|name| name.eq_ignore_ascii_case(wanted))
}

/// What is between semicolons, unless these are within quotation marks.
fn parameters(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    line.split(move |byte| {
        let is_mark = *byte == b'"' && !escaped;
        escaped = quoted && *byte == b'\\' && !escaped;
        quoted ^= is_mark;
        *byte == b';' && !quoted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(body: &str) -> Option<&str> {
        let found = fields(body.as_bytes(), b"--x1", b"model").next();
        found.map(|(_, at)| &body[at])
    }

    #[test]
    fn every_field_of_the_name_is_found_in_any_case() {
        let part = |name| format!("--x1\r\nContent-Disposition: form-data; {name}\r\n\r\n1\r\n");
        let names = [
            "name=model",
            "name=\"MODEL\"",
            "name=models",
            "Name = \"Model\"",
        ];
        let body = names.map(part).concat() + "--x1--\r\n";
        let found: Vec<_> = fields(body.as_bytes(), b"--x1", b"model")
            .map(|(name, at)| (name, &body[at]))
            .collect();
        assert_eq!(
            found,
            [(&b"model"[..], "1"), (b"MODEL", "1"), (b"Model", "1")]
        );
    }

    #[test]
    fn a_field_is_found_among_files() {
        let body = "--x1\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a; name=model\"\r\n\
                    Content-Type: audio/wav\r\n\r\n\0\u{1}--x\r\n\r\n\r\n--x1\r\n\
                    content-disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--x1\r\n\
                    Content-Disposition: form-data; name=language\r\n\r\nde\r\n--x1--\r\n";
        assert_eq!(find(body), Some("whisper-1"));
        assert_eq!(find(&body.replace("\"model\"", "\"modell\"")), None);
        assert_eq!(find(&body.replace("\"model\"", "model")), Some("whisper-1"));
    }

    #[test]
    fn a_broken_form_has_no_field() {
        for body in [
            "",
            "--x1",
            "--x1\r\n",
            "--x1\r\nname\r\n\r\n",
            "--x1--",
            "x",
            "--x1\r\n\r\n--x1",
        ] {
            assert_eq!(find(body), None, "{body}");
        }
    }

    #[test]
    fn the_boundary_may_be_quoted() {
        let of = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            boundary(&headers).map(|bytes| String::from_utf8(bytes).unwrap())
        };
        assert_eq!(
            of("multipart/form-data; boundary=abc"),
            Some("--abc".into())
        );
        assert_eq!(
            of("Multipart/Form-Data; charset=x; Boundary=\"a b\""),
            Some("--a b".into())
        );
        assert_eq!(of("multipart/form-data"), None);
        assert_eq!(of("application/json; boundary=x"), None);
    }
}
