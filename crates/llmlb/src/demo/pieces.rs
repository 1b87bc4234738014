//! Split of text into pieces, which stand for the tokens of a real model.

/// Maximum number of bytes of a word in one piece. Longer words are split.
const MAX_WORD_BYTES: usize = 7;

/// Splits text into parts of words and single symbols, each with the space in front of it. The
/// concatenation of the pieces is the text.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, after) = rest.split_at(first_length(rest));
        rest = after;
        Some(piece)
    })
}

pub(super) fn count(text: &str) -> usize {
    pieces(text).count()
}

fn first_length(text: &str) -> usize {
    let bare = text.trim_start();
    let space = text.len() - bare.len();
    let letters = bare
        .char_indices()
        .take_while(|(at, c)| c.is_alphanumeric() && at + c.len_utf8() <= MAX_WORD_BYTES)
        .count();
    // A symbol is a piece of its own, and so is white space at the end of the text.
    let body: usize = bare.chars().take(letters.max(1)).map(char::len_utf8).sum();
    space + body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<&str> {
        pieces(text).collect()
    }

    #[test]
    fn pieces_include_the_space_in_front_of_them() {
        assert_eq!(
            split("Hello, wide world!"),
            ["Hello", ",", " wide", " world", "!"]
        );
        assert_eq!(split("a balancing act"), ["a", " balanci", "ng", " act"]);
        assert_eq!(split(" \n"), [" \n"]);
        assert_eq!(split(""), [""; 0]);
    }

    #[test]
    fn concatenated_pieces_equal_the_text() {
        for text in [
            "",
            "  two  spaces ",
            "日本語のテキスト",
            "é🙂 👩‍👩‍👧\u{301}x\0\n\nend\t",
        ] {
            assert_eq!(split(text).concat(), text);
            assert!(split(text).iter().all(|piece| !piece.is_empty()));
        }
    }
}
