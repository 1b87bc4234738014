//! The only place that prints. Data goes to stdout, talk to stderr; a reader that went away is no
//! reason to fail.

use std::io::{self, Write};

use super::exit::{self, Failure};
use super::progress;

/// Data for a person or a pipe.
pub(super) fn data(text: &str) -> Result<(), Failure> {
    progress::clear();
    match io::stdout().write_all(format!("{text}\n").as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(exit::FAILED, format!("cannot print: {error}")))
        }
        _ => Ok(()),
    }
}

/// Something a person should know.
pub(super) fn say(text: &str) {
    progress::clear();
    let _ = writeln!(io::stderr(), "llmlb: {text}");
}

/// What to do about it.
pub(super) fn hint(text: &str) {
    let _ = writeln!(io::stderr(), "  hint: {text}");
}
