//! The only place that prints. Data goes to stdout, talk to stderr; a reader that went away is no
//! reason to fail. Characters that would steer a terminal are replaced here, whoever wrote them.

use std::io::{self, Write};

use serde::Serialize;

use super::exit::{self, Failure};
use super::progress;
use crate::text;

/// Data for a person or a pipe.
pub(super) fn data(text: &str) -> Result<(), Failure> {
    progress::clear();
    let text = text::plain_lines(text);
    match io::stdout().write_all(format!("{text}\n").as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::FAILED, format!("cannot print: {error}")))
        }
        _ => Ok(()),
    }
}

/// The text of a JSON document for a program. Unsafe characters are escaped, so that it means the
/// same.
pub(super) fn json(document: &impl Serialize) -> Result<String, Failure> {
    let document = serde_json::to_string_pretty(document)
        .map_err(|error| Failure::new(exit::FAILED, format!("cannot print JSON: {error}")))?;
    Ok(text::escaped_json(&document).into_owned())
}

/// Something a person should know.
pub(super) fn say(text: &str) {
    progress::clear();
    let text = text::plain_lines(text);
    let _ = writeln!(io::stderr(), "llmlb: {text}");
}

/// What to do about it.
pub(super) fn hint(text: &str) {
    let text = text::plain(text);
    let _ = writeln!(io::stderr(), "  hint: {text}");
}
