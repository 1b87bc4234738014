//! How `cmd.exe` wants its words.

/// In quotes, if it needs to be. A path cannot hold a quote here.
pub(crate) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || r"\/._-+:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("\"{text}\"")
    }
}

/// A command with a variable in its environment.
pub(crate) fn with_variable(name: &str, value: &str, command: &str) -> String {
    format!("set \"{name}={value}\" && {command}")
}
