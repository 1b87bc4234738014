//! Taking a key: at once, or after waiting for its owner.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Map, Value};

use crate::error::{Error, Kind};
use crate::guard::Tenure;
use crate::holder::Holder;
use crate::key::Key;
use crate::process::Identity;
use crate::record::{Record, VERSION};
use crate::store::{self, Attempt, Held, Previous, Store};
use crate::sys;
use crate::sys::guard::Waiter;

/// Where waiting cannot be woken, the first pause and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// What is to be taken, and what the owner will say about itself.
///
/// ```
/// use std::time::Duration;
/// use tenure::{Key, Store};
///
/// let dir = tempfile::tempdir()?;
/// let tenure = Store::in_dir(dir.path())
///     .claim(&Key::name("import")?)
///     .program("importer")
///     .verb("nightly")
///     .field("pod_name", "pod-7")
///     .acquire_within(Duration::from_secs(5), |holder| eprintln!("waiting for {holder}"))?;
/// assert_eq!(tenure.record().program(), Some("importer"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a claim does nothing until it is acquired"]
pub struct Claim {
    store: Store,
    key: Key,
    program: Option<String>,
    verb: Option<String>,
    stop: Option<String>,
    keep_file: bool,
    inherited: Vec<String>,
    extra: Map<String, Value>,
}

impl Claim {
    pub(crate) fn new(store: Store, key: Key) -> Self {
        Self {
            store,
            key,
            program: None,
            verb: None,
            stop: None,
            keep_file: false,
            inherited: Vec::new(),
            extra: Map::new(),
        }
    }

    /// The program's name in the record. Default: the name by which this process was started.
    pub fn program(mut self, program: impl Into<String>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// What the program does while it owns the key, for example `serve`.
    pub fn verb(mut self, verb: impl Into<String>) -> Self {
        self.verb = Some(verb.into());
        self
    }

    /// What a person should type to stop this owner.
    pub fn stop_command(mut self, command: impl Into<String>) -> Self {
        self.stop = Some(command.into());
        self
    }

    /// Adds a field of your own to the record. It must not be a secret: records are explanations.
    pub fn field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra.insert(name.into(), value.into());
        self
    }

