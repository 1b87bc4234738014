//! Bounds the files that stay after delivery, in `archive/` and `failed/`: deletes files beyond the
//! configured age and size, and warns if a directory is large.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use spool::{DeliveryLock, FileTotals, Keep, KeptIn, RunError, SpoolManager};

use crate::sys;

/// Minimum time between two runs of the retention: listing a large directory takes a while, and its
/// size changes slowly.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Size from which a directory counts as large and a warning is logged. On a small disk, a tenth of
/// the disk.
const LARGE: u64 = 1 << 30;
const PART_OF_DISK: u64 = 10;

#[derive(Debug)]
pub(crate) struct Housekeeping {
    dirs: [RetainedDir; 2],
    last: Option<Instant>,
}

/// Bounds of one directory, `archive/` or `failed/`, and its size in the last warning.
#[derive(Debug)]
struct RetainedDir {
    kept_in: KeptIn,
    keep: Keep,
    /// Size of the directory in the last warning; 0 while the directory is not large. A further
    /// warning is logged when the size has doubled.
    reported: u64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Sizes {
    archive: FileTotals,
    failed: FileTotals,
    /// Warnings for `/status`, one for each of `archive/` and `failed/` that is large.
    large: Vec<String>,
}

impl Sizes {
    /// Returns the object `kept` of `/status` (docs/status-json.md).
    pub(super) fn json(&self) -> Value {
        let size = |kept: FileTotals| json!({ "files": kept.files, "bytes": kept.bytes });
        json!({
            "archive": size(self.archive),
            "failed": size(self.failed),
            "large": self.large,
        })
    }
}

impl Housekeeping {
    pub(crate) fn new(archive: Keep, failed: Keep) -> Self {
        let dir = |kept_in, keep| RetainedDir {
            kept_in,
            keep,
            reported: 0,
        };
        Self {
            dirs: [dir(KeptIn::Archive, archive), dir(KeptIn::Failed, failed)],
            last: None,
        }
    }

    /// True if the configuration sets a maximum age or size for `archive/` or `failed/`. Only then
    /// the delivery lock is needed.
    pub(crate) fn has_bounds(&self) -> bool {
        self.dirs.iter().any(|dir| !dir.keep.is_unlimited())
    }

    pub(crate) fn is_due(&self) -> bool {
        self.last.is_none_or(|last| last.elapsed() >= INTERVAL)
    }

    /// Deletes files beyond the bounds and measures the directories. `None` if the last run was
    /// less than `INTERVAL` ago, or if another process holds the delivery lock; a later call
    /// retries.
    pub(crate) fn run(&mut self, data: &Path, spool: &SpoolManager) -> Option<Sizes> {
        if !self.is_due() {
            return None;
        }
        if self.has_bounds() {
            let _lock = match DeliveryLock::acquire(data) {
                Ok(lock) => lock,
                Err(RunError::Busy { .. }) => return None,
                Err(error) => {
                    tracing::debug!(%error, "cannot apply the bounds of archive/ and failed/");
                    return None;
                }
            };
            for dir in &self.dirs {
                dir.prune(spool);
            }
        }
        self.last = Some(Instant::now());
        let limit = large(sys::disk_size(data));
        let mut sizes = Sizes::default();
        for dir in &mut self.dirs {
            let kept = match spool.kept(dir.kept_in) {
                Ok(kept) => kept,
                Err(error) => {
                    tracing::debug!(%error, "cannot measure {}/", dir.name());
                    continue;
                }
            };
            sizes.large.extend(dir.report(kept, limit));
            match dir.kept_in {
                KeptIn::Archive => sizes.archive = kept,
                KeptIn::Failed => sizes.failed = kept,
            }
        }
        Some(sizes)
    }
}

impl RetainedDir {
    fn name(&self) -> &'static str {
        match self.kept_in {
            KeptIn::Archive => "archive",
            KeptIn::Failed => "failed",
        }
    }

    fn prune(&self, spool: &SpoolManager) {
        let name = self.name();
        match spool.prune(self.kept_in, &self.keep) {
            Ok(deleted) if deleted.files > 0 => tracing::info!(
                "usage: deleted {} from {name}/ beyond usage.{name}_max_age or usage.{name}_max_size",
                in_words(deleted)
            ),
            Ok(_) => {}
            Err(error) => tracing::warn!(
                "usage: cannot apply usage.{name}_max_age and usage.{name}_max_size to {name}/: {error}"
            ),
        }
    }

    /// Returns the message for `/status` that this directory is large; `None` if it is not. Logs
    /// the message once, and again whenever the size has doubled.
    fn report(&mut self, kept: FileTotals, limit: u64) -> Option<String> {
        if kept.bytes < limit {
            self.reported = 0;
            return None;
        }
        let name = self.name();
        let text = format!(
            "{name}/ has {}; usage.{name}_max_size and usage.{name}_max_age limit it",
            in_words(kept)
        );
        if self.reported == 0 || kept.bytes / 2 >= self.reported {
            self.reported = kept.bytes;
            tracing::warn!("usage: {text}");
        }
        Some(text)
    }
}

/// Returns the size from which `archive/` or `failed/` counts as large, given the size of the disk.
fn large(disk: Option<u64>) -> u64 {
    disk.map_or(LARGE, |disk| (disk / PART_OF_DISK).min(LARGE))
}

fn in_words(kept: FileTotals) -> String {
    let mib = kept.bytes >> 20;
    let size = match kept.bytes >> 30 {
        0 if mib == 0 => format!("{} bytes", kept.bytes),
        0 => format!("{mib} MiB"),
        gib => format!("{gib}.{} GiB", (mib % 1024) * 10 / 1024),
    };
    let files = if kept.files == 1 { "file" } else { "files" };
    format!("{size} in {} {files}", kept.files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> RetainedDir {
        RetainedDir {
            kept_in: KeptIn::Archive,
            keep: Keep::default(),
            reported: 0,
        }
    }

    fn gib(number: u64) -> FileTotals {
        FileTotals {
            files: 3,
            bytes: number << 30,
        }
    }

    #[test]
    fn large_directory_is_reported_with_the_settings_that_limit_it() {
        let mut dir = archive();
        assert_eq!(dir.report(gib(0), LARGE), None);
        let text = "archive/ has 1.0 GiB in 3 files; usage.archive_max_size and \
                    usage.archive_max_age limit it";
        assert_eq!(dir.report(gib(1), LARGE).as_deref(), Some(text));
        assert_eq!(dir.reported, 1 << 30);
        assert!(dir.report(gib(1), LARGE).is_some());
        assert!(dir.report(gib(2), LARGE).is_some());
        assert_eq!(dir.reported, 2 << 30, "logged again at twice the size");
        assert_eq!(dir.report(gib(0), LARGE), None);
        assert_eq!(dir.reported, 0);
    }

    #[test]
    fn directory_is_large_from_one_gibibyte_or_a_tenth_of_the_disk() {
        assert_eq!(large(None), 1 << 30);
        assert_eq!(large(Some(100 << 30)), 1 << 30);
        assert_eq!(large(Some(5 << 30)), 1 << 29);
    }

    #[test]
    fn sizes_are_written_in_units() {
        let kept = |files, bytes| FileTotals { files, bytes };
        assert_eq!(in_words(kept(1, 12)), "12 bytes in 1 file");
        assert_eq!(in_words(kept(2, 5 << 20)), "5 MiB in 2 files");
        assert_eq!(in_words(kept(2, 3 << 29)), "1.5 GiB in 2 files");
    }
}
