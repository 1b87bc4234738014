//! Detects field names in a request that differ only in case from a name that llmlb reads. Go's
//! JSON decoder, which Ollama and LocalAI use, reads `Model` as `model`, so the backend could serve
//! another model than llmlb bills.

/// Fields of a request that determine routing, metering and the form of the response. A variant of
/// one of them in another case is rejected.
const ACTED_ON: [&str; 3] = ["model", "stream", "stream_options"];

/// Returns the known field that equals this name if case is ignored, if there is one.
pub(super) fn find(name: &[u8]) -> Option<&'static str> {
    let name = str::from_utf8(name).ok()?;
    ACTED_ON.into_iter().find(|known| is_variant(known, name))
}

/// True if two names are equal when case is ignored.
pub(super) fn is_variant(one: &str, other: &str) -> bool {
    if other.is_ascii() {
        return one.eq_ignore_ascii_case(other); // The usual case, and faster.
    }
    let (mut one, mut other) = (one.chars(), other.chars());
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if is_same_letter(a, b) => {}
            _ => return false,
        }
    }
}

/// True if two letters are equal when case is ignored. Letters beyond ASCII count too: decoders
/// treat `ſ` as a variant of `s`.
fn is_same_letter(a: char, b: char) -> bool {
    if a.is_ascii() && b.is_ascii() {
        return a.eq_ignore_ascii_case(&b);
    }
    a.to_lowercase().eq(b.to_lowercase()) || a.to_uppercase().eq(b.to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_name_is_found_in_any_case() {
        for (name, known) in [
            ("model", "model"),
            ("MODEL", "model"),
            ("Stream", "stream"),
            ("ſtream", "stream"),
            ("stream_optionS", "stream_options"),
            ("ſTREAM_OPTIONſ", "stream_options"),
        ] {
            assert_eq!(find(name.as_bytes()), Some(known), "{name}");
        }
        for name in [
            "", "mode", "models", "modèl", "stream_", "options", "mod el",
        ] {
            assert_eq!(find(name.as_bytes()), None, "{name}");
        }
    }
}
