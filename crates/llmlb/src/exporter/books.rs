//! Periodic check that the books balance, for metrics: [`spool::verify_changing`].
//!
//! The check reads files that change, so its time grows with the number of pending records. It pauses for a hundred
//! times as long as it took, so that it uses at most a hundredth of a core.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use spool::{Cancel, Watch, verify_changing};

/// Minimum pause between two checks, as a multiple of the duration of the last one.
const PAUSE_FACTOR: u32 = 100;

/// Result of a check of the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckedBooks {
    pub(crate) at: SystemTime,
    /// Number of problems. The books balance if there are none.
    pub(crate) problems: usize,
}

/// Schedule of the checks.
#[derive(Debug, Default)]
pub(super) struct BooksCheck {
    /// Earliest time of the next check.
    next: Option<Instant>,
}

impl BooksCheck {
    /// Checks the books after a run, if the pause since the last check is over. Returns `None` without a check, and
    /// if the check is not conclusive: files cannot be read, or another process moved files during the check.
    pub(super) fn run_if_due(&mut self, data: &Path, cancel: &Cancel) -> Option<CheckedBooks> {
        let start = Instant::now();
        if cancel.is_cancelled() || self.next.is_some_and(|next| start < next) {
            return None;
        }
        let watch = Watch {
            cancel: cancel.clone(),
            progress: &|_| {},
        };
        let checked = verify_changing(data, &watch);
        self.next = Some(Instant::now() + pause(start.elapsed()));
        let books = match checked {
            Ok(books) => books,
            Err(error) => {
                tracing::debug!("usage: the books cannot be checked: {error}");
                return None;
            }
        };
        if cancel.is_cancelled() || (books.busy.is_some() && !books.balance()) {
            return None;
        }
        for problem in books.problems.iter().take(3) {
            tracing::debug!("usage: the books do not balance: {problem}");
        }
        Some(CheckedBooks {
            at: SystemTime::now(),
            problems: books.problems.len(),
        })
    }
}

fn pause(duration: Duration) -> Duration {
    duration.saturating_mul(PAUSE_FACTOR)
}
