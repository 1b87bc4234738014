//! Suggestions for misspelt names of settings and sections.

/// Returns a suggestion for a misspelt name, such as ` (did you mean port?)`; empty if no known
/// name is similar.
pub(super) fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    closest(word, known).map_or_else(String::new, |near| format!(" (did you mean {near}?)"))
}

fn closest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(edits, candidate)| {
            *edits <= (candidate.len() / 3).max(1) || contains(word, candidate)
        })
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// True if one word contains the other: `timeout` is then suggested as `drain_timeout`, although
/// many letters are missing.
fn contains(word: &str, candidate: &str) -> bool {
    word.len() >= 4
        && candidate.len() >= 4
        && (candidate.contains(word) || word.contains(candidate))
}

/// Edit distance: letters added, removed, changed, or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    // The distance takes quadratic time, so only the first 64 characters are compared.
    let [a, b] = [a, b].map(|word| word.to_lowercase().chars().take(64).collect::<String>());
    strsim::osa_distance(&a, &b)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 4] = ["host", "port", "drain_timeout", "api_key_env"];

    #[test]
    fn misspelt_word_finds_the_known_word() {
        for (typed, meant) in [
            ("prot", "port"),
            ("Port", "port"),
            ("ports", "port"),
            ("hst", "host"),
            ("drain-timeout", "drain_timeout"),
            ("timeout", "drain_timeout"),
            ("api_key", "api_key_env"),
        ] {
            assert_eq!(closest(typed, KNOWN.into_iter()), Some(meant), "{typed}");
        }
    }

    #[test]
    fn dissimilar_word_finds_none() {
        for typed in ["", "x", "colour", "ünïcödé"] {
            assert_eq!(closest(typed, KNOWN.into_iter()), None, "{typed}");
        }
    }

    #[test]
    fn distance_counts_edits_and_swaps() {
        for (a, b, edits) in [
            ("", "abc", 3),
            ("prot", "port", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }
}
