//! `llmlb usage verify`: the books balance, or what is wrong with them.

use std::cell::Cell;

use serde::Serialize;
use spool::{Books, Cancel, Progress, Watch};

use super::args::Look;
use super::json::{self, VERSION};
use super::place::Place;
use super::{counted, disk};
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::cli::progress::Bar;

#[derive(Serialize)]
struct Document {
    version: u32,
    balanced: bool,
    staged: u64,
    delivered: u64,
    archived: u64,
    pending: u64,
    failed: u64,
    repeated: u64,
    busy: Option<Busy>,
    problems: Vec<Entry>,
}

/// Somebody is at work there.
#[derive(Serialize)]
struct Busy {
    pid: Option<u32>,
}

#[derive(Serialize)]
struct Entry {
    path: String,
    record: Option<String>,
    what: String,
}

pub(super) fn verify(args: &Look, place: &Place, quiet: bool) -> Result<u8, Failure> {
    place.must_exist()?;
    let bar = Bar::new(quiet);
    let checked = Cell::new(0);
    let progress = |seen: Progress| {
        if let Progress::Checked { bytes, .. } = seen {
            checked.set(checked.get() + bytes);
            bar.say(&format!("checked {} MiB", checked.get() >> 20));
        }
    };
    let watch = Watch {
        cancel: Cancel::new(),
        progress: &progress,
    };
    let books = spool::verify(place.dir(), &watch).map_err(|error| disk(&error))?;
    drop(bar);
    if args.json {
        json::print(&document(&books))?;
    } else if books.problems.is_empty() {
        output::data(&balance(&books))?;
    } else {
        for problem in &books.problems {
            output::data(&problem.to_string())?;
        }
    }
    if let Some(busy) = books.busy {
        let pid = busy
            .pid
            .map_or_else(String::new, |pid| format!(", PID {pid}"));
        output::say(&format!(
            "another process is working on this data{pid}: a problem may be gone when it is done"
        ));
    }
    place.tell_lost();
    if books.problems.is_empty() {
        return Ok(exit::DONE);
    }
    let count = counted(books.problems.len() as u64, "problem");
    Err(
        Failure::new(exit::FAILED, format!("the books do not balance: {count}"))
            .hint("docs/troubleshooting.md explains each message"),
    )
}

fn balance(books: &Books) -> String {
    let Books {
        staged,
        delivered,
        archived,
        pending,
        failed,
        ..
    } = books;
    let repeated = match books.repeated {
        0 => String::new(),
        count => format!(
            " ({} staged again with the same id)",
            counted(count, "record")
        ),
    };
    format!(
        "the books balance: {staged} staged = {delivered} delivered + {archived} archived + \
         {pending} pending + {failed} failed{repeated}"
    )
}

fn document(books: &Books) -> Document {
    Document {
        version: VERSION,
        balanced: books.problems.is_empty(),
        staged: books.staged,
        delivered: books.delivered,
        archived: books.archived,
        pending: books.pending,
        failed: books.failed,
        repeated: books.repeated,
        busy: books.busy.map(|busy| Busy { pid: busy.pid }),
        problems: books
            .problems
            .iter()
            .map(|problem| Entry {
                path: problem.path.display().to_string(),
                record: problem.record.clone(),
                what: problem.what.clone(),
            })
            .collect(),
    }
}
