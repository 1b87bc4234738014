//! Finds the name of the model in a `multipart/form-data` body (RFC 7578).
//!
//! Parsers disagree about everything that is not the usual form: bare line feeds, text in front of
//! the first boundary, folded headers, `name*`, escapes in quotation marks, further boundaries. A
//! body that a backend reads differently would be routed and billed as one model and served as
//! another. So only the form that clients really send is accepted.

use std::ops::Range;

use memchr::memmem;

use super::case_variant::is_variant;
use crate::headers::is_token;

const MAX_PARTS: usize = 1000;
/// Maximum number of header lines of one part of a form. A part with more lines is rejected.
const MAX_LINES: usize = 16;
const MAX_LINE: usize = 4 << 10;
/// RFC 2046, section 5.1.1.
const MAX_BOUNDARY: usize = 70;

/// Returns the boundary that a Content-Type of `multipart/form-data` declares. The error is the
/// reason why servers could read the Content-Type in two ways, for which the request is rejected.
pub(super) fn boundary(content_type: &str) -> Result<&str, &'static str> {
    let (_, parameters) = content_type
        .split_once(';')
        .ok_or("the Content-Type has no boundary")?;
    let mut boundary = None;
    for parameter in Parameters(parameters) {
        let (name, value) = parameter?;
        match name.to_ascii_lowercase().as_str() {
            "boundary" if boundary.is_some() => return Err("the Content-Type has two boundaries"),
            "boundary" => boundary = Some(value),
            "charset" if is_utf8(value) => {}
            _ => return Err("the Content-Type has parameters other than boundary"),
        }
    }
    let boundary = boundary.ok_or("the Content-Type has no boundary")?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=?".contains(&byte);
    if boundary.is_empty() || boundary.len() > MAX_BOUNDARY || !boundary.bytes().all(is_allowed) {
        return Err(
            "the boundary is empty, longer than 70 characters, or has characters that not all servers accept",
        );
    }
    Ok(boundary)
}

/// Returns the range of the value of the only field `model` in a form, if there is one. The error
/// is the reason why servers could read the body in two ways, for which the request is rejected.
pub(super) fn model(body: &[u8], boundary: &str) -> Result<Option<Range<usize>>, &'static str> {
    let delimiter = format!("--{boundary}").into_bytes();
    let mut found = None;
    let mut part: Option<usize> = None;
    let mut parts = 0;
    for at in memmem::find_iter(body, &delimiter) {
        let after = at + delimiter.len();
        if at > 0 && !body[..at].ends_with(b"\r\n") {
            return Err("the boundary is not at the beginning of a line");
        }
        if let Some(start) = part {
            let end = at.checked_sub(2).filter(|end| *end >= start);
            let end = end.ok_or("the form has an empty part")?;
            if let Some(range) = model_part(body, start..end)?
                && found.replace(range).is_some()
            {
                return Err("the form has the field `model` twice");
            }
        } else if at > 0 {
            return Err("the form has text in front of its first boundary");
        }
        match &body[after..] {
            [b'\r', b'\n', ..] => part = Some(after + 2),
            [b'-', b'-'] | [b'-', b'-', b'\r', b'\n'] => {
                return if parts > 0 {
                    Ok(found)
                } else {
                    Err("the form has no parts")
                };
            }
            _ => return Err("a boundary of the form is followed by other text in its line"),
        }
        parts += 1;
        if parts > MAX_PARTS {
            return Err("the form has too many parts");
        }
    }
    Err("the form does not end with its boundary")
}

/// Returns the range of a part's content if the part is the field `model`.
fn model_part(body: &[u8], part: Range<usize>) -> Result<Option<Range<usize>>, &'static str> {
    let mut at = part.start;
    let mut head = PartHead::default();
    for lines in 0.. {
        let line = memmem::find(&body[at..part.end], b"\r\n").ok_or("a part has no head")?;
        if lines >= MAX_LINES || line > MAX_LINE {
            return Err("a part's head is too long");
        }
        let text = &body[at..at + line];
        at += line + 2;
        if text.is_empty() {
            break;
        }
        head.read(text)?;
    }
    let disposition = head
        .disposition
        .ok_or("a part has no Content-Disposition")?;
    if !is_variant("model", disposition.name) {
        return Ok(None);
    }
    let value = &body[at..part.end];
    let is_text = head
        .content_type
        .is_none_or(|kind| is_plain_text(kind, value.is_ascii()));
    let is_readable = std::str::from_utf8(value)
        .is_ok_and(|value| !value.is_empty() && !value.chars().any(char::is_control));
    if disposition.name != "model" || disposition.has_filename || !is_text || !is_readable {
        return Err("the field `model` of the form is not plain text");
    }
    Ok(Some(at..part.end))
}

