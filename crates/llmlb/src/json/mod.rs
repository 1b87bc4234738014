//! Finds the fields of a JSON object without parsing their values.
//!
//! A prompt is one long string. To find a request's model, the scanner must skip the prompt but not decode
//! it: a string ends at the next quotation mark that is not escaped, an object or a list at its closing
//! bracket. So the scan is about as fast as a byte search.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr2};

/// Error for text that is not a JSON object, or exceeds the scanner's limits on nesting and fields.
/// It has no position, so a message for the client comes from a full parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Maximum nesting of values that the scanner accepts, because it stores the kind of each open
/// bracket in one bit of a `u128`.
pub(crate) const MAX_DEPTH: u32 = u128::BITS;

/// Maximum number of fields of an object. Reading a field name costs a hundred times the search for its
/// end, so an object with millions of fields would block the worker. No API has this many fields.
pub(crate) const MAX_FIELDS: u32 = 10_000;

/// Calls `each` with the name of every top-level field of a JSON object and the range of its value,
/// in order. A duplicate field is passed again, and callers use the last one.
///
/// For valid JSON the fields are those that any parser finds, except beyond [`MAX_DEPTH`] levels. Text with
/// unbalanced brackets or strings, or invalid top-level fields, is rejected. Errors inside a value are not
/// detected here.
pub(crate) fn fields(
    body: &[u8],
    mut each: impl FnMut(&[u8], Range<usize>),
) -> Result<(), Malformed> {
    read_fields(body, |name, value| {
        let end = skip(body, value)?;
        each(name, value..end);
        Ok(end)
    })
}

/// As [`fields`], but `read` receives the offset of a value and must return the offset of its end,
/// as [`skip`] and [`visit`] do.
pub(crate) fn read_fields(
    body: &[u8],
    read: impl FnMut(&[u8], usize) -> Result<usize, Malformed>,
) -> Result<(), Malformed> {
    let at = skip_space(body, expect(body, skip_space(body, 0), b'{')?);
    if body.get(at) == Some(&b'}') {
        return expect_end(body, at + 1);
    }
    read_fields_from(body, at, read)
}

/// As [`fields`], but starts at the field whose name is at offset `at` and does not read the text
/// in front of it. The fields must end with the top-level object, so a field of a nested object is
/// rejected.
pub(crate) fn last_fields(
    body: &[u8],
    at: usize,
    mut each: impl FnMut(&[u8], Range<usize>),
) -> Result<(), Malformed> {
    expect(body, skip_space(body, 0), b'{')?;
    let before = body.get(..at).unwrap_or_default().trim_ascii_end();
    if !matches!(before.last(), Some(b'{' | b',')) {
        return Err(Malformed);
    }
    read_fields_from(body, at, |name, value| {
        let end = skip(body, value)?;
        each(name, value..end);
        Ok(end)
    })
}

/// As [`fields`], but passes the offset of each value before its end is known. So the last field of
/// a truncated text is passed as well.
pub(crate) fn beginnings(body: &[u8], mut each: impl FnMut(&[u8], usize)) -> Result<(), Malformed> {
    read_fields(body, |name, value| {
        each(name, value);
        skip(body, value)
    })
}

fn read_fields_from(
    body: &[u8],
    mut at: usize,
    mut read: impl FnMut(&[u8], usize) -> Result<usize, Malformed>,
) -> Result<(), Malformed> {
    for _ in 0..MAX_FIELDS {
        let name = expect(body, at, b'"')?;
        at = string(body, name)?;
        let name = decoded_name(&body[name..at - 1])?;
        let value = skip_space(body, expect(body, skip_space(body, at), b':')?);
        at = skip_space(body, read(&name, value)?);
        match body.get(at) {
            Some(b',') => at = skip_space(body, at + 1),
            Some(b'}') => return expect_end(body, at + 1),
            _ => return Err(Malformed),
        }
    }
    Err(Malformed)
}

/// Returns the decoded text of a JSON value; `None` if the value is not a string.
pub(crate) fn text(value: &[u8]) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    unescaped(inner).ok()
}

/// Returns the end of the JSON value at offset `at`, without parsing the value.
pub(crate) fn skip(body: &[u8], at: usize) -> Result<usize, Malformed> {
    visit(body, at, &mut ())
}

