//! Quoting for `cmd.exe`, so that commands in hints can be typed as printed.

/// Quotes a word if `cmd.exe` would otherwise split it. A path on Windows cannot contain a quote.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || r"\/._-+:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("\"{text}\"")
    }
}

/// Returns a command line for `cmd.exe` that runs `command` with this environment variable, for
/// hints that can be typed as printed.
pub(crate) fn with_variable(name: &str, value: &str, command: &str) -> String {
    format!("set \"{name}={value}\" && {command}")
}
