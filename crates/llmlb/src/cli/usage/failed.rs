//! `llmlb usage failed`: lists the files in `failed/` with the reasons.

use serde::Serialize;
use spool::{Failed, SpoolManager};

use super::args::ListArgs;
use super::data_dir::DataDir;
use super::json::{self, VERSION};
use super::{counted, disk};
use crate::cli::exit::{self, Failure};
use crate::cli::table::aligned;
use crate::cli::{output, time};

#[derive(Serialize)]
struct FailedDocument {
    version: u32,
    failed: Vec<FailedEntry>,
    totals: FailedTotals,
}

#[derive(Serialize)]
struct FailedEntry {
    name: String,
    reason: String,
    batch: bool,
    ambiguous: bool,
    records: u64,
    attempts: u32,
    at: Option<String>,
}

#[derive(Serialize)]
struct FailedTotals {
    files: u64,
    records: u64,
    ambiguous: u64,
}

pub(super) fn failed(args: &ListArgs, data: &DataDir) -> Result<u8, Failure> {
    let found = list(data)?;
    let totals = FailedTotals {
        files: found.len() as u64,
        records: found.iter().map(|one| one.records).sum(),
        ambiguous: found.iter().filter(|one| one.is_ambiguous).count() as u64,
    };
    if args.json {
        json::print(&FailedDocument {
            version: VERSION,
            failed: found.into_iter().map(FailedEntry::from).collect(),
            totals,
        })?;
        return Ok(exit::DONE);
    }
    if found.is_empty() {
        output::data("no failed files")?;
        return Ok(exit::DONE);
    }
    output::data(&table(&found))?;
    let batches = found.iter().filter(|one| one.is_batch).count() as u64;
    let others = totals.files - batches;
    let mut parts = Vec::new();
    if batches > 0 {
        let records = counted(totals.records, "record");
        parts.push(format!("{} with {records}", counted(batches, "batch")));
    }
    if others > 0 {
        let files = counted(others, "file");
        parts.push(format!("{files} that could not be read"));
    }
    let parts = parts.join(" and ");
    output::data(&format!("{parts} in {}", data.shown("failed")))?;
    if found.iter().any(|one| one.is_batch) {
        let resend = data.command("resend");
        output::hint(&format!(
            "list the batches that can be delivered again: {resend}"
        ));
    }
    Ok(exit::DONE)
}

pub(super) fn list(data: &DataDir) -> Result<Vec<Failed>, Failure> {
    data.require()?;
    SpoolManager::new(data.dir())
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
        let prefix = if one.is_ambiguous { "ambiguous: " } else { "" };
        vec![
            one.name.clone(),
            // Show `-` as the number of records of a damaged file, which is unknown.
            if one.is_batch {
                one.records.to_string()
            } else {
                "-".to_owned()
            },
            one.at.map_or_else(|| "-".to_owned(), time::point),
            format!("{prefix}{}", one.reason),
        ]
    }));
    aligned(&rows)
}

impl From<Failed> for FailedEntry {
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
