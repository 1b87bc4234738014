//! `llmlb usage export`: writes single records as CSV or JSON lines.
//!
//! The records are read from staged entries and from batches that are pending, archived or failed, each
//! once. If records of the period are no longer on disk, the command says which ones and exits 1.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::{Map, Value};
use spool::{MissingRecords, Record};

use super::args::{Export, ExportFormat};
use super::data_dir::DataDir;
use super::tally::csv::cell;
use super::tally::{Zone, period};
use super::{counted, disk};
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::text;

/// Columns of the CSV: the time in the time zone of `--tz`, then fields of the records.
const FIELDS: [&str; 22] = [
    "id",
    "request_id",
    "team",
    "key",
    "model",
    "served_model",
    "backend",
    "api",
    "path",
    "stream",
    "status",
    "outcome",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "tokens",
    "tokens_from",
    "ms",
    "first_byte_ms",
    "bytes",
    "instance",
];

pub(super) fn export(args: &Export, data: &DataDir) -> Result<u8, Failure> {
    data.require()?;
    let period = period(&args.period)?;
    let zone = args.period.tz.clone().unwrap_or_default();
    let mut target = Target::open(args.output.as_deref())?;
    let mut done = write_head(args, &mut target);
    let mut written = 0_u64;
    let (from, until) = (Some(period.from.into()), period.until.map(Into::into));
    let exported = spool::export(data.dir(), from, until, |record| {
        if done.is_ok() {
            done = write(args, record, &zone, &mut target).map(|is_written| {
                written += u64::from(is_written);
            });
        }
        if done.is_ok() {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    let exported = exported.map_err(|error| disk(&error))?;
    match done.and_then(|()| target.finish()) {
        // End quietly if the pipe is closed: its reader, such as `head`, needs no more records.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(exit::DONE),
        done => done.map_err(|error| unwritable(args.output.as_deref(), &error))?,
    }
    if let Some(file) = &args.output {
        let records = counted(written, "record");
        output::message(&format!("wrote {records} to {}", file.display()));
    }
    data.report_lost();
    let mut messages = Vec::new();
    if !exported.missing.is_empty() {
        let missing = missing_words(&exported.missing);
        messages.push(format!("the export is incomplete: {missing}"));
    }
    if let Some(first) = exported.problems.first() {
        let files = counted(exported.problems.len() as u64, "file");
        messages.push(format!("{files} cannot be read: {first}"));
    }
    if messages.is_empty() {
        return Ok(exit::DONE);
    }
    let failure = Failure::new(exit::FAILED, messages.join("; "));
    Err(if exported.missing.is_empty() {
        failure.hint(format!("list all problems with {}", data.command("verify")))
    } else {
        failure
            .hint("delivered batches are deleted: the receiver has their records")
            .hint("batches that a limit of archive/ or failed/ deleted are lost")
            .hint(format!(
                "the sums of all records are complete: {}",
                data.command("--by team,served_model")
            ))
    })
}

/// Describes records of the period that are no longer on disk, such as `7 records from
/// 2026-11-01T10 to 2026-11-02 (UTC)`.
pub(super) fn missing_words(missing: &[MissingRecords]) -> String {
    let records = missing.iter().map(|missing| missing.records).sum();
    let records = counted(records, "record");
    let (first, last) = (missing.first(), missing.last());
    let period = |one: Option<&MissingRecords>| one.map(|one| one.period.clone());
    let (first, last) = (
        period(first).unwrap_or_default(),
        period(last).unwrap_or_default(),
    );
    if first == last {
        format!("{records} of {first} (UTC) are no longer on disk")
    } else {
        format!("{records} from {first} to {last} (UTC) are no longer on disk")
    }
}

fn write_head(args: &Export, target: &mut Target) -> io::Result<()> {
    if args.format == ExportFormat::Csv {
        write!(target, "time,{}\r\n", FIELDS.join(","))?;
    }
    Ok(())
}

/// Writes a record to the export, unless `--team`, `--key` or `--model` excludes it.
fn write(args: &Export, record: &Record, zone: &Zone, target: &mut Target) -> io::Result<bool> {
    // The fallback is never used: the spool has parsed this JSON before, so parsing it again cannot
    // fail.
    let fields: Map<String, Value> = serde_json::from_str(record.json())?;
    let is_any = |names: &[String], fields_: &[&str]| {
        let has = |name: &String| {
            let values = fields_.iter().map(|field| fields.get(*field));
            values.flatten().any(|value| value.as_str() == Some(name))
        };
        names.is_empty() || names.iter().any(has)
    };
    let is_selected = is_any(&args.team, &["team"])
        && is_any(&args.key, &["key"])
        && is_any(&args.model, &["model", "served_model"]);
    if !is_selected {
        return Ok(false);
    }
    match args.format {
        ExportFormat::Jsonl => {
            // Escape bidirectional and control characters, which could deceive readers of the file.
            // The JSON keeps its meaning.
            writeln!(target, "{}", text::escaped_json(record.json()))?;
        }
        ExportFormat::Csv => write!(target, "{}\r\n", csv_line(record, &fields, zone))?,
    }
    Ok(true)
}

fn csv_line(record: &Record, fields: &Map<String, Value>, zone: &Zone) -> String {
    let mut line = time_of(record).map_or_else(String::new, |time| zone.exact(time));
    for field in FIELDS {
        line.push(',');
        line.push_str(&match fields.get(field) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => cell(Some(text)),
            // Write numbers without quotes and with all digits: a JSON number has no character that
            // CSV quotes, and a negative number is no formula.
            Some(Value::Number(number)) => number.to_string(),
            Some(other) => cell(Some(&other.to_string())),
        });
    }
    line
}

/// Returns the time in the record's id, by which reports and exports select records.
fn time_of(record: &Record) -> Option<Timestamp> {
    let (seconds, nanos) = record.id().get_timestamp()?.to_unix();
    Timestamp::new(i64::try_from(seconds).ok()?, i32::try_from(nanos).ok()?).ok()
}

fn unwritable(file: Option<&Path>, error: &io::Error) -> Failure {
    let name = file.map_or_else(|| "stdout".to_owned(), |file| file.display().to_string());
    let failure = Failure::new(exit::FAILED, format!("cannot write to {name}: {error}"));
    failure.hint("name another file: `-o FILE`")
}

/// Destination of the exported records. A file is written under a temporary name and renamed when it is
/// complete, so that an interrupted export does not look like a complete one.
enum Target {
    Stdout(BufWriter<io::Stdout>),
    File {
        writer: BufWriter<File>,
        /// Temporary path of the file, and the final path. `None` for a device or pipe, which is
        /// written in place.
        rename: Option<(PathBuf, PathBuf)>,
    },
}

impl Target {
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else {
            return Ok(Self::Stdout(BufWriter::new(io::stdout())));
        };
        Self::open_file(path).map_err(|error| unwritable(Some(path), &error))
    }

    fn open_file(path: &Path) -> io::Result<Self> {
        let about = fs::metadata(path).ok();
        let mut options = File::options();
        options.write(true);
        if about.as_ref().is_some_and(fs::Metadata::is_dir) {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if about.as_ref().is_some_and(|about| !about.is_file()) {
            let writer = BufWriter::new(options.open(path)?);
            let rename = None;
            return Ok(Self::File { writer, rename });
        }
        // Resolve a link first: the export replaces the file that the link names, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        let writer = BufWriter::new(options.create_new(true).open(&temporary)?);
        let rename = Some((temporary, path));
        Ok(Self::File { writer, rename })
    }

    fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        if let Self::File {
            writer,
            rename: Some((temporary, path)),
        } = &self
        {
            writer.get_ref().sync_all()?;
            fs::rename(temporary, path)?;
        }
        Ok(())
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(writer) => writer.write(bytes),
            Self::File { writer, .. } => writer.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(writer) => writer.flush(),
            Self::File { writer, .. } => writer.flush(),
        }
    }
}

impl Drop for Target {
    /// Removes the temporary file of an export that failed. After a rename it does not exist.
    fn drop(&mut self) {
        if let Self::File {
            rename: Some((temporary, _)),
            ..
        } = self
        {
            let _ = fs::remove_file(temporary);
        }
    }
}
