//! Watches the configuration file, and reads it when it was changed or a signal requests it.
//!
//! The watch has a thread of its own: the file system may block, for example on a network, and no
//! request may wait for it.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::config::{self, Config, Flags, Problems};
use crate::sys::config_file::{self, Signature};

/// Interval at which the configuration file's metadata is checked for a change.
const POLL_EVERY: Duration = Duration::from_millis(100);
/// Time for which the configuration file must be unchanged before it is read, because a program may
/// not have finished writing it.
const SETTLED_AFTER: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) config: Result<Box<Config>, Problems>,
    /// True if a signal requested the reading. The result is then logged even if it is the same as
    /// before.
    pub(super) is_requested: bool,
}

/// Handle of the thread that watches the configuration file. Dropping it ends the thread.
#[derive(Debug)]
pub(super) struct ConfigWatch {
    requests: SyncSender<()>,
}

impl ConfigWatch {
    /// Starts the thread that watches the configuration file. `had_file` is true if the running
    /// configuration was read from a file.
    pub(super) fn start(
        flags: Flags,
        had_file: bool,
    ) -> io::Result<(Self, mpsc::Receiver<Loaded>)> {
        // Capacity for one request: it suffices for any number of signals that arrive before the
        // file is read.
        let (requests, asked) = sync_channel(1);
        let (sender, loaded) = mpsc::channel(1);
        let path = config::watched_path(&flags);
        let mut watcher = Watcher {
            // Start without a known signature, so that the first check reads the file: it may have
            // been changed after the server read it and before the watch began.
            settling: Settling::default(),
            reads_pipe: path.as_deref().is_some_and(config::is_pipe),
            path,
            flags,
            had_file,
        };
        thread::Builder::new()
            .name("llmlb-config".to_owned())
            .spawn(move || watcher.run(&asked, &sender))?;
        Ok((Self { requests }, loaded))
    }

    pub(super) fn request(&self) {
        // Ignore a full channel: it has an earlier request for which the file has not been read
        // yet, so that one reading serves both.
        let _ = self.requests.try_send(());
    }
}

struct Watcher {
    /// Path of the configuration file; `None` if no file is read.
    path: Option<PathBuf>,
    /// True if the running configuration was read from a pipe, which is now empty: it is not watched.
    reads_pipe: bool,
    flags: Flags,
    had_file: bool,
    settling: Settling,
}

impl Watcher {
    fn run(&mut self, asked: &Receiver<()>, loaded: &mpsc::Sender<Loaded>) {
        loop {
            let is_requested = match asked.recv_timeout(POLL_EVERY) {
                Ok(()) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let before = signature(self.path.as_ref());
            let is_due = |settling: &mut Settling| settling.is_due(before, Instant::now());
            if !is_requested && (self.reads_pipe || !is_due(&mut self.settling)) {
                continue;
            }
            let config = config::load_again(&self.flags, self.had_file).map(Box::new);
            // If the file changed while it was read, its content may be incomplete. It is read
            // again once it has been unchanged for a while.
            let is_stable = signature(self.path.as_ref()) == before;
            if is_stable {
                self.settling.note_read(before);
            } else if !is_requested {
                continue;
            }
            self.had_file |= config.as_ref().is_ok_and(|config| config.file.is_some());
            let result = Loaded {
                config,
                is_requested,
            };
            if loaded.blocking_send(result).is_err() {
                return;
            }
        }
    }
}

fn signature(path: Option<&PathBuf>) -> Option<Signature> {
    config_file::signature(path?)
}

/// Decides when a changed file is read: once it has been unchanged for [`SETTLED_AFTER`].
#[derive(Debug)]
struct Settling<S = Signature> {
    /// True if the configuration file was read at least once.
    was_read: bool,
    /// Signature of the file when it was read last; `None` if the file was missing.
    read: Option<S>,
    /// Signature that differs from the last one read, and the time at which it was first seen.
    changed: Option<(Option<S>, Instant)>,
}

impl<S> Default for Settling<S> {
    fn default() -> Self {
        Self {
            was_read: false,
            read: None,
            changed: None,
        }
    }
}

impl<S: Copy + PartialEq> Settling<S> {
    /// True if the configuration file differs from what was read last, and has been unchanged for
    /// [`SETTLED_AFTER`].
    fn is_due(&mut self, current: Option<S>, now: Instant) -> bool {
        if self.was_read && self.read == current {
            self.changed = None;
            return false;
        }
        match self.changed {
            Some((seen, since)) if seen == current => now.duration_since(since) >= SETTLED_AFTER,
            _ => {
                self.changed = Some((current, now));
                false
            }
        }
    }

    fn note_read(&mut self, read: Option<S>) {
        self.was_read = true;
        self.read = read;
        self.changed = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_file_is_due_once_it_was_unchanged_for_200_ms() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut settling = Settling::default();
        settling.note_read(Some(1));
        assert!(!settling.is_due(Some(1), at(0)));
        // A program writes the file in pieces, each of which changes its signature. The time must
        // start anew with each.
        for (signature, millis) in [(2, 100), (3, 250), (4, 400)] {
            assert!(!settling.is_due(Some(signature), at(millis)));
            assert!(!settling.is_due(Some(signature), at(millis + 100)));
        }
        assert!(!settling.is_due(Some(4), at(599)));
        assert!(settling.is_due(Some(4), at(600)));
        settling.note_read(Some(4));
        assert!(!settling.is_due(Some(4), at(2000)));
        // A file that is missing only for a moment, while a program replaces it, must not be read.
        assert!(!settling.is_due(None, at(2100)));
        assert!(!settling.is_due(Some(5), at(2200)));
        assert!(settling.is_due(Some(5), at(2400)));
        // A file that gets its old content again must not be read.
        settling.note_read(Some(5));
        assert!(!settling.is_due(Some(6), at(3000)));
        assert!(!settling.is_due(Some(5), at(3100)));
        assert!(!settling.is_due(Some(6), at(3250)));
    }

    #[test]
    fn missing_file_is_due_after_the_same_time() {
        let start = Instant::now();
        let mut settling = Settling::<u32>::default();
        assert!(!settling.is_due(None, start));
        assert!(settling.is_due(None, start + SETTLED_AFTER));
        settling.note_read(Some(1));
        assert!(!settling.is_due(None, start));
        assert!(settling.is_due(None, start + SETTLED_AFTER));
    }
}
