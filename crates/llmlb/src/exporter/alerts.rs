//! Problems of consolidation and delivery: each kind is logged when it begins, at growing intervals
//! while it lasts, and when it has ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use spool::{Delivered, Run, RunError};

use crate::episode::{Episode, Event};

/// The problems that were reported and have not ended.
#[derive(Debug, Default)]
pub(crate) struct Alerts {
    episodes: BTreeMap<Kind, Episode>,
}

/// Kinds of problems. One message of each is logged at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Batches are pending: the receiver failed, asked for a pause, or rejects everything.
    Pending,
    /// Records were moved to `failed/`: the receiver rejected them, or failed for too long.
    Failed,
    /// Damaged files or lines were moved to `failed/`.
    Damaged,
    /// Staged entries cannot be read now.
    Unreadable,
    /// The data directory cannot be used.
    Disk,
    /// There is no room to stage records.
    Full,
}

impl Kind {
    /// The message for the end of a problem. `None`: it is an event, and has none.
    fn ended(self) -> Option<&'static str> {
        match self {
            Self::Pending => Some("delivery works again"),
            Self::Unreadable => Some("all staged entries can be read again"),
            Self::Disk => Some("the data directory can be used again"),
            Self::Full => Some("there is room for records again"),
            Self::Failed | Self::Damaged => None,
        }
    }
}