    /// Leaves the file in place on release, marked as released. On network file systems this is
    /// always so.
    ///
    /// The file is a multiple of 4 KiB long, and its record is rewritten in place. So a disk that is
    /// full later keeps nobody from taking the key and from naming itself as its owner. Tokens keep
    /// rising even if the clock is set back.
    ///
    /// ```
    /// use tenure::{Key, State, Store};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let store = Store::in_dir(dir.path());
    /// let key = Key::name("deliver")?;
    /// store.claim(&key).keep_file(true).try_acquire()?.release()?;
    ///
    /// assert_eq!(std::fs::metadata(store.path_of(&key))?.len(), 4096);
    /// assert!(matches!(store.status(&key)?.state(), State::Free));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep_file(mut self, keep: bool) -> Self {
        self.keep_file = keep;
        self
    }

    /// Takes a field over from the record of an owner that did not release, in the same write
    /// that makes the record ours: work that a crashed owner noted there is never forgotten.
    ///
    /// A field of the same name that was given with [`field`](Self::field) is what holds if there
    /// is nothing to take over.
    ///
    /// ```
    /// use tenure::{Key, Store};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let claim = Store::in_dir(dir.path())
    ///     .claim(&Key::name("import")?)
    ///     .inherit("half_done");
    /// let mut crashed = claim.clone().try_acquire()?;
    /// crashed.set_field("half_done", "part-7")?;
    /// crashed.leave()?; // as a crash would
    ///
    /// let next = claim.try_acquire()?;
    /// assert_eq!(next.record().field("half_done"), Some(&"part-7".into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn inherit(mut self, name: impl Into<String>) -> Self {
        self.inherited.push(name.into());
        self
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn path(&self) -> PathBuf {
        self.store.path_of(&self.key)
    }

    /// Takes the key, or says at once who has it.
    ///
    /// The lock decides, not the record: if the record cannot be written (the disk is full, damaged
    /// or read-only), the key is taken all the same, a warning is logged once, and
    /// [`Tenure::record_error`] has the reason. Others are then refused without a name.
    pub fn try_acquire(self) -> Result<Tenure, Error> {
        match store::take(self.store.target(&self.key)?)? {
            Attempt::Taken(held, previous) => self.settle(held, previous),
            Attempt::Busy(holder, _) => Err(Error::new(Kind::Held {
                key: self.key.to_string(),
                holder: *holder,
            })),
        }
    }

    /// Takes the key, waiting for at most `limit`. `on_wait` hears whom it waits for, once for
    /// each owner that is in the way.
    pub fn acquire_within(
        self,
        limit: Duration,
        on_wait: impl FnMut(&Holder),
    ) -> Result<Tenure, Error> {
        self.wait(Instant::now().checked_add(limit), on_wait, || false)
    }

    /// Takes the key, however long that takes.
    pub fn acquire(self, on_wait: impl FnMut(&Holder)) -> Result<Tenure, Error> {
        self.wait(None, on_wait, || false)
    }

    /// `give_up` is asked several times a second whether anyone still wants the key.
    pub(crate) fn wait(
        self,
        deadline: Option<Instant>,
        mut on_wait: impl FnMut(&Holder),
        give_up: impl Fn() -> bool,
    ) -> Result<Tenure, Error> {
        let mut waiter = Waiter::default();
        let mut pause = FIRST_PAUSE;
        let mut told = None;
        loop {
            let (holder, target) = match store::take(self.store.target(&self.key)?)? {
                Attempt::Taken(held, previous) => return self.settle(held, previous),
                Attempt::Busy(holder, target) => (holder, target),
            };
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() || give_up() {
                let (key, holder) = (self.key.to_string(), *holder);
                return Err(Error::new(Kind::TimedOut { key, holder }));
            }
            let who = Some((
                holder.pid,
                holder.record.as_ref().map(|record| record.token),
            ));
            if told != who {
                on_wait(&holder);
                told = who;
            }
            waiter.wait(&target.directory, &target.name, left, pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The lock is ours: say so in the record.
    fn settle(mut self, mut held: Held, previous: Previous) -> Result<Tenure, Error> {
        let path = held.path().display();
        let me = Me::get();
        if let Some(Ok(record)) = &previous
            && record.released_at.is_none()
        {
            for name in &self.inherited {
                if let Some(value) = record.extra.get(name) {
                    self.extra.insert(name.clone(), value.clone());
                }
            }
        }
        let last_token = match previous {
            Some(Ok(record)) => {
                if is_of(&record, &me) {
                    tracing::debug!(path = %path, "this process left its own record here before");
                } else if record.released_at.is_none() {
                    tracing::warn!(
                        path = %path,
                        pid = record.pid,
                        started_at = record.started_at_text(),
                        program = record.program,
                        host = record.host,
                        "taking over from an owner that is gone"
                    );
                }
                record.token
            }
            Some(Err(why)) => {
                tracing::warn!(path = %path, %why, "taking over an unreadable lock file");
                0
            }
            None => 0,
        };
        if held.is_on_network() {
            tracing::warn!(
                path = %path,
                "this is a network file system: the lock holds only while its server keeps our \
                 lease, and the file is kept after release"
            );
        }
        if self.keep_file || held.is_on_network() {
            held.keep_file();
        }
        let now = SystemTime::now();
        let record = Record {
            pid: me.pid,
            started_at: Some(now),
            port: self.key.port_number(),
            key: Some(self.key.to_string()),
            host: me.host.clone(),
            user: Some(me.user.clone()),
            program: self.program.or_else(|| me.program.clone()),
            verb: self.verb,
            stop: self.stop,
            stop_event: None,
            process: me.identity.clone(),
            command: None,
            token: next_token(last_token, now),
            version: VERSION,
            released_at: None,
            extra: self.extra,
        };
        let record_error = held.write(&record).err();
        report_record_error(held.path(), record_error.as_ref());
        tracing::debug!(path = %held.path().display(), token = record.token, "acquired");
        Ok(Tenure::new(held, record, record_error))
    }
}

/// Lock files whose last record this process could not write.
static WITHOUT_RECORD: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Logs that a record cannot be written when that begins and when it ends. A lock may be acquired
/// again and again meanwhile.
fn report_record_error(path: &Path, error: Option<&Error>) {
    let mut without = WITHOUT_RECORD
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    match error {
        Some(error) if without.insert(path.to_owned()) => {
            tracing::warn!(%error, "the lock is held, but others cannot see by whom");
        }
        Some(error) => tracing::debug!(%error, "others still cannot see by whom the lock is held"),
        None if without.remove(path) => {
            tracing::info!(path = %path.display(), "others can see again by whom the lock is held");
        }
        None => {}
    }
}

/// True if this very process wrote the record. It did not mark the record as released, because that
/// write failed; no other owner is gone.
fn is_of(record: &Record, me: &Me) -> bool {
    record.pid == me.pid && me.identity.is_some() && record.process == me.identity
}

/// Larger than the last one, and larger than any that a clock that only goes forward gave out.
fn next_token(last: u64, now: SystemTime) -> u64 {
    let micros = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        });
    micros.max(last.saturating_add(1))
}

/// What this process says about itself; the same for every key it takes.
#[derive(Clone)]
pub(crate) struct Me {
    pub(crate) pid: u32,
    identity: Option<Identity>,
    host: Option<String>,
    pub(crate) user: String,
    program: Option<String>,
}

impl Me {
    pub(crate) fn get() -> Self {
        static ME: OnceLock<Me> = OnceLock::new();
        let me = ME.get_or_init(Self::look);
        // A forked child is somebody else.
        if me.pid == std::process::id() {
            me.clone()
        } else {
            Self::look()
        }
    }

    fn look() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            identity: Identity::of(pid),
            host: sys::process::host(),
            user: sys::process::current_user(),
            program: std::env::args_os().next().and_then(|program| {
                let name = Path::new(&program).file_stem()?;
                Some(name.to_string_lossy().into_owned())
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_rises_even_if_the_clock_was_set_back() {
        let at = |secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs);
        assert_eq!(next_token(0, at(10)), 10_000_000);
        assert_eq!(next_token(10_000_000, at(10)), 10_000_001);
        assert_eq!(next_token(99_000_000, at(10)), 99_000_001);
        assert_eq!(
            next_token(5, SystemTime::UNIX_EPOCH - Duration::from_secs(1)),
            6
        );
    }
}
