//! Batches in all directories, and the journal of their outcomes.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::SystemTime;

use super::{Verification, named};
use crate::batch::{self, Batch};
use crate::error::Error;
use crate::files;
use crate::journal::{JournalKind, JournalLine, decode};
use crate::manager::{
    BatchEvent, BatchOutcome, DeliveryState, HeldOutcomes, OutcomeIndex, OutcomeSums, batch_of,
    is_state_name,
};
use crate::snapshot::Snapshot;

impl Verification<'_> {
    fn exists(&self, path: &Path) -> bool {
        files::exists(&*self.data.disk, path).unwrap_or(false)
    }

    /// Reads the batches in `spool/` and `failed/`, and lists those in `archive/`. The journal has
    /// the sums of archived batches. Their content is checked after the locks are released.
    pub(super) fn read_batches(&mut self) -> Result<(), Error> {
        let index = OutcomeIndex::read(self.data)?;
        // While a batch is being split, only the batch itself is counted. Its halves contain the
        // same records.
        let halves = self.halves()?;
        for dir in [&self.data.spool, &self.data.failed] {
            for name in self.files(dir)? {
                if !batch::is_batch_name(&name) || halves.contains(&name) {
                    continue;
                }
                let path = dir.join(&name);
                // A crash between the two steps of a move to another file system leaves the batch
                // in both directories. Only the one in `spool/` is counted.
                let pending = self.data.spool.join(&name);
                if path != pending && self.exists(&pending) {
                    continue;
                }
                let Some(batch) = self.read_batch(&path, &name) else {
                    continue;
                };
                // Skip a batch whose outcome is in the journal, which counts its records already.
                // After a crash the file of such a batch may still exist.
                if let Some(
                    BatchOutcome::Delivered
                    | BatchOutcome::Split
                    | BatchOutcome::Archived
                    | BatchOutcome::Discarded,
                ) = index.get(&name)
                {
                    continue;
                }
                let records = batch.records().len() as u64 - self.coverage.cover(batch.parts());
                let is_resent = index.get(&name) == Some(BatchOutcome::Unarchived);
                if *dir == self.data.spool || is_resent {
                    self.coverage.spooled += records;
                } else {
                    self.coverage.failed += records;
                }
            }
        }
        self.list_archive(&index)
    }

    /// Lists the batches in `archive/`, and checks that the journal has them.
    fn list_archive(&mut self, index: &OutcomeIndex) -> Result<(), Error> {
        let oldest = JournalKind::Batches
            .generations(self.data)?
            .first()
            .copied();
        let is_all = oldest.is_none_or(|oldest| oldest == 1);
        let dir = &self.data.archive;
        for name in self.files(dir)? {
            if !batch::is_batch_name(&name) {
                continue;
            }
            let path = dir.join(&name);
            match index.get(&name) {
                Some(
                    BatchOutcome::Delivered
                    | BatchOutcome::Split
                    | BatchOutcome::Archived
                    | BatchOutcome::Discarded,
                ) => {}
                // A crash may have interrupted the move of this batch back to `spool/`. If `spool/`
                // lacks the batch, its file in `archive/` counts as pending.
                Some(BatchOutcome::Unarchived) => {
                    let pending = self.data.spool.join(&name);
                    if self.exists(&pending) {
                        continue;
                    }
                    if let Some(batch) = self.read_batch(&path, &name) {
                        let records = batch.records().len() as u64;
                        self.coverage.spooled += records - self.coverage.cover(batch.parts());
                    }
                    continue;
                }
                // Report a batch that is not in the journal only if the journal still has its first
                // generation (file). Otherwise the batch may be older than the journal.
                _ if is_all => {
                    self.problem(&path, None, "the batch is not in the journal of batches");
                }
                _ => {}
            }
            self.archived.push(name);
        }
        Ok(())
    }

    /// Checks the content of archived batches. Batches never change, so this needs no lock. A batch
    /// that is gone was moved back to `spool/` or deleted since it was listed.
    pub(super) fn check_archive(&mut self) {
        let dir = &self.data.archive;
        for name in std::mem::take(&mut self.archived) {
            self.read_batch(&dir.join(&name), &name);
        }
    }

    /// Reads a batch, and reports a problem if it is damaged.
    fn read_batch(&mut self, path: &Path, name: &str) -> Option<Batch> {
        let bytes = self.content(path)?;
        let (record, what) = match Batch::decode(&bytes) {
            Ok(batch) if batch.file_name() == name => return Some(batch),
            Ok(_) => (
                None,
                "the file name does not match the records in the batch".to_owned(),
            ),
            Err(damage) => {
                let record = damage.record.map(|number| {
                    let mut lines = bytes.split(|byte| *byte == b'\n');
                    let line = lines.nth(usize::try_from(number).unwrap_or(0));
                    named("record", number, line.unwrap_or_default())
                });
                (record, damage.what)
            }
        };
        self.problem(path, record, what);
        self.coverage.is_damaged = true;
        None
    }

    /// Returns the names of the halves of batches that are being split.
    fn halves(&mut self) -> Result<HashSet<String>, Error> {
        let (spool, mut halves) = (self.data.spool.clone(), HashSet::new());
        for name in self.files(&spool)? {
            if !is_state_name(&name) {
                continue;
            }
            let state = self.content(&spool.join(&name));
            let state = state.and_then(|bytes| decode::<DeliveryState>(&bytes).ok());
            if state.is_some_and(|state| state.splitting)
                && let Some(bytes) = self.content(&spool.join(batch_of(&name)))
                && let Ok(batch) = Batch::decode(&bytes)
            {
                let both = batch.halves().into_iter().flatten();
                halves.extend(both.map(|half| half.file_name()));
            }
        }
        Ok(halves)
    }

    pub(super) fn read_batch_journal(&mut self) -> Result<(), Error> {
        let mut sums = OutcomeSums::default();
        let mut problems = Vec::new();
        let (mut is_all, mut last_generation) = (false, 0);
        let (mut since, mut unproven) = (None, None);
        // The last outcome of a batch counts, because a batch can be resent.
        let mut last: HashMap<String, BatchEvent> = HashMap::new();
        JournalKind::Batches.read(self.data, &mut |position, read| {
            let fault = match read {
                JournalLine::Head(before) => {
                    let is_next = position.generation == last_generation + 1;
                    is_all = position.generation == 1 || is_all && is_next;
                    last_generation = position.generation;
                    return sums = before;
                }
                JournalLine::Event(text) => match BatchEvent::parse(text) {
                    Ok(event) => {
                        since.get_or_insert(event.at);
                        if event.sums.is_some() {
                            unproven = Some(event.at);
                        }
                        sums.add(&event);
                        last.insert(event.batch.clone(), event);
                        return;
                    }
                    Err(why) => why,
                },
                JournalLine::Damaged(why) => why.to_owned(),
            };
            let line = format!("line {}", position.line);
            problems.push((position.path.to_owned(), line, fault));
        })?;
        for path in JournalKind::Batches.foreign_files(self.data)? {
            let what = crate::journal::NO_HEAD.to_owned();
            problems.push((path, "line 1".to_owned(), what));
        }
        for (path, record, what) in problems {
            self.coverage.is_damaged = true;
            self.problem(&path, Some(record), what);
        }
        let held = HeldOutcomes::read(self.data, &OutcomeIndex::read(self.data)?)?;
        if !held.is_empty() {
            unproven = Some(SystemTime::now().into());
        }
        sums.add_all(&held.sums);
        // If batches were delivered while the disk was full, the journal has only sums of their
        // records, and not the lines of entries that they contained. So lines that were
        // consolidated before that time are not reported as missing.
        let since = since.filter(|_| !is_all).max(unproven);
        self.coverage.sent_since = self.coverage.sent_since.max(since);
        // The records of an unfinished snapshot count as staged, even if their batches were
        // delivered or archived. Subtract them from the sums, so that they are not counted twice.
        let (mut delivered, mut archived, mut discarded) = (0, 0, 0);
        for event in last.values() {
            match event.outcome {
                BatchOutcome::Delivered => delivered += self.coverage.cover_event(event),
                BatchOutcome::Archived => archived += self.coverage.cover_event(event),
                BatchOutcome::Discarded => discarded += self.coverage.cover_event(event),
                _ => {}
            }
        }
        let unfinished = Snapshot::read(&*self.data.disk, &self.data.staging)
            .ok()
            .flatten();
        if let Some(snapshot) = unfinished.filter(|snapshot| !snapshot.is_written) {
            delivered += held.records_of_snapshot(snapshot.id, BatchOutcome::Delivered);
            archived += held.records_of_snapshot(snapshot.id, BatchOutcome::Archived);
        }
        self.books.delivered = sums.delivered.saturating_sub(delivered);
        self.books.archived = sums.archived.saturating_sub(archived);
        self.coverage.failed += sums.discarded.saturating_sub(discarded);
        Ok(())
    }
}
