//! The only module that prints: data on stdout, messages on stderr. A reader that closed its end of
//! the pipe is not an error.

use std::io::{self, IsTerminal, Write};
use std::time::SystemTime;

use crate::exit::{self, Failure};

/// Prints data on stdout. A closed pipe is not an error: `tenure status | head` must not fail.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    match io::stdout().write_all(format!("{text}\n").as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let message = format!("cannot write to stdout: {error}");
            Err(Failure::new(exit::FAILED, message))
        }
        _ => Ok(()),
    }
}

pub(crate) fn message(text: &str) {
    let _ = writeln!(io::stderr(), "tenure: {text}");
}

pub(crate) fn hint(text: &str) {
    let _ = writeln!(io::stderr(), "  hint: {text}");
}

/// Colours text on a terminal. Elsewhere, or with NO_COLOR, the text is unchanged. Colour never
/// carries information that the words do not.
pub(crate) fn emphasize(text: &str, colour: Colour) -> String {
    let wanted = io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|value| value != "dumb");
    if wanted {
        format!("\x1b[{}m{text}\x1b[0m", colour as u8)
    } else {
        text.to_owned()
    }
}

/// Colours of words in the status table. The values are ANSI colour codes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Colour {
    Green = 32,
    Yellow = 33,
    Dim = 2,
}

pub(crate) fn time(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time)
        .and_then(|time| jiff::Timestamp::from_second(time.as_second()))
        .map_or_else(|_| "?".to_owned(), |time| time.to_string())
}

/// Formats the time that has passed since `time`, rounded down to a single unit. A time in the
/// future is "just now".
pub(crate) fn ago(time: SystemTime) -> String {
    let seconds = SystemTime::now()
        .duration_since(time)
        .map_or(0, |passed| passed.as_secs());
    match seconds {
        0 => "just now".to_owned(),
        1..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}
