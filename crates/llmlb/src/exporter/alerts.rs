//! Logs problems of consolidation and delivery. Each kind of problem is logged when it begins, at
//! growing intervals while it lasts, and when it has ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use spool::{Cancel, Delivered, Run, RunError};

use crate::episode::{Episode, Event};
use crate::fleet::FleetError;

/// Problems of consolidation and delivery that were logged and have not ended.
#[derive(Debug, Default)]
pub(crate) struct Alerts {
    episodes: BTreeMap<AlertKind, Episode>,
}

/// Kind of a problem of consolidation or delivery. Each kind has its own beginning and end in the
/// log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AlertKind {
    /// Batches are pending: the receiver failed, requested a pause, or rejects every batch.
    Pending,
    /// Records were moved to `failed/`: the receiver rejected them, or failed for too long.
    Failed,
    /// Damaged files or lines were moved to `failed/`.
    Damaged,
    /// Staged entries cannot be read. They are retried in every run.
    Unreadable,
    /// The data directory cannot be read or written.
    Disk,
    /// The disk has no room to stage records.
    Full,
    /// This server may not deliver usage records: the lease store cannot be used, or file locks are
    /// not visible on other hosts.
    Fleet,
}

impl AlertKind {
    /// Returns the log message for the end of the problem. `None` for a single event, such as
    /// damaged files, which has no end.
    fn ended(self) -> Option<&'static str> {
        match self {
            Self::Pending => Some("delivery works again"),
            Self::Unreadable => Some("all staged entries can be read again"),
            Self::Disk => Some("the data directory is usable again"),
            Self::Full => Some("the disk has room to stage records again"),
            Self::Fleet => Some("this server may deliver usage records again"),
            Self::Failed | Self::Damaged => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    Complete,
    /// The run was cancelled by the shutdown. Batches may be pending although the receiver works,
    /// so that no alert is logged.
    Cancelled,
}

impl RunEnd {
    pub(crate) fn from_cancel(cancel: &Cancel) -> Self {
        if cancel.is_cancelled() {
            Self::Cancelled
        } else {
            Self::Complete
        }
    }
}

impl Alerts {
    /// Logs the beginning, continuation and end of problems after a run. Returns the text of all
    /// problems of this run, for `/status`.
    pub(crate) fn update(
        &mut self,
        run: &Result<Run, RunError>,
        data: &Path,
        end: RunEnd,
    ) -> Option<String> {
        let found = match run {
            Ok(run) => problems(run, data),
            Err(error @ RunError::Fenced) => vec![(AlertKind::Fleet, fenced(error))],
            Err(error) => vec![(AlertKind::Disk, disk(error))],
        };
        let now = Instant::now();
        for (kind, text) in &found {
            if end == RunEnd::Cancelled && *kind == AlertKind::Pending {
                continue;
            }
            self.log(*kind, text, now);
        }
        // Only a complete run proves that a problem is over: a failed or cancelled run may not have
        // reached the step at which the problem occurs.
        let is_complete = run.as_ref().is_ok_and(|run| run.trouble.is_none());
        if is_complete && end == RunEnd::Complete {
            self.end_all_but(&found, now);
        }
        let texts: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// Logs that this server may not deliver usage records. Returns the text of the problem, for
    /// `/status`.
    pub(crate) fn refused(&mut self, error: &FleetError) -> String {
        let text = match error.hint() {
            Some(hint) => format!("not delivered: {error}; {hint}"),
            None => format!("not delivered: {error}"),
        };
        self.log(AlertKind::Fleet, &text, Instant::now());
        text
    }

    fn log(&mut self, kind: AlertKind, text: &str, now: Instant) {
        match self.episodes.entry(kind).or_default().occurred(now) {
            Some(Event::Began) => tracing::warn!("usage: {text}"),
            Some(Event::Continues { since, .. }) => {
                tracing::warn!(
                    "usage: problem persists after {} s: {text}",
                    since.as_secs()
                );
            }
            _ => {}
        }
    }

    fn end_all_but(&self, found: &[(AlertKind, String)], now: Instant) {
        let is_over = |kind: &AlertKind| !found.iter().any(|(other, _)| other == kind);
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

fn problems(run: &Run, data: &Path) -> Vec<(AlertKind, String)> {
    let delivered = &run.delivered;
    let failed = data.join("failed");
    let failed = failed.display();
    let mut found = Vec::new();
    if delivered.waiting > 0 {
        found.push((AlertKind::Pending, pending(delivered)));
    }
    if delivered.failed > 0 {
        let text = format!(
            "{} could not be delivered; moved to {failed}; show the reasons: llmlb usage failed",
            counted(delivered.failed, "record")
        );
        found.push((AlertKind::Failed, text));
    }
    let damaged = run.consolidated.aside + delivered.damaged;
    if damaged > 0 {
        let text =
            format!("damaged files or lines: {damaged}; moved to {failed}, each with its reason");
        found.push((AlertKind::Damaged, text));
    }
    if run.consolidated.unreadable > 0 {
        let count = run.consolidated.unreadable as u64;
        let first = run.unreadable.first();
        let first = first.map_or_else(String::new, |error| format!(", the first: {error}"));
        let text = format!(
            "staged entries that cannot be read and stay in place: {count}{first}; \
             list them: llmlb usage pending"
        );
        found.push((AlertKind::Unreadable, text));
    }
    if let Some(trouble) = &run.trouble {
        found.push((AlertKind::Disk, disk(trouble)));
    }
    if let Some(error) = &run.no_reserve {
        let text = format!(
            "records cannot be staged, because the reserve on the disk is missing: {error}"
        );
        found.push((AlertKind::Full, text));
    }
    found
}

fn fenced(error: &RunError) -> String {
    format!("{error}: the lease of fleet.store could not be renewed in time")
}

fn disk(error: &RunError) -> String {
    if error.is_read_only() {
        format!("delivery paused until the disk is writable: {error}")
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
            "delivery to {} paused: {}; {count} pending; check usage.url and the token",
            pause.to, pause.why
        ),
        (_, Some(why)) => format!("{count} pending: {why}"),
        // This run made no attempt to deliver, so there is no error to show: the batches failed in
        // an earlier run and wait for their next retry.
        (_, None) => format!("{count} pending"),
    }
}

pub(super) fn counted(count: u64, what: &str) -> String {
    match (count, what) {
        (1, _) => format!("1 {what}"),
        (_, "batch") => format!("{count} batches"),
        _ => format!("{count} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_with_pending(batches: u64, why: Option<&str>) -> Result<Run, RunError> {
        let mut run = Run::default();
        run.delivered.waiting = batches;
        run.delivered.last_error = why.map(str::to_owned);
        Ok(run)
    }

    fn is_on(alerts: &Alerts, kind: AlertKind) -> bool {
        alerts.episodes.get(&kind).is_some_and(Episode::is_on)
    }

    #[test]
    fn problem_is_shown_until_it_has_ended() {
        let (mut alerts, data) = (Alerts::default(), Path::new("/d"));
        assert_eq!(
            alerts.update(&run_with_pending(0, None), data, RunEnd::Complete),
            None
        );
        let shown = alerts.update(&run_with_pending(2, Some("503")), data, RunEnd::Complete);
        assert_eq!(shown.as_deref(), Some("2 batches pending: 503"));
        let shown = alerts.update(&run_with_pending(1, None), data, RunEnd::Complete);
        assert_eq!(shown.as_deref(), Some("1 batch pending"));
        assert!(is_on(&alerts, AlertKind::Pending));
        assert_eq!(
            alerts.update(&run_with_pending(0, None), data, RunEnd::Complete),
            None
        );
        assert!(!is_on(&alerts, AlertKind::Pending));
    }

    #[test]
    fn problem_of_one_kind_ends_while_another_lasts() {
        let (mut alerts, data) = (Alerts::default(), Path::new("/d"));
        let mut run = Run::default();
        run.delivered.waiting = 1;
        run.consolidated.unreadable = 1;
        assert!(alerts.update(&Ok(run), data, RunEnd::Complete).is_some());
        assert!(is_on(&alerts, AlertKind::Pending) && is_on(&alerts, AlertKind::Unreadable));
        assert!(
            alerts
                .update(&run_with_pending(1, None), data, RunEnd::Complete)
                .is_some()
        );
        assert!(is_on(&alerts, AlertKind::Pending) && !is_on(&alerts, AlertKind::Unreadable));
    }

    #[test]
    fn failed_run_ends_no_problem() {
        let (mut alerts, data) = (Alerts::default(), Path::new("/d"));
        assert!(
            alerts
                .update(&run_with_pending(1, None), data, RunEnd::Complete)
                .is_some()
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = spool::DeliveryLock::acquire(file.path());
        let failed = Err(lock.err().unwrap());
        assert!(alerts.update(&failed, data, RunEnd::Complete).is_some());
        assert!(is_on(&alerts, AlertKind::Pending) && is_on(&alerts, AlertKind::Disk));
        assert_eq!(
            alerts.update(&run_with_pending(0, None), data, RunEnd::Complete),
            None
        );
        assert!(!is_on(&alerts, AlertKind::Pending) && !is_on(&alerts, AlertKind::Disk));
    }

    #[test]
    fn cancelled_run_neither_begins_nor_ends_a_problem() {
        let (mut alerts, data) = (Alerts::default(), Path::new("/d"));
        assert!(
            alerts
                .update(&run_with_pending(1, None), data, RunEnd::Cancelled)
                .is_some()
        );
        assert!(!is_on(&alerts, AlertKind::Pending));
        assert!(
            alerts
                .update(&run_with_pending(1, None), data, RunEnd::Complete)
                .is_some()
        );
        assert_eq!(
            alerts.update(&run_with_pending(0, None), data, RunEnd::Cancelled),
            None
        );
        assert!(is_on(&alerts, AlertKind::Pending));
    }

    #[test]
    fn all_problems_of_a_run_are_named() {
        let mut run = Run::default();
        run.delivered.failed = 3;
        run.consolidated.aside = 1;
        run.consolidated.unreadable = 2;
        let shown = Alerts::default().update(&Ok(run), Path::new("/d"), RunEnd::Complete);
        let shown = shown.unwrap();
        let failed = Path::new("/d").join("failed");
        let moved = format!(
            "3 records could not be delivered; moved to {}; ",
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
