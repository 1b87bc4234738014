//! What is worth a line in the log: each kind of trouble once, until it is over.

use std::path::Path;

use spool::{Delivered, Run, RunError};

/// What was told, and is not over yet.
#[derive(Debug, Default)]
pub(super) struct News {
    told: Vec<Kind>,
}

/// What can be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The receiver takes nothing from us until a person has changed something.
    Refused,
    /// The receiver is not well, or asked us to wait.
    Waiting,
    /// Records that the receiver does not take.
    Failed,
    /// What is staged cannot be read.
    Unread,
    /// The data directory cannot be used.
    Disk,
    /// There is no room to stage anything.
    Full,
}

impl News {
    /// Tells what is new about a run, and gives all that is wrong. `is_cut`: it was ended early, and
    /// what waits may wait for that reason alone.
    pub(super) fn hear(
        &mut self,
        run: &Result<Run, RunError>,
        data: &Path,
        is_cut: bool,
    ) -> Option<String> {
        let found = match run {
            Ok(run) => troubles(run, data),
            Err(error) => vec![(Kind::Disk, error.to_string())],
        };
        for (kind, text) in &found {
            // The end says what waits.
            let is_old = self.told.contains(kind) || is_cut && *kind == Kind::Waiting;
            if !is_old {
                tracing::warn!("usage: {text}");
            }
        }
        if found.is_empty() && !self.told.is_empty() && !is_cut {
            tracing::info!("usage: all is well again");
        }
        self.told = found.iter().map(|(kind, _)| *kind).collect();
        let words: Vec<String> = found.into_iter().map(|(_, text)| text).collect();
        (!words.is_empty()).then(|| words.join("; "))
    }
}

fn troubles(run: &Run, data: &Path) -> Vec<(Kind, String)> {
    let delivered = &run.delivered;
    let aside = data.join("failed");
    let aside = aside.display();
    let mut found = Vec::new();
    if delivered.waiting > 0 {
        found.push(waiting(delivered));
    }
    if delivered.failed > 0 {
        let text = format!(
            "records that could not be delivered: {}; they are in {aside} with the reason",
            delivered.failed
        );
        found.push((Kind::Failed, text));
    }
    let unread = run.consolidated.aside + delivered.damaged;
    if unread > 0 {
        let text = format!("staged and not readable: {unread}; now in {aside} with the reason");
        found.push((Kind::Unread, text));
    }
    if run.consolidated.unreadable > 0 {
        let count = run.consolidated.unreadable;
        let text = format!("staged files that this user may not read: {count}");
        found.push((Kind::Unread, text));
    }
    if let Some(trouble) = &run.trouble {
        found.push((Kind::Disk, trouble.to_string()));
    }
    if let Some(error) = &run.no_reserve {
        found.push((
            Kind::Full,
            format!("nothing can be recorded until there is room: {error}"),
        ));
    }
    found
}

fn waiting(delivered: &Delivered) -> (Kind, String) {
    let count = delivered.waiting;
    match (&delivered.paused, &delivered.last_error) {
        (Some(pause), _) if pause.is_misconfigured => (
            Kind::Refused,
            format!(
                "{} takes nothing from us: {}; batches that wait: {count}. Check usage.url and the \
                 token",
                pause.to, pause.why
            ),
        ),
        (_, Some(why)) => (
            Kind::Waiting,
            format!("batches that wait for the receiver: {count}; it said: {why}"),
        ),
        // They were tried before, and their time has not come.
        (_, None) => (
            Kind::Waiting,
            format!("batches that wait for the receiver: {count}"),
        ),
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

    #[test]
    fn trouble_is_remembered_until_it_is_over() {
        let (mut news, data) = (News::default(), Path::new("/d"));
        assert_eq!(news.hear(&waits(0, None), data, false), None);
        let told = news.hear(&waits(2, Some("503")), data, false);
        assert_eq!(
            told.as_deref(),
            Some("batches that wait for the receiver: 2; it said: 503")
        );
        assert_eq!(news.told, [Kind::Waiting]);
        assert!(news.hear(&waits(2, None), data, false).is_some());
        assert_eq!(news.told, [Kind::Waiting], "it is not told again");
        assert_eq!(news.hear(&waits(0, None), data, false), None);
        assert!(news.told.is_empty());
    }

    #[test]
    fn all_that_is_wrong_is_named() {
        let mut run = Run::default();
        run.delivered.failed = 3;
        run.consolidated.aside = 1;
        run.consolidated.unreadable = 2;
        let told = News::default().hear(&Ok(run), Path::new("/d"), false);
        let told = told.unwrap();
        for words in [
            "delivered: 3; they are in",
            "not readable: 1;",
            "not read: 2",
        ] {
            assert!(told.contains(words), "{told}");
        }
    }
}
