//! Batches, wherever they are, and the book of what became of them.

use std::collections::HashMap;

use super::{Audit, named};
use crate::batch::{self, Batch};
use crate::book::{Read, Title};
use crate::error::Error;
use crate::manager::{Event, Index, Outcome, SentSums};

impl Audit<'_> {
    /// The batches that are there as files. Those in `archive/` are accounted for by the book.
    pub(super) fn read_batches(&mut self) -> Result<(), Error> {
        let index = Index::read(self.data)?;
        for dir in [&self.data.spool, &self.data.failed, &self.data.archive] {
            for name in self.files(dir)? {
                if !batch::is_name(&name) {
                    continue;
                }
                let path = dir.join(&name);
                let Some(bytes) = self.content(&path) else {
                    continue;
                };
                let batch = match Batch::decode(&bytes) {
                    Ok(batch) if batch.file_name() == name => batch,
                    Ok(_) => {
                        self.problem(&path, None, "its name is not that of its records");
                        self.coverage.is_damaged = true;
                        continue;
                    }
                    Err(damage) => {
                        let record = damage.record.map(|number| {
                            let mut lines = bytes.split(|byte| *byte == b'\n');
                            let line = lines.nth(usize::try_from(number).unwrap_or(0));
                            named("record", number, line.unwrap_or_default())
                        });
                        self.problem(&path, record, damage.what);
                        self.coverage.is_damaged = true;
                        continue;
                    }
                };
                let records = batch.records().len() as u64;
                match index.get(&name) {
                    // A crash came before the file was gone: the book counts.
                    Some(Outcome::Delivered | Outcome::Split | Outcome::Archived) => continue,
                    _ if *dir == self.data.archive => {
                        self.problem(&path, None, "it is not in the book of what was sent");
                        continue;
                    }
                    _ => {}
                }
                let records = records - self.coverage.cover(batch.parts());
                if *dir == self.data.spool {
                    self.coverage.spooled += records;
                } else {
                    self.coverage.failed += records;
                }
            }
        }
        Ok(())
    }

    /// The book of what became of the batches.
    pub(super) fn read_sent(&mut self) -> Result<(), Error> {
        let mut sums = SentSums::default();
        let mut problems = Vec::new();
        let mut is_all = false;
        let mut since = None;
        // The last outcome counts: a person may have sent a batch again.
        let mut last: HashMap<String, Event> = HashMap::new();
        Title::Sent.read(self.data, &mut |spot, read| {
            let fault = match read {
                Read::Head(before) => {
                    is_all |= spot.generation == 1;
                    return sums = before;
                }
                Read::Event(text) => match serde_json::from_str::<Event>(text) {
                    Ok(event) => {
                        since.get_or_insert(event.at);
                        sums.add(&event, last.get(&event.batch).map(|event| event.outcome));
                        last.insert(event.batch.clone(), event);
                        return;
                    }
                    Err(error) => error.to_string(),
                },
                Read::Damaged(why) => why.to_owned(),
            };
            problems.push((spot.path.to_owned(), format!("line {}", spot.line), fault));
        })?;
        for (path, record, what) in problems {
            self.coverage.is_damaged = true;
            self.problem(&path, Some(record), what);
        }
        if !is_all {
            self.coverage.sent_since = since;
        }
        let mut unfinished = 0;
        for event in last.values() {
            if matches!(event.outcome, Outcome::Delivered | Outcome::Archived) {
                unfinished += self.coverage.cover(&event.entries);
            }
        }
        // Delivered before the set was finished: its records are counted as staged until it is.
        self.books.delivered = sums.delivered.saturating_sub(unfinished);
        self.books.archived = sums.archived;
        Ok(())
    }
}
