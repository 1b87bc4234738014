//! Records that are staged and not consolidated yet, also in entries that are being written.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::time::SystemTime;

use uuid::Uuid;

use super::consolidated::ConsolidatedTotals;
use super::hour_span::HourSpan;
use crate::data_dir::{DataDir, for_each_file};
use crate::entry::{EntryKind, EntryName};
use crate::entry_journal::{ConsolidatedEntry, EntrySums, HeldIds};
use crate::entry_reader::{EntryReader, SingleRecordFile};
use crate::error::Error;
use crate::journal::{JournalKind, JournalLine};
use crate::line::Line;
use crate::record::Record;
use crate::reserve::Reserve;
use crate::snapshot::Snapshot;
use crate::time::Moment;
use crate::totals::{self, Grouping, Groups};

/// Maximum number of listings of the directory. A listing may miss an entry that is renamed
/// meanwhile, so the directory is listed until no new entry appears.
const MAX_LISTINGS: usize = 3;

type Rows = BTreeMap<String, Groups>;

/// Adds staged records to the totals of consolidated ones, each record once.
pub(super) struct StagedRecords<'a> {
    data: &'a DataDir,
    grouping: &'a Grouping,
    span: &'a HourSpan,
    totals: &'a ConsolidatedTotals,
    /// The snapshot that is being consolidated, and the names of its entries.
    snapshot: Option<(&'a Snapshot, HashSet<&'a str>)>,
    /// Snapshot with which each id was consolidated, to recognize repetitions. Read when the first
    /// staged record is added.
    consolidated: Option<HashMap<Uuid, Uuid>>,
    seen: HashSet<Uuid>,
}

impl<'a> StagedRecords<'a> {
    pub(super) fn new(
        data: &'a DataDir,
        grouping: &'a Grouping,
        span: &'a HourSpan,
        totals: &'a ConsolidatedTotals,
        snapshot: Option<&'a Snapshot>,
    ) -> Self {
        let snapshot = snapshot.map(|snapshot| {
            let entries = snapshot.consumed().map(String::as_str).collect();
            (snapshot, entries)
        });
        Self {
            data,
            grouping,
            span,
            totals,
            snapshot,
            consolidated: None,
            seen: HashSet::new(),
        }
    }

