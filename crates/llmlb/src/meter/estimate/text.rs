//! Measures text in parts of a token, by the length of its characters in UTF-8.
//!
//! Every byte is counted. If only samples of a long text were measured, a client could put characters
//! that count less into the samples and be billed for less. The loops over lanes have no branches, so
//! that the compiler vectorizes them.

/// Number of parts of one token, the unit in which text is measured. A character counts 3, 6, 12 or
/// 24 parts, from a quarter of a token to two tokens, so that sums need no fractions.
pub(super) const PARTS: u64 = 12;

const LANES: usize = 16;
type Lanes = [u8; LANES];

/// Returns the length of the text of a JSON string, in parts of a token. An escape counts as the
/// character that it encodes. In a run of more than two backslashes only the first pair counts as
/// one character, so the result may be too high, never too low.
pub(crate) fn parts(text: &[u8]) -> u64 {
    let is_plain = |byte: &u8| byte.is_ascii() && *byte != b'\\';
    if text.len() < LANES && text.iter().all(is_plain) {
        return 3 * text.len() as u64;
    }
    parts_with_escapes(text, memchr::memchr(b'\\', text))
}

/// As [`parts`], for a caller that has found the first backslash already, so that the text is not
/// searched twice.
pub(super) fn parts_with_escapes(text: &[u8], first_escape: Option<usize>) -> u64 {
    let raw = if is_ascii(text) {
        3 * text.len() as u64
    } else {
        by_length_of_characters(text)
    };
    match first_escape {
        None => raw,
        Some(first) => raw - excess_of_escapes(&text[first..]),
    }
}

/// True if all bytes are ASCII. Faster than the standard library's `is_ascii` on long text.
fn is_ascii(text: &[u8]) -> bool {
    let any = |bytes: &[u8]| bytes.iter().fold(0, |any, byte| any | byte);
    let (pieces, rest) = text.as_chunks::<512>();
    pieces.iter().all(|piece| any(piece) < 0x80) && any(rest) < 0x80
}

fn by_length_of_characters(text: &[u8]) -> u64 {
    let parts = |byte: u8| {
        // Bytes from 0x80 to 0xBF continue a UTF-8 character whose first byte was counted already,
        // so they count 0.
        3 * u8::from(byte < 0x80)
            + 6 * (u8::from(byte >= 0xC0) + u8::from(byte >= 0xE0))
            + 12 * u8::from(byte >= 0xF0)
    };
    let sum_of_group = |group: &[u8]| {
        let mut lanes = [0; LANES];
        for chunk in group.as_chunks::<LANES>().0 {
            for (sum, byte) in lanes.iter_mut().zip(chunk) {
                *sum += parts(*byte);
            }
        }
        sum(&lanes)
    };
    // A lane of 8 bits holds at most 255, and one byte counts at most 24 parts. Add at most ten
    // bytes to a lane, otherwise it would overflow.
    let groups = text.chunks_exact(10 * LANES);
    let rest = groups.remainder().iter();
    let rest: u64 = rest.map(|byte| u64::from(parts(*byte))).sum();
    rest + groups.map(sum_of_group).sum::<u64>()
}

/// Returns the number of parts by which a count of all bytes is too high, because a JSON escape is
/// longer than the character that it encodes. `text` must begin with a backslash.
fn excess_of_escapes(text: &[u8]) -> u64 {
    let is_first = |before: u8, byte: u8| u8::from(byte == b'\\') & u8::from(before != b'\\');
    let is_unicode = |before: u8, byte: u8| u8::from(byte == b'u') & u8::from(before == b'\\');
    let pair = |before, byte| [is_first(before, byte), is_unicode(before, byte)];
    let [escapes, unicode] = count_pairs(text, pair);
    // Subtract one of the two bytes of an escape such as `\n`, which encodes a single character.
    let excess = 3 * (1 + escapes);
    match unicode {
        0 => excess,
        _ => excess + excess_of_unicode_escapes(text),
    }
}

/// Calls `count` with every pair of adjacent bytes, which returns two numbers, and returns the sum
/// of each. With two sums, one pass over the text finds both the escapes and the `\u` escapes.
pub(super) fn count_pairs(text: &[u8], count: impl Fn(u8, u8) -> [u8; 2]) -> [u64; 2] {
    let Some((_, after)) = text.split_first() else {
        return [0; 2];
    };
    let mut sums = [0; 2];
    let (before, _) = text.as_chunks::<LANES>();
    let (chunks, rest) = after.as_chunks::<LANES>();
    // Each of the 16 lanes is a sum of 8 bits, to which every chunk adds at most 1. The lanes are
    // added to `sums` after 128 chunks, before a lane can overflow.
    for (before, chunks) in before.chunks(128).zip(chunks.chunks(128)) {
        let (mut first, mut second) = ([0; LANES], [0; LANES]);
        for (before, chunk) in before.iter().zip(chunks) {
            for lane in 0..LANES {
                let [one, other] = count(before[lane], chunk[lane]);
                first[lane] += one;
                second[lane] += other;
            }
        }
        sums[0] += sum(&first);
        sums[1] += sum(&second);
    }
    let before = &text[after.len() - rest.len()..];
    for (before, byte) in before.iter().zip(rest) {
        let [one, other] = count(*before, *byte);
        sums[0] += u64::from(one);
        sums[1] += u64::from(other);
    }
    sums
}

/// Number of bytes around a `u` in JSON text that suffice to recognize a `\u` escape and its
/// character.
const AROUND: usize = 5;
const WINDOW: usize = AROUND + LANES;

