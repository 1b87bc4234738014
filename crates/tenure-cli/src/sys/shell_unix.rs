//! How a Unix shell wants its words.

/// In quotes, if it needs to be.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// A command with a variable in its environment.
pub(crate) fn with_variable(name: &str, value: &str, command: &str) -> String {
    format!("{name}={} {command}", quoted(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_quoted_when_it_must_be() {
        assert_eq!(quoted("/tmp/a.lock"), "/tmp/a.lock");
        assert_eq!(quoted("/tmp/it's here"), r"'/tmp/it'\''s here'");
        assert_eq!(with_variable("D", "/a b", "x"), "D='/a b' x");
    }
}
