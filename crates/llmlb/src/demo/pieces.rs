//! Text cut as a tokenizer might cut it.

/// The bytes of a word that make one piece: most English words are whole.
const LONGEST: usize = 7;

/// Cuts text into word pieces and single signs, each with the space before it. Joined they are the
/// text again.
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

/// How many tokens the text would be.
pub(super) fn count(text: &str) -> usize {
    pieces(text).count()
}

fn first_length(text: &str) -> usize {
    let bare = text.trim_start();
    let space = text.len() - bare.len();
    let letters = bare
        .char_indices()
        .take_while(|(at, c)| c.is_alphanumeric() && at + c.len_utf8() <= LONGEST)
        .count();
    // A sign is a piece of its own; space at the end of the text is, too.
    let body: usize = bare.chars().take(letters.max(1)).map(char::len_utf8).sum();
    space + body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Vec<&str> {
        pieces(text).collect()
    }

    #[test]
    fn pieces_keep_the_space_before_them() {
        assert_eq!(
            cut("Hello, wide world!"),
            ["Hello", ",", " wide", " world", "!"]
        );
        assert_eq!(cut("a balancing act"), ["a", " balanci", "ng", " act"]);
        assert_eq!(cut(" \n"), [" \n"]);
        assert_eq!(cut(""), [""; 0]);
    }

    #[test]
    fn joined_pieces_are_the_text() {
        for text in [
            "",
            "  two  spaces ",
            "日本語のテキスト",
            "é🙂 👩‍👩‍👧\u{301}x\0\n\nend\t",
        ] {
            assert_eq!(cut(text).concat(), text);
            assert!(cut(text).iter().all(|piece| !piece.is_empty()));
        }
    }
}