impl Alerts {
    /// Logs what is new about a run, and returns all of its problems. `is_cut`: the run was ended
    /// early, so that batches may be pending for no other reason.
    pub(crate) fn update(
        &mut self,
        run: &Result<Run, RunError>,
        data: &Path,
        is_cut: bool,
    ) -> Option<String> {
        let found = match run {
            Ok(run) => problems(run, data),
            Err(error) => vec![(Kind::Disk, disk(error))],
        };
        let now = Instant::now();
        for (kind, text) in &found {
            if is_cut && *kind == Kind::Pending {
                continue;
            }
            match self.episodes.entry(*kind).or_default().occurred(now) {
                Some(Event::Began) => tracing::warn!("usage: {text}"),
                Some(Event::Continues { since, .. }) => {
                    tracing::warn!("usage: still, after {} s: {text}", since.as_secs());
                }
                _ => {}
            }
        }
        // A run that did not do all of its work shows no end.
        let is_whole = run.as_ref().is_ok_and(|run| run.trouble.is_none());
        if is_whole && !is_cut {
            self.end_all_but(&found, now);
        }
        let texts: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    fn end_all_but(&self, found: &[(Kind, String)], now: Instant) {
        let is_over = |kind: &Kind| !found.iter().any(|(other, _)| other == kind);
        let over = self.episodes.iter().filter(|(kind, _)| is_over(kind));
        for (kind, episode) in over {
            if let (Some(Event::Ended { lasted, .. }), Some(text)) =
                (episode.end(now), kind.ended())
            {
                tracing::info!("usage: {text}, after {} s", lasted.as_secs());
            }
        }
    }
}

fn problems(run: &Run, data: &Path) -> Vec<(Kind, String)> {
    let delivered = &run.delivered;
    let failed = data.join("failed");
    let failed = failed.display();
    let mut found = Vec::new();
    if delivered.waiting > 0 {
        found.push((Kind::Pending, pending(delivered)));
    }
    if delivered.failed > 0 {
        let text = format!(
            "{} could not be delivered and moved to {failed}: `llmlb usage failed` shows why",
            counted(delivered.failed, "record")
        );
        found.push((Kind::Failed, text));
    }
    let damaged = run.consolidated.aside + delivered.damaged;
    if damaged > 0 {
        let text = format!("damaged files or lines: {damaged}; moved to {failed} with the reason");
        found.push((Kind::Damaged, text));
    }
    if run.consolidated.unreadable > 0 {
        let count = run.consolidated.unreadable as u64;
        let first = run.unreadable.first();
        let first = first.map_or_else(String::new, |error| format!(", the first: {error}"));
        let text = format!(
            "staged entries that cannot be read and stay in place: {count}{first}; \
             `llmlb usage pending` names them"
        );
        found.push((Kind::Unreadable, text));
    }
    if let Some(trouble) = &run.trouble {
        found.push((Kind::Disk, disk(trouble)));
    }
    if let Some(error) = &run.no_reserve {
        let text = format!("no records can be staged until there is room: {error}");
        found.push((Kind::Full, text));
    }
    found
}

fn disk(error: &RunError) -> String {
    if error.is_read_only() {
        format!("delivery is paused until the disk can be written: {error}")
    } else {
        error.to_string()
    }
}

fn pending(delivered: &Delivered) -> String {
    let count = counted(delivered.waiting, "batch");
    match (&delivered.paused, &delivered.last_error) {
        (Some(pause), _) if pause.is_rejecting => format!(
            "delivery to {} is paused: {}; {count} pending; check usage.format and what the receiver \
             expects of a record, or its limit for a request (413)",
            pause.to, pause.why
        ),
        (Some(pause), _) if pause.is_misconfigured => format!(
            "delivery to {} is paused: {}; {count} pending; check the URL and the token",
            pause.to, pause.why
        ),
        (_, Some(why)) => format!("{count} pending: {why}"),
        // They failed before, and are tried again later.
        (_, None) => format!("{count} pending"),
    }
}

fn counted(count: u64, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "batch") => format!("{count} batches"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(batches: u64, why: Option<&str>) -> Result<Run, RunError> {
        let mut run = Run::default();
        run.delivered.waiting = batches;
        run.delivered.last_error = why.map(str::to_owned);
        Ok(run)
    }

    fn is_on(alerts: &Alerts, kind: Kind) -> bool {
        alerts.episodes.get(&kind).is_some_and(Episode::is_on)
    }

    #[test]
    fn problem_is_shown_until_it_has_ended() {
        let (mut alerts, data) = (Alerts::default(), Path::new("/d"));
        assert_eq!(alerts.update(&waits(0, None), data, false), None);
        let shown = alerts.update(&waits(2, Some("503")), data, false);
        assert_eq!(shown.as_deref(), Some("2 batches pending: 503"));
        let shown = alerts.update(&waits(1, None), data, false);
        assert_eq!(shown.as_deref(), Some("1 batch pending"));
        assert!(is_on(&alerts, Kind::Pending));
        assert_eq!(alerts.update(&waits(0, None), data, false), None);
        assert!(!is_on(&alerts, Kind::Pending));
    }

    #[test]
    fn problem_of_one_kind_ends_while_another_lasts() {
        let (mut alerts, data) = (Alerts::default(), Path::new("/d"));
        let mut run = Run::default();
        run.delivered.waiting = 1;
        run.consolidated.unreadable = 1;
        assert!(alerts.update(&Ok(run), data, false).is_some());
        assert!(is_on(&alerts, Kind::Pending) && is_on(&alerts, Kind::Unreadable));
        assert!(alerts.update(&waits(1, None), data, false).is_some());
        assert!(is_on(&alerts, Kind::Pending) && !is_on(&alerts, Kind::Unreadable));
    }

    #[test]
    fn run_that_fails_ends_no_problem() {
        let (mut alerts, data) = (Alerts::default(), Path::new("/d"));
        assert!(alerts.update(&waits(1, None), data, false).is_some());
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = spool::DeliveryLock::acquire(file.path());
        let failed = Err(lock.err().unwrap());
        assert!(alerts.update(&failed, data, false).is_some());
        assert!(is_on(&alerts, Kind::Pending) && is_on(&alerts, Kind::Disk));
        assert_eq!(alerts.update(&waits(0, None), data, false), None);
        assert!(!is_on(&alerts, Kind::Pending) && !is_on(&alerts, Kind::Disk));
    }

    #[test]
    fn run_that_was_cut_neither_begins_nor_ends_a_problem() {
        let (mut alerts, data) = (Alerts::default(), Path::new("/d"));
        assert!(alerts.update(&waits(1, None), data, true).is_some());
        assert!(!is_on(&alerts, Kind::Pending));
        assert!(alerts.update(&waits(1, None), data, false).is_some());
        assert_eq!(alerts.update(&waits(0, None), data, true), None);
        assert!(is_on(&alerts, Kind::Pending));
    }

    #[test]
    fn all_problems_of_a_run_are_named() {
        let mut run = Run::default();
        run.delivered.failed = 3;
        run.consolidated.aside = 1;
        run.consolidated.unreadable = 2;
        let shown = Alerts::default().update(&Ok(run), Path::new("/d"), false);
        let shown = shown.unwrap();
        let failed = Path::new("/d").join("failed");
        let moved = format!(
            "3 records could not be delivered and moved to {}: ",
            failed.display()
        );
        for words in [
            &*moved,
            "damaged files or lines: 1;",
            "cannot be read and stay in place: 2;",
        ] {
            assert!(shown.contains(words), "{shown}");
        }
    }
}
