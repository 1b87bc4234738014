//! One run: what is staged is folded into batches, and what waits is delivered.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::consolidate::{Consolidated, ConsolidatorState, Options, consolidate_on};
use crate::data_dir::DataDir;
use crate::delivery::{
    Clock, Delivered, DeliveryLock, DeliveryOptions, Progress, RealClock, RunError, Sink, Watch,
    archive, deliver,
};
use crate::destination;
use crate::disk::{Disk, RealDisk};
use crate::manager::SpoolManager;
use crate::reserve::{self, Reserve};
use crate::staging_lock::LockError;
use crate::time::new_id;

/// Where batches go.
#[derive(Clone, Copy)]
pub enum Destination<'a> {
    /// To something that takes them.
    To(&'a dyn Sink),
    /// Nowhere: they are kept in `archive/`.
    Archive,
}

impl Destination<'_> {
    /// What to call it; none if batches are archived.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::To(sink) => Some(sink.name()),
            Self::Archive => None,
        }
    }
}

/// What a run did.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Run {
    /// What was folded into batches.
    pub consolidated: Consolidated,
    /// What was delivered.
    pub delivered: Delivered,
    /// Staged entries that cannot be read now, or are of a newer version, and why; not more than 100.
    /// They are left where they are and tried again in every run.
    pub unreadable: Vec<crate::Error>,
    /// How many records were archived.
    pub archived: u64,
    /// What kept it from doing all its work.
    pub trouble: Option<Arc<RunError>>,
    /// Why there is no reserve for a full disk: nothing can be staged until there is room for one.
    pub no_reserve: Option<crate::Error>,
}

/// Runs for one data directory, again and again. What the books say is kept in between, and read
/// again only if another process has written to them.
///
/// ```
/// use spool::{Destination, Runner, Watch};
///
/// let data = tempfile::tempdir()?;
/// let mut runner = Runner::new(data.path());
/// for _ in 0..2 {
///     let (options, delivery) = (Default::default(), Default::default());
///     let done = runner.run(&options, &delivery, Destination::Archive, &Watch::silent())?;
///     assert_eq!(done.archived, 0);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Runner {
    disk: Arc<dyn Disk>,
    data: PathBuf,
    /// What was consolidated, and what cannot be.
    kept: ConsolidatorState,
    /// With what became of the batches.
    store: SpoolManager,
    /// Length of the reserve for a full disk.
    pub(crate) reserve: usize,
}

/// Folds what is staged into batches and delivers what waits, until there is nothing left that can
/// be done now. Only one process at a time does this for a data directory; the others are told.
///
/// ```
/// use spool::{Answer, Batch, Destination, Durability, Record, Sink, Staging, Watch, run};
///
/// struct Printer;
/// impl Sink for Printer {
///     fn name(&self) -> &str { "printer" }
///     fn send(&self, batch: &Batch) -> Answer {
///         println!("{}", String::from_utf8_lossy(&batch.body()));
///         Answer::accepted("printed")
///     }
/// }
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// staging.stage(&Record::parse(r#"{"tokens":42}"#)?, Durability::Power)?;
/// staging.close()?;
///
/// let (options, delivery) = (Default::default(), Default::default());
/// let done = run(data.path(), &options, &delivery, Destination::To(&Printer), &Watch::silent())?;
/// assert_eq!(done.delivered.records, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run(
    data: &Path,
    options: &Options,
    delivery: &DeliveryOptions,
    destination: Destination<'_>,
    watch: &Watch<'_>,
) -> Result<Run, RunError> {
    Runner::new(data).run(options, delivery, destination, watch)
}

impl Runner {
    /// Nothing is read or made before the first run.
    pub fn new(data: impl AsRef<Path>) -> Self {
        Self::on(Arc::new(RealDisk), data.as_ref())
    }

    pub(crate) fn on(disk: Arc<dyn Disk>, data: &Path) -> Self {
        Self {
            data: data.to_owned(),
            kept: ConsolidatorState::default(),
            store: SpoolManager::on(Arc::clone(&disk), data),
            disk,
            reserve: reserve::BYTES,
        }
    }

    /// As [`run`] does.
    pub fn run(
        &mut self,
        options: &Options,
        delivery: &DeliveryOptions,
        destination: Destination<'_>,
        watch: &Watch<'_>,
    ) -> Result<Run, RunError> {
        self.run_by(&RealClock, options, delivery, destination, watch)
    }

    /// The same, by this clock.
    pub(crate) fn run_by(
        &mut self,
        clock: &dyn Clock,
        options: &Options,
        delivery: &DeliveryOptions,
        destination: Destination<'_>,
        watch: &Watch<'_>,
    ) -> Result<Run, RunError> {
        let done = self.try_run(clock, options, delivery, destination, watch);
        if done.as_ref().map_or(true, |done| done.trouble.is_some()) {
            // What was written is not known for sure: the books are read again.
            self.kept.forget();
            self.store = SpoolManager::on(Arc::clone(&self.disk), &self.data);
        }
        self.store.rest();
        self.kept.journal.take_if(|journal| journal.rest().is_err());
        done
    }