    /// Adds the staged records that the totals lack to `rows`, the sums of the tally. `problems`
    /// receives the errors of entries that cannot be read.
    pub(super) fn add_to(
        &mut self,
        rows: &mut Rows,
        problems: &mut Vec<Error>,
    ) -> Result<(), Error> {
        let mut done = BTreeSet::new();
        for _ in 0..MAX_LISTINGS {
            let mut names = self.list()?;
            names.retain(|name| done.insert((name.id, name.kind == EntryKind::Single)));
            if names.is_empty() {
                break;
            }
            // Of two records with the same id the first counts. Consolidation finishes the current
            // snapshot before it reads other entries, so the snapshot's entries come first here as
            // well.
            names.sort_by_key(|name| (self.snapshot_of(*name).is_none(), *name));
            for name in names {
                match self.read(name, rows) {
                    // Report an unreadable entry and go on with the others, so that the tally lacks
                    // only the records of this entry.
                    Err(error) if error.stays_in_place() => problems.push(error),
                    read => read?,
                }
            }
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<EntryName>, Error> {
        let mut names = Vec::new();
        for_each_file(&*self.data.disk, &self.data.staging, |name| {
            names.extend(EntryName::parse(name.as_ref()));
        })?;
        Ok(names)
    }

    /// Returns the current snapshot if it has this entry.
    fn snapshot_of(&self, name: EntryName) -> Option<&Snapshot> {
        let path = name.path_in(Path::new(""));
        let (snapshot, entries) = self.snapshot.as_ref()?;
        entries.contains(path.to_str()?).then_some(*snapshot)
    }

    fn read(&mut self, name: EntryName, rows: &mut Rows) -> Result<(), Error> {
        let snapshot = self.snapshot_of(name);
        if snapshot.is_some_and(|snapshot| snapshot.is_written) {
            // Skip an entry of a snapshot that is written: the totals include the records of this
            // entry, and only its file is left to delete.
            return Ok(());
        }
        let snapshot = snapshot.map(|snapshot| snapshot.id);
        match name.kind {
            EntryKind::Single => {
                let path = name.path_in(&self.data.staging);
                let single = SingleRecordFile::read(&*self.data.disk, &path, name.id)?;
                // Do not count a file that is not a record: consolidation will move it to
                // `failed/`.
                if let Some(SingleRecordFile::Record(record)) = single {
                    self.add(&record, snapshot, rows)?;
                }
                Ok(())
            }
            EntryKind::Sealed | EntryKind::Open => self.read_lines(name, snapshot, rows),
        }
    }

    /// Adds the records in the valid lines of an entry. The last line of an entry that is being
    /// written may be incomplete.
    fn read_lines(
        &mut self,
        name: EntryName,
        snapshot: Option<Uuid>,
        rows: &mut Rows,
    ) -> Result<(), Error> {
        let staging = &self.data.staging;
        let mut lines = EntryReader::open(&*self.data.disk, &name.path_in(staging))?;
        if lines.is_none() && name.kind == EntryKind::Open {
            // Try the name of the sealed entry: the entry may have been sealed, and thereby
            // renamed, since it was listed.
            let sealed = EntryName {
                kind: EntryKind::Sealed,
                ..name
            };
            lines = EntryReader::open(&*self.data.disk, &sealed.path_in(staging))?;
        }
        // Skip an entry that is gone: it was consolidated, so the totals have changed, and the
        // tally starts again.
        let Some(mut lines) = lines else {
            return Ok(());
        };
        while let Some(line) = lines.next()? {
            if let Ok(Line::Record { record, .. }) = line.content {
                self.add(&record, snapshot, rows)?;
            }
        }
        Ok(())
    }

    /// Adds a record, unless it is a repetition, is in the totals or is outside of the span.
    /// `snapshot` is the current snapshot, if it has the record's entry.
    fn add(
        &mut self,
        record: &Record,
        snapshot: Option<Uuid>,
        rows: &mut Rows,
    ) -> Result<(), Error> {
        let consolidated = match self.consolidated.take() {
            Some(ids) => ids,
            None => consolidated_ids(self.data)?,
        };
        let before = consolidated.get(&record.id()).copied();
        self.consolidated = Some(consolidated);
        // The journal may have the record's id because the current snapshot, which includes the
        // record's entry, has just been written to the journal. Only an id from another snapshot
        // makes the record a repetition.
        let is_repeated = before.is_some_and(|before| snapshot != Some(before));
        if is_repeated || !self.seen.insert(record.id()) {
            return Ok(());
        }
        let at = snapshot.map_or_else(|| SystemTime::now().into(), Moment::from_id);
        let hour = totals::hour_of(record.id(), at).hour();
        let is_in_totals =
            snapshot.is_some_and(|snapshot| self.totals.has(self.span, &hour, snapshot));
        if is_in_totals || !self.totals.is_reported(self.span, &hour) {
            return Ok(());
        }
        // Do not count a record whose JSON turns out to be invalid: consolidation will move it to
        // `failed/`.
        if let Ok(fields) = self.grouping.read(record) {
            let period = self.totals.period_of_hour(self.span, &hour);
            let groups = rows.entry(period.to_owned()).or_default();
            groups.add_record(self.grouping, &fields);
        }
        Ok(())
    }
}

/// Returns the consolidated ids that the journal and the reserve still have, each with its
/// snapshot.
fn consolidated_ids(data: &DataDir) -> Result<HashMap<Uuid, Uuid>, Error> {
    let mut ids = HashMap::new();
    JournalKind::Entries.read::<EntrySums>(data, &mut |_, read| {
        let JournalLine::Event(text) = read else {
            return;
        };
        if let Ok(entry) = ConsolidatedEntry::parse(text) {
            let fingerprints = entry.ids.iter();
            ids.extend(fingerprints.map(|fingerprint| (fingerprint.id, entry.snapshot)));
        }
    })?;
    let (disk, reserve) = (&*data.disk, Reserve::new(&data.staging));
    let held = HeldIds::read(disk, &reserve)?;
    let fingerprints = held.ids(disk, &reserve)?;
    ids.extend(
        fingerprints
            .iter()
            .map(|fingerprint| (fingerprint.id, held.id)),
    );
    Ok(ids)
}