/// Receiver of the tokens of a JSON value, in order. The prompt of a request is estimated by one.
pub(crate) trait Visitor {
    /// False for a visitor that ignores strings, which are then skipped without a search for
    /// escapes.
    const READS_STRINGS: bool = true;

    /// Called for a string or a field name. `first_escape` is the offset of the first backslash in
    /// `text`, and `after` the rest of the body.
    fn string(&mut self, text: &[u8], first_escape: Option<usize>, after: &[u8]);
    fn open(&mut self);
    fn close(&mut self);
    /// Called for the bytes between strings and brackets: numbers, literals, punctuation and white
    /// space.
    fn between(&mut self, bytes: &[u8]);
}

impl Visitor for () {
    const READS_STRINGS: bool = false;

    fn string(&mut self, _text: &[u8], _first_escape: Option<usize>, _after: &[u8]) {}
    fn open(&mut self) {}
    fn close(&mut self) {}
    fn between(&mut self, _bytes: &[u8]) {}
}

/// Returns the end of the JSON value at offset `at`, and passes its tokens to a visitor.
pub(crate) fn visit<V: Visitor>(
    body: &[u8],
    at: usize,
    visitor: &mut V,
) -> Result<usize, Malformed> {
    match body.get(at) {
        Some(b'"') => visit_string(body, at + 1, visitor),
        Some(b'{' | b'[') => nested(body, at, visitor),
        Some(_) => {
            let end = scalar(body, at)?;
            visitor.between(&body[at..end]);
            Ok(end)
        }
        None => Err(Malformed),
    }
}

fn visit_string<V: Visitor>(
    body: &[u8],
    start: usize,
    visitor: &mut V,
) -> Result<usize, Malformed> {
    if !V::READS_STRINGS {
        return string(body, start);
    }
    let first =
        start + find_quote_or(b'\\', body.get(start..).unwrap_or_default()).ok_or(Malformed)?;
    let (end, first_escape) = match body.get(first) {
        Some(b'"') => (first + 1, None),
        _ => (string_from(body, start, first)?, Some(first - start)),
    };
    visitor.string(&body[start..end - 1], first_escape, &body[end..]);
    Ok(end)
}

fn nested<V: Visitor>(body: &[u8], mut at: usize, visitor: &mut V) -> Result<usize, Malformed> {
    // Stack of open brackets in the bits of a number, the innermost in the lowest bit: 1 for a
    // brace, 0 for a square bracket. It needs no allocation.
    let (mut open, mut depth) = (0_u128, 0);
    loop {
        let from = at;
        at = next_structural(body, at);
        let Some(&byte) = body.get(at) else {
            return Err(Malformed);
        };
        visitor.between(&body[from..at]);
        at += 1;
        match byte {
            b'"' => at = visit_string(body, at, visitor)?,
            b'{' | b'[' => {
                if depth == MAX_DEPTH {
                    return Err(Malformed);
                }
                open = (open << 1) | u128::from(byte == b'{');
                depth += 1;
                visitor.open();
            }
            _ => {
                if (open & 1 == 1) != (byte == b'}') {
                    return Err(Malformed);
                }
                open >>= 1;
                depth -= 1;
                visitor.close();
                if depth == 0 {
                    return Ok(at);
                }
            }
        }
    }
}

/// Returns the offset of the next quotation mark or bracket; the end of the body if there is none.
pub(crate) fn next_structural(body: &[u8], mut at: usize) -> usize {
    // Bit 0x20 maps `[` to `{` and `]` to `}`, and no other byte that JSON has outside of strings.
    // So one comparison finds both kinds of brackets, without branches, and the compiler can
    // vectorize it.
    let structure = |byte: u8| {
        let folded = byte | 0x20;
        u8::from(byte == b'"') | u8::from(folded == b'{') | u8::from(folded == b'}')
    };
    let is_structure = |byte: &u8| structure(*byte) != 0;
    // Fast path: the next bracket or quotation mark is usually near.
    for byte in body.iter().skip(at).take(16) {
        if is_structure(byte) {
            return at;
        }
        at += 1;
    }
    // No bracket is near, so this is probably a long list of numbers: test 32 bytes at a time.
    let (pieces, _) = body.get(at..).unwrap_or_default().as_chunks::<32>();
    for piece in pieces {
        if piece.iter().fold(0, |any, byte| any | structure(*byte)) != 0 {
            break;
        }
        at += piece.len();
    }
    let rest = body.get(at..).unwrap_or_default();
    let near = rest.iter().position(is_structure);
    at + near.unwrap_or(rest.len())
}

