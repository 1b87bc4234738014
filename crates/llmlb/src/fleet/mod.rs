//! Elects one deliverer per data directory, even across machines (promise S11).
//!
//! On one machine the delivery lock of the data directory elects the deliverer. Machines that share
//! the directory also need a lease (`fleet.store`): a run first acquires the lease, then the
//! delivery lock, and holds both. The run checks its lease in front of every change and every batch
//! ([`spool::Fence`]). If the lease is lost, the run ends, and the next run of any machine
//! continues.
//!
//! The lease alone is not enough: it cannot stop a write that has begun when a process is suspended.
//! The delivery lock can, because a suspended process still holds it. Where file locks are not visible
//! on other machines, delivery is therefore refused: by the mount options ([`sys::local_lock_option`]),
//! or because a server has noticed that another one does not see its lock ([`members`]).

mod directory;
mod error;
mod members;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use spool::{Consolidator, Fence, Runner, SpoolManager};
use tenure::{Key, Store, Tenure};

use crate::config::FleetConfig;
use crate::sys;
pub(crate) use error::FleetError;
use members::{Member, Membership};

/// Subdirectory of the data directory that contains the files of a fleet.
const DIR: &str = "fleet";

/// Access to the lease of one data directory, by which the machines that share it elect their
/// deliverer.
#[derive(Debug)]
pub(crate) struct Fleet {
    data: PathBuf,
    config: FleetConfig,
    instance: String,
    /// Connection to the lease store, which the first run opens.
    store: Option<Store>,
    member: Option<Member>,
    lease: Arc<Mutex<Option<Tenure>>>,
}

/// Right to deliver from the data directory. Dropping it releases the lease, so that another
/// machine can deliver.
#[derive(Debug)]
#[must_use = "dropping the lease allows other machines to deliver"]
struct FleetLease(Arc<Mutex<Option<Tenure>>>);

impl Drop for FleetLease {
    fn drop(&mut self) {
        let lease = lock(&self.0).take();
        // Ignore an error of the release: the lease then ends after its TTL, and tenure logs the
        // error.
        drop(lease);
    }
}

impl Fleet {
    /// Returns access to the lease of a data directory. It reads no files and does not contact the
    /// store before [`Self::begin`].
    pub(crate) fn new(config: &FleetConfig, data: &Path, instance: &str) -> Self {
        Self {
            data: data.to_owned(),
            config: config.clone(),
            instance: instance.to_owned(),
            store: None,
            member: None,
            lease: Arc::default(),
        }
    }

    /// Returns a runner that consolidates and delivers. Its runs end when the lease is lost.
    pub(crate) fn runner(&self) -> Runner {
        let runner = Runner::new(&self.data);
        match self.fence() {
            Some(fence) => runner.fenced(fence),
            None => runner,
        }
    }

    /// Returns a consolidator that refuses to change the data directory after the lease is lost.
    pub(crate) fn consolidator(&self) -> Consolidator {
        let consolidator = Consolidator::new(&self.data);
        match self.fence() {
            Some(fence) => consolidator.fenced(fence),
            None => consolidator,
        }
    }

    /// Returns a spool manager that refuses to change batches after the lease is lost.
    pub(crate) fn spool(&self) -> SpoolManager {
        let spool = SpoolManager::new(&self.data);
        match self.fence() {
            Some(fence) => spool.fenced(fence),
            None => spool,
        }
    }

    /// Acquires the lease, runs the closure, and releases the lease. Fails without running the
    /// closure if the lease is not acquired.
    pub(crate) fn run<T>(&mut self, work: impl FnOnce() -> T) -> Result<T, FleetError> {
        let lease = self.begin()?;
        let done = work();
        drop(lease);
        if let Err(error) = self.answer_challenge() {
            // The work is done, so its result must be returned even if locks turn out not to be
            // shared. The error is logged, and every later run is refused.
            tracing::error!("usage: {error}; {}", error.hint().unwrap_or_default());
        }
        Ok(done)
    }

