//! `llmlb usage stage`: records from files or stdin are safe when this ends.

mod lines;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, IsTerminal, Read};

use spool::{BadRecord, Durability, Record, Staging};

use super::args::Stage;
use super::place::Place;
use super::{counted, disk};
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::cli::progress::Bar;
use lines::{Line, Lines};

/// A record is held in memory.
const LONGEST: usize = 16 << 20;
/// Records that are here already are staged together, in one sync, up to these limits.
const MOST_RECORDS: usize = 4096;
const MOST_BYTES: usize = 1 << 20;
/// So many bad lines are named one by one.
const MOST_NAMED: u64 = 20;

pub(super) fn stage(args: &Stage, place: &Place, quiet: bool) -> Result<u8, Failure> {
    let staging = Staging::open(place.dir().join("_staging")).map_err(|error| disk(&error))?;
    let mut intake = Intake {
        staging: &staging,
        bar: Bar::new(quiet),
        group: Vec::new(),
        group_bytes: 0,
        group_start: String::new(),
        staged: 0,
        refused: 0,
    };
    let taken = take_all(&mut intake, args, quiet);
    let (staged, refused) = (intake.staged, intake.refused);
    drop(intake);
    // What is on the disk stays there, and is found, even if this fails.
    if let Err(error) = staging.close() {
        tracing::debug!(%error, "the entry was not sealed");
    }
    if refused > MOST_NAMED {
        let more = refused - MOST_NAMED;
        output::say(&format!("{more} more were refused"));
    }
    output::data(&if args.json {
        format!(r#"{{"staged":{staged},"refused":{refused}}}"#)
    } else {
        let told = format!("staged {}", counted(staged, "record"));
        if refused == 0 {
            told
        } else {
            format!("{told}, refused {refused}")
        }
    })?;
    taken?;
    Ok(if refused == 0 {
        exit::DONE
    } else {
        exit::FAILED
    })
}

fn take_all(intake: &mut Intake<'_>, args: &Stage, quiet: bool) -> Result<(), Failure> {
    if args.files.is_empty() {
        return take_stdin(intake, quiet);
    }
    for file in &args.files {
        if file.as_os_str() == "-" {
            take_stdin(intake, quiet)?;
            continue;
        }
        let name = file.display().to_string();
        let is_one = file.extension().is_some_and(|end| end == "json");
        match File::open(file) {
            Ok(input) if is_one => intake.take_one(&name, input)?,
            Ok(input) => intake.take_lines(&name, input)?,
            Err(error) => intake.refuse(&format!("cannot read {name}: {error}")),
        }
    }
    Ok(())
}

fn take_stdin(intake: &mut Intake<'_>, quiet: bool) -> Result<(), Failure> {
    let stdin = io::stdin();
    if stdin.is_terminal() && !quiet {
        output::say("reading JSON objects from the terminal, one per line; Ctrl-D ends them");
    }
    intake.take_lines("stdin", stdin.lock())
}

/// Records on their way into the staging directory.
struct Intake<'a> {
    staging: &'a Staging,
    bar: Bar,
    /// What is staged next, together.
    group: Vec<Record>,
    group_bytes: usize,
    /// Where its first record came from.
    group_start: String,
    staged: u64,
    refused: u64,
}

impl Intake<'_> {
    /// One object per line. Lines that are here are staged together; none waits for one that is not.
    fn take_lines(&mut self, name: &str, input: impl Read) -> Result<(), Failure> {
        let mut lines = Lines::new(input, LONGEST);
        for number in 1_u64.. {
            let place = format!("{name}:{number}");
            match lines.next() {
                Ok(Some(Line::Whole(line))) => {
                    let line = if number == 1 {
                        without_mark(&line)
                    } else {
                        &line
                    };
                    if !line.trim_ascii().is_empty() {
                        self.take(&place, line)?;
                    }
                }
                Ok(Some(Line::TooLong)) => self.refuse_long(&place),
                Ok(None) => break,
                Err(error) => {
                    self.refuse(&format!("cannot read {name}: {error}"));
                    break;
                }
            }
            if !lines.is_ready() {
                self.flush()?;
            }
        }
        self.flush()
    }

    /// A file that is one object.
    fn take_one(&mut self, name: &str, input: impl Read) -> Result<(), Failure> {
        let mut text = Vec::new();
        let limit = LONGEST as u64 + 1;
        match input.take(limit).read_to_end(&mut text) {
            Ok(length) if length > LONGEST => self.refuse_long(name),
            Ok(_) => self.take(name, without_mark(&text))?,
            Err(error) => self.refuse(&format!("cannot read {name}: {error}")),
        }
        self.flush()
    }

    fn take(&mut self, place: &str, text: &[u8]) -> Result<(), Failure> {
        let record = match std::str::from_utf8(text) {
            Ok(text) => Record::parse(text).map_err(|bad| why(&bad)),
            Err(_) => Err("not a record: it is not UTF-8 text".to_owned()),
        };
        match record {
            Ok(record) => {
                if self.group.is_empty() {
                    place.clone_into(&mut self.group_start);
                }
                self.group_bytes += record.json().len();
                self.group.push(record);
            }
            Err(why) => self.refuse(&format!("{place}: {why}")),
        }
        if self.group.len() >= MOST_RECORDS || self.group_bytes >= MOST_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// When this returns, what was taken is on the disk.
    fn flush(&mut self) -> Result<(), Failure> {
        let staged = self.staging.stage_all(&self.group, Durability::Power);
        staged.map_err(|error| {
            let from = &self.group_start;
            disk(&error).hint(format!(
                "records from {from} on may be staged or not; those before it are. Stage them \
                 again; if they have ids of their own, none is counted twice"
            ))
        })?;
        self.staged += self.group.len() as u64;
        self.group.clear();
        self.group_bytes = 0;
        self.bar.show("staged", self.staged, None);
        Ok(())
    }

    fn refuse_long(&mut self, place: &str) {
        self.refuse(&format!("{place}: not a record: it is longer than 16 MiB"));
    }

    /// Names what is not staged, unless there is too much of it.
    fn refuse(&mut self, what: &str) {
        self.refused += 1;
        if self.refused <= MOST_NAMED {
            output::say(&crate::text::plain(what));
        }
    }
}

/// Some programs begin a text with a mark of its encoding.
fn without_mark(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text)
}

/// The line's number is told already: of the parser's place the column is left.
fn why(bad: &BadRecord) -> String {
    bad.to_string().replace(" at line 1 column ", " at column ")
}
