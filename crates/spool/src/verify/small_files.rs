//! What is noted beside the batches: attempts, reasons, totals, a pause.

use std::path::Path;

use super::Audit;
use crate::book::decode;
use crate::error::Error;
use crate::manager::{PAUSE_FILE, State, check_pause, is_state_name};
use crate::quarantine::{Reason, checksum_of};
use crate::totals;

impl Audit<'_> {
    pub(super) fn read_small_files(&mut self) -> Result<(), Error> {
        let spool = self.data.spool.clone();
        for name in self.files(&spool)? {
            if name == PAUSE_FILE {
                self.check(&spool, &name, |bytes| check_pause(bytes).map(drop));
            } else if is_state_name(&name) {
                self.check(&spool, &name, |bytes| decode::<State>(bytes).map(drop));
            }
        }
        let usage = self.data.usage.clone();
        for name in self.files(&usage)? {
            if totals::period_of(&name).is_some() {
                self.check(&usage, &name, |bytes| totals::check(&name, bytes).map(drop));
            }
        }
        let failed = self.data.failed.clone();
        for name in self.files(&failed)? {
            let Some(of) = Reason::of(&name) else {
                continue;
            };
            let aside = failed.join(of);
            let Some(bytes) = self.content(&failed.join(&name)) else {
                continue;
            };
            match decode::<Reason>(&bytes) {
                Ok(reason) => {
                    if let Some(expected) = reason.checksum
                        && let Ok(found) = checksum_of(&*self.data.disk, &aside)
                        && found != expected
                    {
                        self.problem(&aside, None, "its checksum is not that in its reason");
                    }
                }
                Err(why) => self.problem(&failed.join(&name), None, why),
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
