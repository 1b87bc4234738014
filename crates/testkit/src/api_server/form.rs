//! Parser of multipart forms, in which clients upload files (RFC 7578).

use super::call::Call;

/// A field of a form.
pub(super) struct Field {
    pub(super) name: String,
    pub(super) filename: Option<String>,
    pub(super) bytes: Vec<u8>,
}

/// Returns the fields of a request's form; none if the body is not a form.
pub(super) fn read(call: &Call<'_>) -> Vec<Field> {
    let kind = call.header("content-type").unwrap_or_default();
    let Some((_, boundary)) = kind.split_once("boundary=") else {
        return Vec::new();
    };
    let mark = format!("\r\n--{}", boundary.trim_matches('"'));
    // A line end precedes every boundary of a form but the first. One is put in front of the body,
    // so that all boundaries are found alike.
    let body = [b"\r\n", call.request.body.as_slice()].concat();
    split(&body, mark.as_bytes())
        .iter()
        .filter_map(|part| field(part))
        .collect()
}

/// Returns the value of the form's text field with this name; empty if the form has none.
pub(super) fn text(fields: &[Field], name: &str) -> String {
    let field = fields.iter().find(|field| field.name == name);
    field.map_or_else(String::new, |field| {
        String::from_utf8_lossy(&field.bytes).into_owned()
    })
}

/// Returns the first field of the form that is a file, such as an upload.
pub(super) fn file(fields: &[Field]) -> Option<&Field> {
    fields.iter().find(|field| field.filename.is_some())
}

fn field(part: &[u8]) -> Option<Field> {
    let at = find(part, b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&part[..at]);
    let named = |what: &str| {
        let (_, rest) = head.split_once(&format!(" {what}=\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    Some(Field {
        name: named("name")?,
        filename: named("filename"),
        bytes: part[at + 4..].to_vec(),
    })
}

fn split<'a>(mut bytes: &'a [u8], mark: &[u8]) -> Vec<&'a [u8]> {
    let mut parts = Vec::new();
    while let Some(at) = find(bytes, mark) {
        parts.push(&bytes[..at]);
        bytes = &bytes[at + mark.len()..];
    }
    parts.push(bytes);
    parts
}

fn find(bytes: &[u8], mark: &[u8]) -> Option<usize> {
    bytes.windows(mark.len()).position(|window| window == mark)
}