    fn try_run(
        &mut self,
        clock: &dyn Clock,
        options: &Options,
        delivery: &DeliveryOptions,
        destination: Destination<'_>,
        watch: &Watch<'_>,
    ) -> Result<Run, RunError> {
        let Self {
            disk,
            data,
            kept,
            store,
            reserve: reserve_bytes,
        } = self;
        let (disk, data) = (&*disk, data.as_path());
        let _lock = DeliveryLock::acquire_after_readers(data, &watch.cancel)?;
        destination::claim(&**disk, data, destination.name())?;
        let reserve = Reserve::new(&DataDir::new(data).staging);
        // It is tried again, and reported, at the end.
        let _ = reserve.create(&**disk, *reserve_bytes);
        reserve::remove_old(&**disk, &DataDir::new(data));
        store.refresh();
        let (mut all, mut goes_on) = (Run::default(), true);
        let id = new_id();
        // What is staged from now on is for the next run: producers must not keep this one going.
        let staged = kept
            .list(&DataDir::on(Arc::clone(disk), data))
            .map_err(RunError::Disk)?;
        loop {
            match store.flush_reserve() {
                // There is no room yet.
                Err(error) if error.is_full() => {}
                flushed => flushed?,
            }
            let (folded, full) = match consolidate_on(disk, data, options, kept) {
                Ok(folded) => (folded, None),
                // Somebody else folds: there may still be something to deliver.
                Err(LockError::InUse { pid, .. }) => {
                    tracing::info!(pid, "another process consolidates");
                    (Consolidated::default(), None)
                }
                // What is delivered makes room.
                Err(error) if error.is_full() => (Consolidated::default(), Some(error)),
                // What waits is delivered all the same.
                Err(error) => {
                    all.trouble = Some(Arc::new(error.into()));
                    (Consolidated::default(), None)
                }
            };
            let records = folded.records as u64;
            if records > 0 {
                (watch.progress)(Progress::Consolidated { records });
            }
            all.add_consolidated(folded);
            let before = all.left_the_spool();
            if goes_on {
                let mut step = |all: &mut Run| match destination {
                    Destination::To(sink) => {
                        let done = deliver(store, sink, delivery, clock, watch, id)?;
                        goes_on = !done.is_stopped;
                        all.add_delivered(done);
                        Ok(())
                    }
                    Destination::Archive => {
                        let (records, done) = archive(store, watch)?;
                        all.archived += records;
                        all.add_delivered(done);
                        Ok::<_, crate::Error>(())
                    }
                };
                if let Err(error) = step(&mut all) {
                    all.trouble = Some(Arc::new(error.into()));
                    break;
                }
            }
            let has_delivered = all.left_the_spool() > before;
            let is_more = folded.entries > 0 && all.consolidated.entries < staged;
            let goes_round = goes_on && (is_more || full.is_some() && has_delivered);
            if watch.cancel.is_cancelled() || !goes_round {
                if let Some(error) = full {
                    all.trouble.get_or_insert(Arc::new(error.into()));
                }
                break;
            }
        }
        all.unreadable = kept.unreadable.errors();
        if let Some(error) = &kept.unreadable_totals {
            let error = RunError::Disk(error.clone());
            all.trouble.get_or_insert(Arc::new(error));
        }
        all.no_reserve = reserve.create(&**disk, *reserve_bytes).err();
        Ok(all)
    }
}

impl Run {
    fn add_consolidated(&mut self, more: Consolidated) {
        self.consolidated.entries += more.entries;
        self.consolidated.records += more.records;
        self.consolidated.batches += more.batches;
        self.consolidated.repeated += more.repeated;
        self.consolidated.aside += more.aside;
        self.consolidated.unreadable = more.unreadable;
    }

    fn add_delivered(&mut self, more: Delivered) {
        let all = &mut self.delivered;
        all.batches += more.batches;
        all.records += more.records;
        all.split += more.split;
        all.failed += more.failed;
        all.ambiguous += more.ambiguous;
        all.damaged += more.damaged;
        all.waiting = more.waiting;
        all.paused = more.paused;
        all.is_stopped = more.is_stopped;
        all.last_error = more.last_error.or(all.last_error.take());
    }

    fn left_the_spool(&self) -> u64 {
        self.delivered.records + self.delivered.failed + self.archived
    }
}

impl std::fmt::Debug for Destination<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::To(sink) => write!(f, "To({})", sink.name()),
            Self::Archive => f.write_str("Archive"),
        }
    }
}
