//! All printing of the command line: data to stdout, messages to stderr. A closed pipe is not an
//! error. Control characters are replaced here, because backends and clients choose parts of the
//! text and could control the terminal.

use std::io::{self, Write};

use serde::Serialize;

use super::exit::{self, Failure};
use super::progress;
use crate::text;

/// Prints data, such as tables and JSON, to stdout.
pub(super) fn data(text: &str) -> Result<(), Failure> {
    progress::clear();
    let text = text::plain_lines(text);
    match io::stdout().write_all(format!("{text}\n").as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::new(
            exit::FAILED,
            format!("cannot write to stdout: {error}"),
        )),
        _ => Ok(()),
    }
}

/// Formats a JSON document. Characters that could control the terminal are escaped, which leaves
/// the meaning unchanged.
pub(super) fn json(document: &impl Serialize) -> Result<String, Failure> {
    let document = serde_json::to_string_pretty(document)
        .map_err(|error| Failure::new(exit::FAILED, format!("cannot format JSON: {error}")))?;
    Ok(text::escaped_json(&document).into_owned())
}

/// Prints a message to stderr.
pub(super) fn message(text: &str) {
    progress::clear();
    let text = text::plain_lines(text);
    let _ = writeln!(io::stderr(), "llmlb: {text}");
}

/// Prints a hint to stderr, on its own line below the message.
pub(super) fn hint(text: &str) {
    let text = text::plain(text);
    let _ = writeln!(io::stderr(), "  hint: {text}");
}