fn string(body: &[u8], start: usize) -> Result<usize, Malformed> {
    string_from(body, start, start)
}

/// As [`string`], for a caller that knows that no quotation mark is in front of `at`.
fn string_from(body: &[u8], start: usize, mut at: usize) -> Result<usize, Malformed> {
    loop {
        at += find_quote(body.get(at..).unwrap_or_default()).ok_or(Malformed)?;
        // Count the backslashes in front of the quotation mark: only after an even number the mark
        // ends the string. Other escapes, such as `\n`, need no check.
        let before = body[start..at].iter().rev();
        let backslashes = before.take_while(|&&byte| byte == b'\\').count();
        at += 1;
        if backslashes % 2 == 0 {
            return Ok(at);
        }
    }
}

/// Returns the offset of the next quotation mark. Many strings are short, such as names and roles. For these
/// the setup of a vectorized search would cost more than the search.
pub(crate) fn find_quote(text: &[u8]) -> Option<usize> {
    find_quote_or(b'"', text)
}

/// Returns the offset of the next quotation mark or `other` byte.
#[inline(always)]
fn find_quote_or(other: u8, text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOPS: u64 = ONES << 7;
    let (words, _) = text.as_chunks::<8>();
    for (place, word) in words.iter().take(4).enumerate() {
        // Search eight bytes at once: XOR turns the searched byte into 0, and the subtraction then
        // sets the top bit of the lowest zero byte.
        let word = u64::from_le_bytes(*word);
        let zeros = |byte: u8| {
            let word = word ^ (ONES * u64::from(byte));
            word.wrapping_sub(ONES) & !word & TOPS
        };
        let found = zeros(b'"') | zeros(other);
        if found != 0 {
            return Some(place * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let near = words.len().min(4) * 8;
    let rest = &text[near..];
    let found = match other {
        b'"' => memchr(b'"', rest),
        _ => memchr2(b'"', other, rest),
    };
    Some(near + found?)
}

/// Returns the end of the number or literal at offset `at`.
fn scalar(body: &[u8], at: usize) -> Result<usize, Malformed> {
    let rest = &body[at..];
    let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
    let length = rest.iter().position(ends).ok_or(Malformed)?;
    match &rest[..length] {
        b"true" | b"false" | b"null" | [b'-' | b'0'..=b'9', ..] => Ok(at + length),
        _ => Err(Malformed),
    }
}

/// Returns the decoded field name, given the text between its quotation marks.
fn decoded_name(inner: &[u8]) -> Result<Cow<'_, [u8]>, Malformed> {
    // Search backslashes with a loop: names are short, so a loop is as fast as a vectorized search.
    // Escapes in names are rare.
    if inner.iter().all(|byte| byte.is_ascii() && *byte != b'\\') {
        return Ok(Cow::Borrowed(inner));
    }
    let text = unescaped(inner)?;
    Ok(Cow::Owned(text.into_owned().into_bytes()))
}

/// Returns the decoded string, given the text between its quotation marks.
fn unescaped(inner: &[u8]) -> Result<Cow<'_, str>, Malformed> {
    if memchr(b'\\', inner).is_none() {
        return std::str::from_utf8(inner)
            .map(Cow::Borrowed)
            .map_err(|_| Malformed);
    }
    let quoted = [b"\"", inner, b"\""].concat();
    serde_json::from_slice(&quoted)
        .map(Cow::Owned)
        .map_err(|_| Malformed)
}

/// Returns the offset of the first byte from `at` on that is not white space.
fn skip_space(body: &[u8], mut at: usize) -> usize {
    while let Some(b' ' | b'\t' | b'\n' | b'\r') = body.get(at) {
        at += 1;
    }
    at
}

fn expect(body: &[u8], at: usize, byte: u8) -> Result<usize, Malformed> {
    if body.get(at) == Some(&byte) {
        Ok(at + 1)
    } else {
        Err(Malformed)
    }
}

fn expect_end(body: &[u8], at: usize) -> Result<(), Malformed> {
    if skip_space(body, at) == body.len() {
        Ok(())
    } else {
        Err(Malformed)
    }
}