    /// Returns the fence that makes runs check the lease before every change; `None` without a
    /// lease store.
    fn fence(&self) -> Option<Fence> {
        self.config.store.as_ref()?;
        let lease = Arc::clone(&self.lease);
        Some(Fence::new(move || {
            lock(&lease).as_ref().is_some_and(|lease| !lease.lost())
        }))
    }

    /// Acquires the right to deliver from the data directory. Without a lease store it only checks
    /// that the directory does not belong to a fleet.
    fn begin(&mut self) -> Result<FleetLease, FleetError> {
        members::check_marker(&self.data)?;
        let Some(configured) = self.config.store.clone() else {
            directory::check_without_store(&self.data)?;
            return Ok(FleetLease(Arc::clone(&self.lease)));
        };
        if let Some((option, system)) = sys::local_lock_option(&self.data) {
            return Err(FleetError::LocalLocks {
                data: self.data.clone(),
                option,
                system,
            });
        }
        let store = match &self.store {
            Some(store) => store.clone(),
            None => Store::connect(configured.url()).map_err(FleetError::Store)?,
        };
        self.store = Some(store.clone());
        let identity = store.identity();
        let identity = identity.as_deref().unwrap_or(configured.shown());
        let id = directory::id(&self.data, identity)?;
        self.check_locks()?;
        let key = Key::name(format!("llmlb-deliver-{id}")).map_err(FleetError::Store)?;
        let claim = store
            .claim(&key)
            .ttl(self.config.ttl)
            .program("llmlb")
            .verb("deliver")
            .field("instance", self.instance.as_str());
        let lease = claim.try_acquire().map_err(FleetError::from)?;
        *lock(&self.lease) = Some(lease);
        Ok(FleetLease(Arc::clone(&self.lease)))
    }

    /// Joins the fleet again if another member does not see the lock of this process; fails if
    /// locks are not shared. It is also called after a run, because a command that runs only once
    /// would otherwise never notice a challenge.
    fn answer_challenge(&mut self) -> Result<(), FleetError> {
        let Some(member) = &self.member else {
            return Ok(());
        };
        if member.answer(&self.data)? == Membership::Challenged {
            tracing::warn!(
                "usage: another host does not see the file lock of this process in {}; the lock was lost in an \
                 outage, or locks are not shared: acquiring a new one",
                self.data.join(DIR).display()
            );
            // Drop the old membership first, which removes its file and its challenge. The new one
            // then creates its own file.
            self.member = None;
            self.member = Some(Member::join(&self.data, &self.instance)?);
        }
        Ok(())
    }

    /// Joins the members that use the data directory, and challenges those whose locks are not
    /// visible. Fails if locks are known not to be shared, because two members could deliver at
    /// once.
    fn check_locks(&mut self) -> Result<(), FleetError> {
        self.member.take_if(|member| !member.is_listed());
        let member = match self.member.take() {
            Some(member) => member,
            None => Member::join(&self.data, &self.instance)?,
        };
        self.member = Some(member);
        self.answer_challenge()?;
        match &self.member {
            Some(member) => member.challenge_others(&self.data),
            None => Ok(()),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, load_without_environment};

    fn fleet(data: &Path) -> Fleet {
        let config = load_without_environment(&Flags::default()).unwrap();
        Fleet::new(&config.fleet, data, "test")
    }

    #[test]
    fn fleet_without_a_store_creates_no_files_and_has_no_fence() {
        let dir = tempfile::tempdir().unwrap();
        let mut fleet = fleet(dir.path());
        assert!(fleet.fence().is_none());
        drop(fleet.begin().unwrap());
        fleet.answer_challenge().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn server_without_a_store_is_refused_in_the_directory_of_a_fleet() {
        let dir = tempfile::tempdir().unwrap();
        directory::id(dir.path(), "redis://h").unwrap();
        let error = fleet(dir.path()).begin().unwrap_err();
        assert!(matches!(error, FleetError::NoStore { .. }), "{error:?}");
        assert!(error.to_string().contains("redis://h"), "{error}");
        assert!(
            error
                .hint()
                .unwrap()
                .contains("LLMLB_FLEET_STORE='redis://h'")
        );
    }
}
