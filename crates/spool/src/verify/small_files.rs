//! Small files: delivery attempts, the pause, reasons in `failed/`, totals and the destination.

use std::path::Path;

use super::Verification;
use crate::destination::destination;
use crate::entry_journal;
use crate::error::Error;
use crate::manager::{DeliveryState, PAUSE_FILE, check_pause, is_state_name};
use crate::quarantine::{Reason, checksum_of};
use crate::snapshot::Snapshot;
use crate::totals;

impl Verification<'_> {
    pub(super) fn read_small_files(&mut self) -> Result<(), Error> {
        let spool = self.data.spool.clone();
        for name in self.files(&spool)? {
            if name == PAUSE_FILE {
                self.check(&spool, &name, |bytes| check_pause(bytes).map(drop));
            } else if is_state_name(&name) {
                self.check(&spool, &name, |bytes| {
                    DeliveryState::decode(bytes).map(drop)
                });
            }
        }
        let usage = self.data.usage.clone();
        for name in self.files(&usage)? {
            if totals::period_of(&name).is_some() {
                self.check(&usage, &name, |bytes| totals::check(&name, bytes).map(drop));
            }
        }
        if let Some(root) = self.data.spool.parent()
            && let Err(error) = destination(root)
        {
            self.problem(error.path(), None, error.io_error().to_string());
        }
        self.check_days()
    }

    /// Checks files in `failed/` against the checksums in their reasons. Both never change, so this
    /// needs no lock.
    pub(super) fn check_quarantine(&mut self) -> Result<(), Error> {
        let failed = self.data.failed.clone();
        for name in self.files(&failed)? {
            let Some(file) = Reason::parse_file_name(&name) else {
                continue;
            };
            let file = failed.join(file);
            let Some(bytes) = self.content(&failed.join(&name)) else {
                continue;
            };
            match Reason::decode(&bytes) {
                Ok(reason) => {
                    if let Some(expected) = reason.checksum
                        && let Ok(found) = checksum_of(&*self.data.disk, &file)
                        && found != expected
                    {
                        self.problem(
                            &file,
                            None,
                            "the checksum of the file differs from that in its reason file",
                        );
                    }
                }
                Err(why) => self.problem(&failed.join(&name), None, why),
            }
        }
        Ok(())
    }

    /// Checks that every consolidated record is in the totals of its day.
    fn check_days(&mut self) -> Result<(), Error> {
        let snapshot = Snapshot::read(&*self.data.disk, &self.data.staging);
        let unfinished = snapshot
            .ok()
            .flatten()
            .filter(|snapshot| !snapshot.is_written);
        for (day, expected) in
            entry_journal::days(self.data, unfinished.map(|snapshot| snapshot.id))?
        {
            let name = format!("{day}.json");
            let path = self.data.usage.join(&name);
            let bytes = self.content(&path);
            let file = bytes.and_then(|bytes| totals::check(&name, &bytes).ok());
            let found = file.map_or(0, |file| file.records());
            if let Some(gap) = totals::gap(found, expected) {
                self.problem(&path, Some(day), gap);
            }
        }
        Ok(())
    }

    fn check(&mut self, dir: &Path, name: &str, check: impl Fn(&[u8]) -> Result<(), String>) {
        let path = dir.join(name);
        if let Some(bytes) = self.content(&path)
            && let Err(why) = check(&bytes)
        {
            self.problem(&path, None, why);
        }
    }
}
