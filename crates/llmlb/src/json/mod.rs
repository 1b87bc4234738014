//! Finding the fields of a JSON object without reading what is in them.
//!
//! A prompt is one long string. To know a request's model one has to pass over it, but not to
//! understand it: the end of a string is the next quotation mark that is not escaped, the end of
//! an object or a list is its bracket. So the cost is that of a search for a byte.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::ops::Range;

use memchr::{memchr, memchr2};

/// Not a JSON object, or one that only a patient parser should read. Whoever wants to tell what
/// is wrong with it, and where, asks one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// How deep values may be nested: one bit each says what kind of bracket is open.
pub(crate) const DEEPEST: u32 = u128::BITS;

/// Maximum number of fields of an object whose fields are read. Reading the name of a field costs a
/// hundred times the search for its end, and no API has this many.
pub(crate) const MOST_FIELDS: u32 = 10_000;

/// Calls `each` with the name of every field of the object that `body` is, and with the place of
/// its value, in their order. A field that is there twice is told twice: the last one counts.
///
/// Of valid JSON it finds what any parser finds, unless it is nested more than 128 deep. Of
/// other texts it refuses those whose brackets, strings or top-level fields do not add up; what
/// is wrong inside of a value is for whoever reads that value.
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

/// As [`fields`], but `read` is called with the place where a value begins, and returns the place
/// where it ends, as [`skip`] and [`visit`] do.
pub(crate) fn read_fields(
    body: &[u8],
    read: impl FnMut(&[u8], usize) -> Result<usize, Malformed>,
) -> Result<(), Malformed> {
    let at = space(body, expect(body, space(body, 0), b'{')?);
    if body.get(at) == Some(&b'}') {
        return nothing_after(body, at + 1);
    }
    read_fields_from(body, at, read)
}

/// As [`fields`], but only of those from the one on whose name begins here. What comes before is not
/// looked at; but what follows must be the end of the body's own object, not of one within it.
pub(crate) fn last_fields(
    body: &[u8],
    at: usize,
    mut each: impl FnMut(&[u8], Range<usize>),
) -> Result<(), Malformed> {
    expect(body, space(body, 0), b'{')?;
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

/// As [`fields`], but tells where each value begins, before its end is looked for: so also of the
/// field in which a text ends that is not all there.
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
    for _ in 0..MOST_FIELDS {
        let name = expect(body, at, b'"')?;
        at = string(body, name)?;
        let name = written(&body[name..at - 1])?;
        let value = space(body, expect(body, space(body, at), b':')?);
        at = space(body, read(&name, value)?);
        match body.get(at) {
            Some(b',') => at = space(body, at + 1),
            Some(b'}') => return nothing_after(body, at + 1),
            _ => return Err(Malformed),
        }
    }
    Err(Malformed)
}

/// The text of a value, if it is a string.
pub(crate) fn text(value: &[u8]) -> Option<Cow<'_, str>> {
    let inner = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    unescaped(inner).ok()
}

/// Where the value that begins at `at` ends.
pub(crate) fn skip(body: &[u8], at: usize) -> Result<usize, Malformed> {
    visit(body, at, &mut ())
}

/// Called with what a value consists of, in its order.
pub(crate) trait Visitor {
    /// False: nothing of a string is of interest.
    const READS_STRINGS: bool = true;

    /// A string, or the name of a field. `first_escape` is the place of the first backslash in its
    /// text, `after` everything behind it.
    fn string(&mut self, text: &[u8], first_escape: Option<usize>, after: &[u8]);
    /// The beginning of an object or a list.
    fn open(&mut self);
    /// The end of an object or a list.
    fn close(&mut self);
    /// Everything between two of these: numbers, words and punctuation.
    fn between(&mut self, bytes: &[u8]);
}

impl Visitor for () {
    const READS_STRINGS: bool = false;

    fn string(&mut self, _text: &[u8], _first_escape: Option<usize>, _after: &[u8]) {}
    fn open(&mut self) {}
    fn close(&mut self) {}
    fn between(&mut self, _bytes: &[u8]) {}
}

/// As [`skip`], and tells what is in the value.
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
    let first = start + quote_or(b'\\', body.get(start..).unwrap_or_default()).ok_or(Malformed)?;
    let (end, first_escape) = match body.get(first) {
        Some(b'"') => (first + 1, None),
        _ => (string_from(body, start, first)?, Some(first - start)),
    };
    visitor.string(&body[start..end - 1], first_escape, &body[end..]);
    Ok(end)
}

