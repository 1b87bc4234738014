//! `llmlb usage failed`: what could not be read or delivered, and why.

use serde::Serialize;
use spool::{Failed, SpoolManager};

use super::args::Look;
use super::json::{self, VERSION};
use super::place::Place;
use super::{counted, disk};
use crate::cli::exit::{self, Failure};
use crate::cli::table::aligned;
use crate::cli::{output, time};

#[derive(Serialize)]
struct Document {
    version: u32,
    failed: Vec<Entry>,
    totals: Totals,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    reason: String,
    batch: bool,
    ambiguous: bool,
    records: u64,
    attempts: u32,
    at: Option<String>,
}

#[derive(Serialize)]
struct Totals {
    files: u64,
    records: u64,
    ambiguous: u64,
}

pub(super) fn failed(args: &Look, place: &Place) -> Result<u8, Failure> {
    let found = list(place)?;
    let totals = Totals {
        files: found.len() as u64,
        records: found.iter().map(|one| one.records).sum(),
        ambiguous: found.iter().filter(|one| one.is_ambiguous).count() as u64,
    };
    if args.json {
        json::print(&Document {
            version: VERSION,
            failed: found.into_iter().map(Entry::from).collect(),
            totals,
        })?;
        return Ok(exit::DONE);
    }
    if found.is_empty() {
        output::data("nothing failed")?;
        return Ok(exit::DONE);
    }
    output::data(&table(&found))?;
    let (files, records) = (
        counted(totals.files, "file"),
        counted(totals.records, "record"),
    );
    output::data(&format!(
        "{files} with {records} in {}",
        place.shown("failed")
    ))?;
    if found.iter().any(|one| one.is_batch) {
        let resend = place.command("resend");
        output::hint(&format!("{resend} lists what can be delivered again"));
    }
    Ok(exit::DONE)
}

pub(super) fn list(place: &Place) -> Result<Vec<Failed>, Failure> {
    place.must_exist()?;
    SpoolManager::of(place.dir())
        .failed()
        .map_err(|error| disk(&error))
}

pub(super) fn table(found: &[Failed]) -> String {
    let mut rows = vec![
        ["FILE", "RECORDS", "SINCE", "WHY"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(found.iter().map(|one| {
        let doubt = if one.is_ambiguous { "ambiguous: " } else { "" };
        vec![
            one.name.clone(),
            one.records.to_string(),
            one.at.map_or_else(|| "-".to_owned(), time::point),
            format!("{doubt}{}", one.reason),
        ]
    }));
    aligned(&rows)
}

impl From<Failed> for Entry {
    fn from(one: Failed) -> Self {
        Self {
            name: one.name,
            reason: one.reason,
            batch: one.is_batch,
            ambiguous: one.is_ambiguous,
            records: one.records,
            attempts: one.attempts,
            at: json::point(one.at),
        }
    }
}
