//! Acquiring a key: at once, or after waiting for its owner to release it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;

use crate::error::{Error, Kind};
use crate::holder::Holder;
use crate::key::Key;
use crate::lease::{self, LeaseRequest, LeaseStore, Patience};
use crate::process::Identity;
use crate::record::{ExtraField, Record, VERSION};
use crate::store::{self, Attempt, Held, Previous, Store, StoreKind};
use crate::sys;
use crate::sys::deletion_guard::Waiter;
use crate::tenure::{Ownership, Tenure};

/// Pause after the first attempt to acquire a held key, where the kernel does not wake the waiting
/// process: on macOS, on Windows, and on Linux without a deletion guard. Later pauses are longer.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// Maximum pause between two attempts to acquire a held key. The pause doubles up to this limit, so
/// that a process that waits for long uses little CPU time.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);

/// A request to acquire a key, with the text that the lock record will contain.
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
#[must_use = "a claim does nothing until `try_acquire`, `acquire` or `acquire_within` is called"]
pub struct Claim {
    store: Store,
    key: Key,
    program: Option<String>,
    verb: Option<String>,
    stop: Option<String>,
    keep_file: bool,
    inherited: Vec<String>,
    extra: BTreeMap<String, ExtraField>,
    ttl: Option<Duration>,
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
            extra: BTreeMap::new(),
            ttl: None,
        }
    }

    /// Program name in the lock record. Default: the name by which this process was started.
    pub fn program(mut self, program: impl Into<String>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// Action of the program while it owns the key, for example `serve`. Shown next to the
    /// program's name.
    pub fn verb(mut self, verb: impl Into<String>) -> Self {
        self.verb = Some(verb.into());
        self
    }

    /// Command that stops this owner. Shown to users whose claim on the key is refused.
    pub fn stop_command(mut self, command: impl Into<String>) -> Self {
        self.stop = Some(command.into());
        self
    }

    /// Adds a field to the lock record. Its value must not be secret: `tenure status` and refusals
    /// show it.
    pub fn field(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.extra
            .insert(name.into(), ExtraField::from(value.into()));
        self
    }

    /// Time for which a lease is valid unless it is renewed, from 1 second to 24 hours. Default: 15
    /// seconds. The lease is renewed each time a third of it has passed.
    ///
    /// After a crash of the owner the key stays held for up to this time. An owner that cannot reach
    /// the store for about this time loses the lease. Stores of lock files ignore the setting: there
    /// the kernel ends the ownership together with the process.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Keeps the lock file on release and marks it as released, instead of removing it. A lock file
    /// on a network file system is always kept. Lease stores ignore the setting.
    ///
    /// A kept file is a multiple of 4 KiB long, and its lock record is rewritten in place. Owners
    /// can therefore acquire the key and write their lock record on a full disk. Tokens keep
    /// increasing even if the clock is set back.
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

    /// Copies a field from the lock record of an owner that crashed. The copy is part of the write
    /// that replaces the record, so a second crash does not lose the value, such as a list of
    /// unfinished work.
    ///
    /// If the previous owner released the key or had no such field, the value given with
    /// [`field`](Self::field) is used. A lease store always uses the given value, because a lock
    /// record in it ends with its lease.
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

    /// Acquires the key. Fails at once if it is held; the error names the holder.
    ///
    /// Ownership depends on the lock alone. If the lock record cannot be written (the disk is full,
    /// damaged or read-only), the key is acquired nevertheless, a warning is logged once, and
    /// [`Tenure::record_error`] has the reason. Other claims are then refused without the owner's
    /// name.
    ///
    /// DynamoDB does not expire leases by itself. There an attempt on a held key first waits until
    /// the owner has renewed its lease, which takes up to a third of the TTL, or has not done so for
    /// a whole TTL, which frees the key.
    pub fn try_acquire(self) -> Result<Tenure, Error> {
        if let StoreKind::Leases(leases) = &self.store.kind {
            return self.acquire_lease(leases, &mut Patience::None);
        }
        match store::try_acquire(self.store.target(&self.key)?)? {
            Attempt::Acquired(held, previous) => self.into_tenure(held, previous),
            Attempt::Busy(holder, _) => Err(Error::new(Kind::Held {
                key: self.key.to_string(),
                holder: *holder,
            })),
        }
    }

    /// Acquires the key, waiting for at most `limit`. `on_wait` is called once for each owner that
    /// holds the key meanwhile.
    pub fn acquire_within(
        self,
        limit: Duration,
        on_wait: impl FnMut(&Holder),
    ) -> Result<Tenure, Error> {
        self.wait(Instant::now().checked_add(limit), on_wait, || false)
    }

    /// Acquires the key, waiting for as long as necessary.
    pub fn acquire(self, on_wait: impl FnMut(&Holder)) -> Result<Tenure, Error> {
        self.wait(None, on_wait, || false)
    }

    /// Acquires the key, waiting until `deadline`, or forever without a deadline. Also fails with a
    /// timeout error once `is_cancelled` returns true, which is called several times a second.
    pub(crate) fn wait(
        self,
        deadline: Option<Instant>,
        mut on_wait: impl FnMut(&Holder),
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Tenure, Error> {
        if let StoreKind::Leases(leases) = &self.store.kind {
            let mut patience = Patience::Until(deadline, &mut on_wait, &is_cancelled);
            return self.acquire_lease(leases, &mut patience);
        }
        let mut waiter = Waiter::default();
        let mut pause = FIRST_PAUSE;
        let mut reported = None;
        loop {
            let (holder, target) = match store::try_acquire(self.store.target(&self.key)?)? {
                Attempt::Acquired(held, previous) => return self.into_tenure(held, previous),
                Attempt::Busy(holder, target) => (holder, target),
            };
            let left = deadline.map_or(Duration::MAX, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() || is_cancelled() {
                let (key, holder) = (self.key.to_string(), *holder);
                return Err(Error::new(Kind::TimedOut { key, holder }));
            }
            let owner = Some((
                holder.pid,
                holder.record.as_ref().map(|record| record.token),
            ));
            if reported != owner {
                on_wait(&holder);
                reported = owner;
            }
            waiter.wait(&target.directory, &target.name, left, pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn acquire_lease(
        &self,
        leases: &LeaseStore,
        patience: &mut Patience<'_>,
    ) -> Result<Tenure, Error> {
        let mut record = self
            .clone()
            .into_record(&OwnProcess::get(), 0, SystemTime::now());
        let request = LeaseRequest {
            store: leases,
            key: &self.key,
            ttl: self.ttl,
            record: &record,
        };
        let (lease, token) = lease::acquire(&request, patience)?;
        record.token = token;
        tracing::debug!(path = %lease.path().display(), token, "acquired");
        Ok(Tenure::new(Ownership::Lease(lease), record, None))
    }

    /// Writes the lock record, now that the lock is held, and returns the tenure. A failed write is
    /// stored in the tenure, because the key is held in any case.
    fn into_tenure(mut self, mut held: Held, previous: Previous) -> Result<Tenure, Error> {
        let path = held.path().display();
        let me = OwnProcess::get();
        if let Some(Ok(record)) = &previous
            && record.released_at.is_none()
        {
            for name in &self.inherited {
                if let Some(field) = record.extra.get(name) {
                    self.extra.insert(name.clone(), field.clone());
                }
            }
        }
        let last_token = match previous {
            Some(Ok(record)) => {
                if is_own_record(&record, &me) {
                    tracing::debug!(
                        path = %path,
                        "found a lock record that this process itself wrote as an earlier owner"
                    );
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
                "the lock file is on a network file system: the lock lasts only while the server \
                 keeps this client's lease, and the file is kept after release"
            );
        }
        if self.keep_file || held.is_on_network() {
            held.keep_file();
        }
        let now = SystemTime::now();
        let record = self.into_record(&me, next_token(last_token, now), now);
        let record_error = held.write(&record).err();
        report_record_error(held.path(), record_error.as_ref());
        tracing::debug!(path = %held.path().display(), token = record.token, "acquired");
        Ok(Tenure::new(Ownership::File(held), record, record_error))
    }

    fn into_record(self, me: &OwnProcess, token: u64, now: SystemTime) -> Record {
        Record {
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
            token,
            version: VERSION,
            released_at: None,
            extra: self.extra,
        }
    }
}

/// Paths of the lock files whose lock record this process failed to write at its last attempt.
/// [`report_record_error`] uses them to log one warning per file instead of one per attempt.
static UNWRITTEN_RECORDS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Logs a warning when the lock record of a file cannot be written, and a message when it can be
/// written again. Repeated failures for the same file are logged at debug level only: a process
/// that acquires the same key repeatedly on a full disk would otherwise log a warning each time.
fn report_record_error(path: &Path, error: Option<&Error>) {
    let mut without = UNWRITTEN_RECORDS
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    match error {
        Some(error) if without.insert(path.to_owned()) => {
            tracing::warn!(
                %error,
                "lock acquired, but its record cannot be written: other processes cannot see the owner"
            );
        }
        Some(error) => tracing::debug!(%error, "the lock record still cannot be written"),
        None if without.remove(path) => {
            tracing::info!(path = %path.display(), "the lock record can be written again");
        }
        None => {}
    }
}

/// True if this process wrote the lock record as an earlier owner of the key. The earlier owner has
/// then not crashed, so no takeover warning is logged.
fn is_own_record(record: &Record, me: &OwnProcess) -> bool {
    record.pid == me.pid && me.identity.is_some() && record.process == me.identity
}

/// Next fencing token: larger than the previous one, and at least the clock in microseconds. The
/// clock keeps tokens increasing when no earlier lock record is left.
fn next_token(last: u64, now: SystemTime) -> u64 {
    let micros = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| {
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        });
    micros.max(last.saturating_add(1))
}

/// Facts about this process that its lock records contain. They are read once and cached, so that
/// later acquisitions need not read them again.
#[derive(Clone)]
pub(crate) struct OwnProcess {
    pub(crate) pid: u32,
    identity: Option<Identity>,
    host: Option<String>,
    pub(crate) user: String,
    program: Option<String>,
}

impl OwnProcess {
    pub(crate) fn get() -> Self {
        static ME: OnceLock<OwnProcess> = OnceLock::new();
        let me = ME.get_or_init(Self::read);
        // A forked child inherits the cached value of its parent, but is another process, so its
        // value is read anew.
        if me.pid == std::process::id() {
            me.clone()
        } else {
            Self::read()
        }
    }

    fn read() -> Self {
        let pid = std::process::id();
        Self {
            pid,
            identity: Identity::from_pid(pid),
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
    fn token_increases_even_if_the_clock_was_set_back() {
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
