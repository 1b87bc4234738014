//! Quoting for Unix shells, so that commands in hints can be typed as printed.

/// Quotes a word if a shell would otherwise split or expand it.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Returns a shell command line that runs `command` with this environment variable, for hints that
/// can be typed as printed.
pub(crate) fn with_variable(name: &str, value: &str, command: &str) -> String {
    format!("{name}={} {command}", quoted(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_is_quoted_only_if_the_shell_would_change_it() {
        assert_eq!(quoted("/tmp/a.lock"), "/tmp/a.lock");
        assert_eq!(quoted("/tmp/it's here"), r"'/tmp/it'\''s here'");
        assert_eq!(with_variable("D", "/a b", "x"), "D='/a b' x");
    }
}
