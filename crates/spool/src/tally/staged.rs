//! What is staged and not consolidated yet, also in entries that are being written.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::time::SystemTime;

use uuid::Uuid;

use super::folded::Folded;
use super::span::Span;
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
use crate::totals;
use crate::totals::sum::{self, Groups};

/// How often the directory is listed: an entry that is renamed while that is done may be missed once.
const MOST_LISTINGS: usize = 3;

/// Adds the records that are in no totals yet. `problems` are entries that cannot be read.
pub(super) fn add(
    data: &DataDir,
    span: &Span,
    folded: &Folded,
    set: Option<&Snapshot>,
    rows: &mut BTreeMap<String, Groups>,
    problems: &mut Vec<Error>,
) -> Result<(), Error> {
    let entries: HashSet<&str> = (set.into_iter())
        .flat_map(|set| set.consumed().map(String::as_str))
        .collect();
    let mut staged = Staged {
        data,
        set: set.map(|set| (set, entries)),
        known: None,
        seen: HashSet::new(),
    };
    let mut each = |record: &Record, set: Option<Uuid>| {
        let at = set.map_or_else(|| SystemTime::now().into(), Moment::from_id);
        let hour = totals::hour_of(record.id(), at).hour();
        let is_folded = set.is_some_and(|set| folded.has(span, &hour, set));
        if is_folded || !folded.wants(span, &hour) {
            return;
        }
        // One that is none after all is set aside when it is consolidated.
        if let Ok(fields) = sum::fields(record) {
            let day = hour.get(..10).unwrap_or(&hour).to_owned();
            sum::add_record(rows.entry(day).or_default(), &fields);
        }
    };
    let mut done = BTreeSet::new();
    for _ in 0..MOST_LISTINGS {
        let mut names = staged.list()?;
        names.retain(|name| done.insert((name.id, name.kind == EntryKind::Single)));
        if names.is_empty() {
            break;
        }
        // The set comes first, as it does when the next one is consolidated: of two records with
        // the same id the first counts.
        names.sort_by_key(|name| (!staged.is_in_set(*name), *name));
        for name in names {
            match staged.read(name, &mut each) {
                // It is not consolidated either; the others count all the same.
                Err(error) if error.stays_in_place() => problems.push(error),
                read => read?,
            }
        }
    }
    Ok(())
}

struct Staged<'a> {
    data: &'a DataDir,
    /// What is being consolidated, and the names of its entries.
    set: Option<(&'a Snapshot, HashSet<&'a str>)>,
    /// The ids that were taken, and with which snapshot. Read when it is first asked for.
    known: Option<HashMap<Uuid, Uuid>>,
    seen: HashSet<Uuid>,
}

/// Hears of a record, and of the set that it is being consolidated with.
type Each<'a> = &'a mut dyn FnMut(&Record, Option<Uuid>);

impl Staged<'_> {
    fn list(&self) -> Result<Vec<EntryName>, Error> {
        let mut names = Vec::new();
        for_each_file(&*self.data.disk, &self.data.staging, |name| {
            names.extend(EntryName::parse(name.as_ref()));
        })?;
        Ok(names)
    }

    /// The set that an entry is being consolidated with.
    fn set_of(&self, name: EntryName) -> Option<&Snapshot> {
        let path = name.path_in(Path::new(""));
        let (set, entries) = self.set.as_ref()?;
        entries.contains(path.to_str()?).then_some(*set)
    }

    fn is_in_set(&self, name: EntryName) -> bool {
        self.set_of(name).is_some()
    }

    fn read(&mut self, name: EntryName, each: Each<'_>) -> Result<(), Error> {
        let set = self.set_of(name).map(|set| (set.id, set.is_written));
        if set.is_some_and(|(_, is_written)| is_written) {
            return Ok(()); // It is in the totals; only its deletion is left to do.
        }
        let set = set.map(|(id, _)| id);
        match name.kind {
            EntryKind::Single => {
                let path = name.path_in(&self.data.staging);
                let single = SingleRecordFile::read(&*self.data.disk, &path, name.id)?;
                // What is no record is set aside when it is consolidated.
                if let Some(SingleRecordFile::Record(record)) = single {
                    self.hear(&record, set, each)?;
                }
                Ok(())
            }
            EntryKind::Sealed | EntryKind::Open => self.read_lines(name, set, each),
        }
    }

    fn hear(&mut self, record: &Record, set: Option<Uuid>, each: Each<'_>) -> Result<(), Error> {
        let known = match self.known.take() {
            Some(known) => known,
            None => known(self.data)?,
        };
        let taken = known.get(&record.id()).copied();
        self.known = Some(known);
        // One that was taken with this very set is this one.
        let is_repeated = taken.is_some_and(|snapshot| set != Some(snapshot));
        if !is_repeated && self.seen.insert(record.id()) {
            each(record, set);
        }
        Ok(())
    }

    /// The good lines. The last one of an entry that is being written may be half of one.
    fn read_lines(
        &mut self,
        name: EntryName,
        set: Option<Uuid>,
        each: Each<'_>,
    ) -> Result<(), Error> {
        let staging = &self.data.staging;
        let mut lines = EntryReader::open(&*self.data.disk, &name.path_in(staging))?;
        if lines.is_none() && name.kind == EntryKind::Open {
            // Sealed since it was listed.
            let sealed = EntryName {
                kind: EntryKind::Sealed,
                ..name
            };
            lines = EntryReader::open(&*self.data.disk, &sealed.path_in(staging))?;
        }
        // One that is gone moved on, and the totals tell.
        let Some(mut lines) = lines else {
            return Ok(());
        };
        while let Some(line) = lines.next()? {
            if let Ok(Line::Record { record, .. }) = line.content {
                self.hear(&record, set, each)?;
            }
        }
        Ok(())
    }
}

/// What was taken, as far as the journal still says so.
fn known(data: &DataDir) -> Result<HashMap<Uuid, Uuid>, Error> {
    let mut known = HashMap::new();
    JournalKind::Entries.read::<EntrySums>(data, &mut |_, read| {
        let JournalLine::Event(text) = read else {
            return;
        };
        if let Ok(taken) = ConsolidatedEntry::parse(text) {
            let ids = taken.ids.iter();
            known.extend(ids.map(|stamp| (stamp.id, taken.snapshot)));
        }
    })?;
    let (disk, reserve) = (&*data.disk, Reserve::new(&data.staging));
    let held = HeldIds::read(disk, &reserve)?;
    let stamps = held.ids(disk, &reserve)?;
    known.extend(stamps.iter().map(|stamp| (stamp.id, held.id)));
    Ok(known)
}