/// Header fields of one part of a form that determine how its content is read.
#[derive(Default)]
struct PartHead<'a> {
    disposition: Option<Disposition<'a>>,
    content_type: Option<&'a str>,
}

struct Disposition<'a> {
    name: &'a str,
    has_filename: bool,
}

impl<'a> PartHead<'a> {
    fn read(&mut self, line: &'a [u8]) -> Result<(), &'static str> {
        let line = std::str::from_utf8(line).map_err(|_| "a part's head is not UTF-8")?;
        // A line that begins with a blank continues the header line above it, which not all parsers
        // accept. Such a line has no valid name and is rejected here.
        let named = line
            .split_once(':')
            .filter(|(name, _)| is_token(name) && !line.chars().any(char::is_control));
        let (name, value) = named.ok_or("a part's head has a line that is no header field")?;
        let value = value.trim_matches(' ');
        match name.to_ascii_lowercase().as_str() {
            "content-disposition" => {
                if self.disposition.is_some() {
                    return Err("a part has two Content-Dispositions");
                }
                self.disposition = Some(disposition(value)?);
            }
            "content-type" => {
                let kind = value.to_ascii_lowercase();
                if self.content_type.is_some()
                    || kind.starts_with("multipart/")
                    || kind.starts_with("message/")
                {
                    return Err("a part contains further parts, or has two Content-Types");
                }
                self.content_type = Some(value);
            }
            "content-transfer-encoding" => {
                let plain = ["binary", "8bit", "7bit"];
                if !plain.iter().any(|one| value.eq_ignore_ascii_case(one)) {
                    return Err("a part is encoded");
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn disposition(value: &str) -> Result<Disposition<'_>, &'static str> {
    let parameters = value
        .strip_prefix("form-data")
        .and_then(|rest| rest.trim_start_matches(' ').strip_prefix(';'))
        .ok_or("a part's Content-Disposition is not form-data with a name")?;
    let (mut name, mut has_filename, mut has_extended) = (None, false, false);
    for parameter in Parameters(parameters) {
        let (key, value) = parameter?;
        match key {
            "name" if name.is_none() => name = Some(value),
            "filename" if !has_filename => has_filename = true,
            "filename*" if !has_extended => has_extended = true,
            _ => return Err("a part's Content-Disposition has unusual parameters"),
        }
    }
    let name = name.ok_or("a part has no name")?;
    // Reject unusual field names: some parsers strip slashes and blanks or decode escapes, and
    // `_charset_` changes how some parsers decode the other fields.
    let is_usual = |letter: char| letter.is_alphanumeric() || "_-.[]".contains(letter);
    let is_plain =
        !name.is_empty() && name.chars().all(is_usual) && !name.eq_ignore_ascii_case("_charset_");
    if !is_plain {
        return Err("a part has a name that can be read in two ways");
    }
    Ok(Disposition {
        name,
        has_filename: has_filename || has_extended,
    })
}

/// Iterator over the `name=value` pairs of a header field, which are separated by semicolons.
/// Values are tokens or quoted texts without escapes, and are returned without quotation marks.
struct Parameters<'a>(&'a str);

impl<'a> Iterator for Parameters<'a> {
    type Item = Result<(&'a str, &'a str), &'static str>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.0.trim_matches(' ');
        if rest.is_empty() {
            return None;
        }
        // Clear the text first, so that the iterator ends after an error and does not return it
        // forever.
        self.0 = "";
        Some(parameter(rest).map(|(name, text, rest)| {
            self.0 = rest;
            (name, text)
        }))
    }
}

/// Returns the first parameter of a header field: its name, its value, and the rest of the text.
fn parameter(text: &str) -> Result<(&str, &str, &str), &'static str> {
    const UNUSUAL: &str = "a header field has parameters that can be read in two ways";
    let (name, rest) = text.split_once('=').ok_or(UNUSUAL)?;
    if !is_token(name) {
        return Err(UNUSUAL);
    }
    let (value, rest) = if let Some(quoted) = rest.strip_prefix('"') {
        let end = quoted_end(quoted).ok_or(UNUSUAL)?;
        let (value, rest) = (&quoted[..end], &quoted[end + 1..]);
        // Some parsers read `\"` as the end of the value, others as a quotation mark in it. A value
        // without `;` and `=` is accepted nevertheless, because no parser finds a further parameter
        // in it.
        if value.contains('"') && value.contains([';', '=']) {
            return Err(UNUSUAL);
        }
        (value, rest)
    } else {
        let end = rest.find([';', ' ']).unwrap_or(rest.len());
        let (value, rest) = rest.split_at(end);
        if !is_token(value) {
            return Err(UNUSUAL);
        }
        (value, rest)
    };
    let rest = rest.trim_start_matches(' ');
    match rest.strip_prefix(';') {
        Some(rest) if !rest.trim_matches(' ').is_empty() => Ok((name, value, rest)),
        None if rest.is_empty() => Ok((name, value, "")),
        _ => Err(UNUSUAL),
    }
}

fn quoted_end(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })
}

/// True if a part's Content-Type is plain text in an encoding in which the value means the same as
/// in UTF-8. Other backends could read another model's name. `is_ascii` is true if the value has
/// only ASCII characters.
fn is_plain_text(content_type: &str, is_ascii: bool) -> bool {
    let (media, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    media
        .trim_end_matches(' ')
        .eq_ignore_ascii_case("text/plain")
        && Parameters(parameters).all(|parameter| {
            parameter.is_ok_and(|(name, value)| {
                name.eq_ignore_ascii_case("charset")
                    && (is_utf8(value) || is_ascii && extends_ascii(value))
            })
        })
}

pub(super) fn is_utf8(charset: &str) -> bool {
    charset.eq_ignore_ascii_case("utf-8") || charset.eq_ignore_ascii_case("utf8")
}

/// True for names of other encodings in which ASCII text has the same bytes as in UTF-8.
fn extends_ascii(charset: &str) -> bool {
    ["us-ascii", "iso-8859-1", "windows-1252"]
        .iter()
        .any(|name| charset.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(head: &str, content: &str) -> String {
        format!("--x1\r\n{head}\r\n\r\n{content}\r\n")
    }

    fn field(disposition: &str, content: &str) -> String {
        part(
            &format!("Content-Disposition: form-data; {disposition}"),
            content,
        )
    }

    fn find(body: &str) -> Result<&str, &'static str> {
        let found = model(body.as_bytes(), "x1")?;
        Ok(found.map_or("", |range| &body[range]))
    }

    const END: &str = "--x1--\r\n";

    #[test]
    fn field_is_found_among_files() {
        let file = part(
            "Content-Disposition: form-data; name=\"file\"; filename=\"a; name=model\"\r\n\
             Content-Type: audio/wav",
            "\0\u{1}--x\r\n\r\n",
        );
        for model in ["name=\"model\"", "name=model"] {
            let body = file.clone() + &field(model, "whisper-1") + &field("name=language", "de");
            assert_eq!(find(&(body.clone() + END)), Ok("whisper-1"));
            assert_eq!(find(&(body + "--x1--")), Ok("whisper-1"));
        }
    }

    #[test]
    fn parts_as_dotnet_writes_them_are_accepted() {
        let text =
            "Content-Type: text/plain; charset=utf-8\r\nContent-Disposition: form-data; name=model";
        let file =
            "Content-Disposition: form-data; name=file; filename=a.wav; filename*=utf-8''a.wav";
        let body = part(text, "whisper-1") + &part(file, "data") + END;
        assert_eq!(find(&body), Ok("whisper-1"));
    }

    #[test]
    fn form_need_not_name_a_model() {
        assert_eq!(find(&(field("name=\"prompt\"", "b") + END)), Ok(""));
    }

    #[test]
    fn escaped_quotation_marks_are_accepted_in_names_of_files() {
        let file = field("name=\"file\"; filename=\"a \\\"b\\\" \\\\ c.wav\"", "data");
        let body = file + &field("name=\"model\"", "m") + END;
        assert_eq!(find(&body), Ok("m"));
    }

    #[test]
    fn forms_that_parsers_read_differently_are_rejected() {
        let good = field("name=\"model\"", "a");
        assert_eq!(find(&(good.clone() + END)), Ok("a"));
        let bodies = [
            // In each of these forms the field `model` appears twice, or in another case.
            good.clone() + &good + END,
            good.clone() + &field("name=\"Model\"", "b") + END,
            field("name=\"MODEL\"", "b") + END,
            // Some parsers read each of these names as `model`.
            field("name=\"/model\"", "b") + &good + END,
            field("name=\"//model\"", "b") + &good + END,
            field("name=\"\"", "b") + &good + END,
            // These bodies have text in front of the first boundary or after the last one.
            "x\r\n".to_owned() + &good + END,
            "\r\n".to_owned() + &good + END,
            good.clone() + END + &good + END,
            good.clone() + "--x1-- ",
            // No end.
            good.clone(),
            String::new(),
            "--x1--\r\n".to_owned(),
            // Line ends.
            (good.clone() + END).replace("\r\n", "\n"),
            good.clone()
                + &field(
                    "name=x",
                    "y\n--x1\nContent-Disposition: form-data; name=\"model\"\n\nb",
                )
                + END,
            good.replace("--x1\r\n", "--x1 \r\n") + END,
            good.replace("\r\n\r\na", "\n\na") + END,
            // Heads.
            good.replace("form-data;", "form-data;\r\n") + END,
            good.replace("name=\"model\"", "name=\"x\"; name=\"model\"") + END,
            good.replace("name=", "name*=utf-8''") + END,
            good.replace("name=", "name*0=") + END,
            good.replace("name=", "Name=") + END,
            good.replace("name=", "name =") + END,
            good.replace("\"model\"", "\"mod\\el\"") + END,
            good.replace("\"model\"", "\"mod%65l\"") + END,
            good.replace("\"model\"", "\" model\"") + END,
            good.replace("name=\"model\"", "name=\"model\"; filename=\"x\"") + END,
            good.replace("name=\"model\"", "filename=\"x\\\"; name=\"model\"") + END,
            good.replace("name=\"model\"", "name=\"model\" x") + END,
            good.replace("form-data", "attachment") + END,
            good.replace("Content-Disposition", "X") + END,
            good.replace(
                "\r\n\r\n",
                "\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n",
            ) + END,
            good.replace(
                "\r\n\r\n",
                "\r\nContent-Type: text/plain; charset=utf-16\r\n\r\n",
            ) + END,
            good.replace(
                "\r\n\r\na",
                "\r\nContent-Type: text/plain; charset=us-ascii\r\n\r\n\u{e9}",
            ) + END,
            good.replace("\r\n\r\n", "\r\nContent-Transfer-Encoding: base64\r\n\r\n") + END,
            good.clone()
                + &part(
                    "Content-Disposition: form-data; name=x\r\nContent-Type: multipart/mixed; boundary=y",
                    "",
                )
                + END,
            field("name=\"_charset_\"", "utf-16") + &good + END,
            // Contents.
            field("name=\"model\"", "") + END,
            field("name=\"model\"", "a\nb") + END,
        ];
        for body in bodies {
            assert!(find(&body).is_err(), "{body:?}");
        }
        assert!(model(b"--x1\r\n\r\n--x1--", "x1").is_err());
        assert!(model(b"--x1\r\n--x1--", "x1").is_err());
    }

    #[test]
    fn boundary_is_one_that_all_servers_read_alike() {
        for (content_type, expected) in [
            ("multipart/form-data; boundary=abc", "abc"),
            ("multipart/form-data;boundary=\"a-b_c\"", "a-b_c"),
            (
                "Multipart/Form-Data; charset=utf-8; Boundary=\"a=b\"",
                "a=b",
            ),
        ] {
            assert_eq!(boundary(content_type), Ok(expected));
        }
        for content_type in [
            "multipart/form-data",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"\"",
            "multipart/form-data; boundary=a; boundary=b",
            "multipart/form-data; boundary=\"a;b\"",
            "multipart/form-data; boundary=\"a b\"",
            "multipart/form-data; boundary=\"a\\\"b\"",
            "multipart/form-data; boundary*=utf-8''a",
            "multipart/form-data; boundary=a, multipart/form-data; boundary=b",
            "multipart/form-data; boundary =a",
            "multipart/form-data; boundary=a;",
            "multipart/form-data; charset=utf-16; boundary=a",
            "multipart/form-data; boundary=a; x=y",
        ] {
            assert!(boundary(content_type).is_err(), "{content_type}");
        }
    }
}