/// Where the object or the list that begins at `at` ends.
fn nested<V: Visitor>(body: &[u8], mut at: usize, visitor: &mut V) -> Result<usize, Malformed> {
    // The brackets that are open, the innermost last: 1 is a brace.
    let (mut open, mut depth) = (0_u128, 0);
    loop {
        let from = at;
        at = structure(body, at);
        let Some(&byte) = body.get(at) else {
            return Err(Malformed);
        };
        visitor.between(&body[from..at]);
        at += 1;
        match byte {
            b'"' => at = visit_string(body, at, visitor)?,
            b'{' | b'[' => {
                if depth == DEEPEST {
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

/// The next quotation mark or bracket; the end of the body if there is none.
pub(crate) fn structure(body: &[u8], mut at: usize) -> usize {
    // One bit more makes `{` of `[` and `}` of `]`, and nothing else of what JSON has outside of
    // strings.
    // Sums instead of conditions, so that the compiler can do it for many bytes at once.
    let structure = |byte: u8| {
        let folded = byte | 0x20;
        u8::from(byte == b'"') | u8::from(folded == b'{') | u8::from(folded == b'}')
    };
    let is_structure = |byte: &u8| structure(*byte) != 0;
    // Most often it is near.
    for byte in body.iter().skip(at).take(16) {
        if is_structure(byte) {
            return at;
        }
        at += 1;
    }
    // If not, these are numbers, and many: look at a piece at once.
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

/// Where the string ends whose first byte after the quotation mark is at `start`.
fn string(body: &[u8], start: usize) -> Result<usize, Malformed> {
    string_from(body, start, start)
}

/// As [`string`], if there is no quotation mark before `at`.
fn string_from(body: &[u8], start: usize, mut at: usize) -> Result<usize, Malformed> {
    loop {
        at += quote(body.get(at..).unwrap_or_default()).ok_or(Malformed)?;
        // Text is full of `\n`, and `\"` is rarer. So only before a quotation mark it matters
        // whether there is an escape: an odd number of backslashes.
        let before = body[start..at].iter().rev();
        let backslashes = before.take_while(|&&byte| byte == b'\\').count();
        at += 1;
        if backslashes % 2 == 0 {
            return Ok(at);
        }
    }
}

/// The next quotation mark. Names, roles and quotations in code are short; for these a search
/// that sets out to be fast would take longer than it lasts.
pub(crate) fn quote(text: &[u8]) -> Option<usize> {
    quote_or(b'"', text)
}

/// The next quotation mark or byte of this kind.
#[inline(always)]
fn quote_or(other: u8, text: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const TOPS: u64 = ONES << 7;
    let (words, _) = text.as_chunks::<8>();
    for (place, word) in words.iter().take(4).enumerate() {
        // A byte that is searched for becomes 0, and of the bytes of a word the lowest that is 0 is
        // the lowest whose top bit is set by this.
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

/// Where the number or the word that begins at `at` ends.
fn scalar(body: &[u8], at: usize) -> Result<usize, Malformed> {
    let rest = &body[at..];
    let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\t' | b'\n' | b'\r');
    let length = rest.iter().position(ends).ok_or(Malformed)?;
    match &rest[..length] {
        b"true" | b"false" | b"null" | [b'-' | b'0'..=b'9', ..] => Ok(at + length),
        _ => Err(Malformed),
    }
}

/// What a name is, given what is between its quotation marks.
fn written(inner: &[u8]) -> Result<Cow<'_, [u8]>, Malformed> {
    // They are short: a loop is as quick as a search, and hardly anybody writes escapes.
    if inner.iter().all(|byte| byte.is_ascii() && *byte != b'\\') {
        return Ok(Cow::Borrowed(inner));
    }
    let text = unescaped(inner)?;
    Ok(Cow::Owned(text.into_owned().into_bytes()))
}

/// What a string says, given what is between its quotation marks.
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

/// The first byte from `at` on that is not white space.
fn space(body: &[u8], mut at: usize) -> usize {
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

fn nothing_after(body: &[u8], at: usize) -> Result<(), Malformed> {
    if space(body, at) == body.len() {
        Ok(())
    } else {
        Err(Malformed)
    }
}