/// Returns the number of parts by which a count of all bytes is too high because of the four digits
/// of escapes such as `\u0041`. The other two bytes of an escape are the subject of
/// [`excess_of_escapes`].
fn excess_of_unicode_escapes(text: &[u8]) -> u64 {
    let is_escape = |before: [u8; 2], byte: u8| {
        u8::from(byte == b'u') & u8::from(before[1] == b'\\') & u8::from(before[0] != b'\\')
    };
    let is_low = |a: u8, b: u8| u8::from(a == b'0') & u8::from(b & 0xF8 == b'0');
    let single = |[x, y, byte, a, b, c]: [u8; AROUND + 1]| {
        let low = is_low(a, b);
        u64::from(is_escape([x, y], byte) * (1 + 2 * low + (low & is_low(b, c))))
    };
    let mut excess = match *text {
        // Count an escape at the start of `text` here. The loop below would miss the escape,
        // because the loop reads two bytes in front of each `u`, and the `u` of this escape has
        // only one.
        [b'\\', b'u', a, b, c, ..] => single([0, b'\\', b'u', a, b, c]),
        _ => 0,
    };
    let mut rest = text;
    while rest.len() >= WINDOW {
        // Counts in each lane: `\u` escapes of characters that have one byte in UTF-8, of those
        // that have at most two bytes, and of all characters. The three differ in the parts that
        // they count.
        let (mut one, mut two, mut all) = ([0; LANES], [0; LANES], [0; LANES]);
        for _ in 0..128 {
            let Some(window) = rest.first_chunk::<WINDOW>() else {
                break;
            };
            let mut found = [0; LANES];
            for lane in 0..LANES {
                found[lane] = is_escape([window[lane], window[lane + 1]], window[lane + 2]);
                all[lane] += found[lane];
            }
            for lane in 0..LANES {
                found[lane] &= is_low(window[lane + 3], window[lane + 4]);
                two[lane] += found[lane];
            }
            for lane in 0..LANES {
                one[lane] += found[lane] & is_low(window[lane + 4], window[lane + 5]);
            }
            rest = &rest[LANES..];
        }
        excess += sum(&all) + 2 * sum(&two) + sum(&one);
    }
    let rest = rest
        .windows(AROUND + 1)
        .filter_map(|window| window.first_chunk());
    3 * (excess + rest.copied().map(single).sum::<u64>())
}

fn sum(lanes: &Lanes) -> u64 {
    lanes.iter().map(|lane| u64::from(*lane)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    /// Slow reference implementation that decodes the text character by character. The tests
    /// compare the fast implementation with it.
    fn reference(text: &[u8]) -> u64 {
        let (mut parts, mut rest) = (0, text);
        loop {
            let (more, tail) = match rest {
                [] => return parts,
                [b'\\', b'u', a, b, c, _, tail @ ..] => match [*a, *b, *c] {
                    [b'0', b'0', b'0'..=b'7'] => (3, tail),
                    [b'0', b'0'..=b'7', _] => (6, tail),
                    // All other `\u` escapes count 12 parts of a token, as characters with three
                    // bytes in UTF-8 do. An emoji of 24 parts has two escapes, one for each
                    // surrogate.
                    _ => (12, tail),
                },
                [b'\\', _, tail @ ..] | [0..0x80, tail @ ..] => (3, tail),
                [0x80..0xC0, tail @ ..] => (0, tail),
                [0xC0..0xE0, tail @ ..] => (6, tail),
                [0xE0..0xF0, tail @ ..] => (12, tail),
                [0xF0..=0xFF, tail @ ..] => (24, tail),
            };
            parts += more;
            rest = tail;
        }
    }

    const WORDS: [&str; 16] = [
        "a",
        "The quick brown fox ",
        "u",
        "u0041",
        "é",
        "Привет",
        "中文",
        "😀",
        r"\n",
        r"\\",
        r"\u0041",
        r"\u00e9",
        r"\u041f",
        r"\u4e2d",
        r"\ud83d\ude00",
        r"\u000a",
    ];

    #[test]
    fn text_of_any_length_is_counted_exactly() {
        let mut dice = Dice::new(1);
        for _ in 0..2000 {
            let (mut text, mut previous) = (String::new(), "");
            for _ in 0..dice.below(300) {
                // Generate no runs of backslashes: their estimate may be higher than the exact
                // count, and another test covers them.
                let word = dice.pick(&WORDS);
                if !(previous == r"\\" && word.starts_with('\\')) {
                    text.push_str(word);
                    previous = word;
                }
            }
            assert_eq!(parts(text.as_bytes()), reference(text.as_bytes()), "{text}");
        }
        let long = "中文 and words\\n".repeat(20_000);
        assert_eq!(parts(long.as_bytes()), reference(long.as_bytes()));
    }

    #[test]
    fn run_of_backslashes_is_never_counted_too_low() {
        let mut dice = Dice::new(2);
        for _ in 0..2000 {
            let words =
                (0..dice.below(100)).map(|_| dice.pick(&[r"\\", r"\u0041", "u0041", r"\n", "a"]));
            let text: String = words.collect();
            let counted = parts(text.as_bytes());
            assert!(counted >= reference(text.as_bytes()), "{text}");
            assert!(counted <= 3 * text.len() as u64, "{text}");
        }
    }

    #[test]
    fn count_of_invalid_json_or_utf8_is_bounded() {
        for text in ["", r"\", r"\u", r"\u0", r"\u00", r"\u004", "\\\u{0}"] {
            assert!(parts(text.as_bytes()) <= 3 * text.len() as u64, "{text}");
        }
        let mut dice = Dice::new(3);
        for _ in 0..1000 {
            let bytes: Vec<u8> = (0..dice.below(100))
                .map(|_| *dice.pick(&[&b'\\', &b'u', &b'0', &0x80, &0xC3, &0xF0, &b'a']))
                .collect();
            assert!(parts(&bytes) <= 24 * bytes.len() as u64);
        }
    }
}
