//! `llmlb usage stage`: stages records from files or stdin. All of them are synced to disk before
//! the command exits.

mod lines;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, IsTerminal, Read};

use spool::{BadRecord, Durability, Record, Staging};

use super::args::Stage;
use super::data_dir::DataDir;
use super::{counted, disk};
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::cli::progress::ProgressLine;
use lines::{InputLine, LineReader};

/// Maximum size of one staged record, which is held in memory.
const MAX_RECORD_BYTES: usize = 16 << 20;
/// Maximum number of buffered records that are staged with one sync.
const MAX_GROUP_RECORDS: usize = 4096;
/// Maximum size of the buffered records that are staged with one sync.
const MAX_GROUP_BYTES: usize = 1 << 20;
/// Maximum number of rejected records that are reported one by one, so that a wrong file does not
/// flood the terminal.
const MAX_REPORTED: u64 = 20;

pub(super) fn stage(args: &Stage, data: &DataDir, quiet: bool) -> Result<u8, Failure> {
    let staging = Staging::open(data.dir().join("_staging")).map_err(|error| disk(&error))?;
    let mut run = StagingRun {
        staging: &staging,
        bar: ProgressLine::new(quiet),
        group: Vec::new(),
        group_bytes: 0,
        group_start: String::new(),
        staged: 0,
        rejected: 0,
    };
    let taken = stage_all(&mut run, args, quiet);
    let (staged, rejected) = (run.staged, run.rejected);
    drop(run);
    // Log a failure to seal the entry only at debug level: its records are on disk, and the next
    // consolidation seals it.
    if let Err(error) = staging.close() {
        tracing::debug!(%error, "cannot seal the staging entry");
    }
    if rejected > MAX_REPORTED {
        let more = rejected - MAX_REPORTED;
        output::message(&format!("{more} more records rejected"));
    }
    output::data(&if args.json {
        format!(r#"{{"staged":{staged},"refused":{rejected}}}"#)
    } else {
        let text = format!("staged {}", counted(staged, "record"));
        if rejected == 0 {
            text
        } else {
            format!("{text}, rejected {rejected}")
        }
    })?;
    taken?;
    Ok(if rejected == 0 {
        exit::DONE
    } else {
        exit::FAILED
    })
}

fn stage_all(run: &mut StagingRun<'_>, args: &Stage, quiet: bool) -> Result<(), Failure> {
    if args.files.is_empty() {
        return stage_stdin(run, quiet);
    }
    for file in &args.files {
        if file.as_os_str() == "-" {
            stage_stdin(run, quiet)?;
            continue;
        }
        let name = file.display().to_string();
        let is_one = file.extension().is_some_and(|end| end == "json");
        match File::open(file) {
            Ok(input) if is_one => run.stage_object(&name, input)?,
            Ok(input) => run.stage_lines(&name, input)?,
            Err(error) => run.reject(&format!("cannot read {name}: {error}")),
        }
    }
    Ok(())
}

fn stage_stdin(run: &mut StagingRun<'_>, quiet: bool) -> Result<(), Failure> {
    let stdin = io::stdin();
    if stdin.is_terminal() && !quiet {
        output::message("reading JSON objects from the terminal, one per line; end with Ctrl-D");
    }
    run.stage_lines("stdin", stdin.lock())
}

/// State of one `llmlb usage stage`: the buffered records, and the counts so far.
struct StagingRun<'a> {
    staging: &'a Staging,
    bar: ProgressLine,
    /// Buffered records, which the next `flush` stages together with one sync.
    group: Vec<Record>,
    group_bytes: usize,
    /// Source of the first record in `group`, as `FILE:LINE`, for the error if staging fails.
    group_start: String,
    staged: u64,
    rejected: u64,
}

impl StagingRun<'_> {
    /// Stages one object per line. Buffered lines are staged together, but no complete line waits
    /// for later input.
    fn stage_lines(&mut self, name: &str, input: impl Read) -> Result<(), Failure> {
        let mut lines = LineReader::new(input, MAX_RECORD_BYTES);
        for number in 1_u64.. {
            let source = format!("{name}:{number}");
            match lines.next() {
                Ok(Some(InputLine::Whole(line))) => {
                    let line = if number == 1 {
                        without_bom(&line)
                    } else {
                        &line
                    };
                    if !line.trim_ascii().is_empty() {
                        self.add(&source, line)?;
                    }
                }
                Ok(Some(InputLine::TooLong)) => self.reject_overlong(&source),
                Ok(None) => break,
                Err(error) => {
                    self.reject(&format!("cannot read {name}: {error}"));
                    break;
                }
            }
            if !lines.is_ready() {
                self.flush()?;
            }
        }
        self.flush()
    }

    /// Stages a `.json` file, which is a single object in any layout.
    fn stage_object(&mut self, name: &str, input: impl Read) -> Result<(), Failure> {
        let mut text = Vec::new();
        let limit = MAX_RECORD_BYTES as u64 + 1;
        match input.take(limit).read_to_end(&mut text) {
            Ok(length) if length > MAX_RECORD_BYTES => self.reject_overlong(name),
            Ok(_) => self.add(name, without_bom(&text))?,
            Err(error) => self.reject(&format!("cannot read {name}: {error}")),
        }
        self.flush()
    }

    fn add(&mut self, source: &str, text: &[u8]) -> Result<(), Failure> {
        let record = match std::str::from_utf8(text) {
            Ok(text) => Record::parse(text).map_err(|bad| why(&bad)),
            Err(_) => Err("not a record: it is not UTF-8 text".to_owned()),
        };
        match record {
            Ok(record) => {
                if self.group.is_empty() {
                    source.clone_into(&mut self.group_start);
                }
                self.group_bytes += record.json().len();
                self.group.push(record);
            }
            Err(why) => self.reject(&format!("{source}: {why}")),
        }
        if self.group.len() >= MAX_GROUP_RECORDS || self.group_bytes >= MAX_GROUP_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Stages the buffered records. When this returns without an error, they are synced to disk.
    fn flush(&mut self) -> Result<(), Failure> {
        let staged = self.staging.stage_all(&self.group, Durability::Power);
        staged.map_err(|error| {
            let from = &self.group_start;
            disk(&error).hint(format!(
                "records before {from} are staged, later ones may not be. Records with an `id` are \
                 never counted twice: stage the rest again with `llmlb usage stage FILE`"
            ))
        })?;
        self.staged += self.group.len() as u64;
        self.group.clear();
        self.group_bytes = 0;
        self.bar.show_count("staged", self.staged, None);
        Ok(())
    }

    fn reject_overlong(&mut self, source: &str) {
        self.reject(&format!("{source}: not a record: it is longer than 16 MiB"));
    }

    /// Counts a rejected record, and prints the reason for the first `MAX_REPORTED` of them.
    fn reject(&mut self, what: &str) {
        self.rejected += 1;
        if self.rejected <= MAX_REPORTED {
            output::message(&crate::text::plain(what));
        }
    }
}

/// Strips a byte order mark, with which some programs begin UTF-8 text and which is not valid JSON.
fn without_bom(text: &[u8]) -> &[u8] {
    text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text)
}

/// Formats a JSON error without its line number, which would contradict the line of the file in the
/// same message.
fn why(bad: &BadRecord) -> String {
    bad.to_string().replace(" at line 1 column ", " at column ")
}
