//! One run: consolidates the staged entries and delivers or archives the pending batches.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use crate::consolidate::{Consolidated, ConsolidatorState, Options, consolidate_on};
use crate::data_dir::DataDir;
use crate::delivery::{
    Clock, Delivered, DeliveryLock, DeliveryOptions, Progress, RealClock, RunError, Sink, Watch,
    archive, deliver,
};
use crate::destination;
use crate::disk::{Disk, RealDisk};
use crate::fence::{Fence, FencedDisk};
use crate::manager::SpoolManager;
use crate::reserve::{self, Reserve};
use crate::staging_lock::LockError;
use crate::time::new_id;

/// Destination of batches.
#[derive(Clone, Copy)]
pub enum Destination<'a> {
    /// Batches are sent to this sink.
    To(&'a dyn Sink),
    /// Batches are moved to `archive/`.
    Archive,
}

impl Destination<'_> {
    /// Name of the [`Sink`], the receiver to which batches are sent; `None` if batches are
    /// archived.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::To(sink) => Some(sink.name()),
            Self::Archive => None,
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Run {
    /// Numbers of entries, records and batches that the run consolidated.
    pub consolidated: Consolidated,
    /// Numbers of batches and records that the run delivered, split or moved to `failed/`.
    pub delivered: Delivered,
    /// Errors of staged entries that cannot be read or have a newer version, at most 100. The
    /// entries stay in place, and every run tries them again.
    pub unreadable: Vec<crate::Error>,
    /// Number of records that were archived.
    pub archived: u64,
    /// First error that kept the run from consolidating or delivering everything.
    pub trouble: Option<Arc<RunError>>,
    /// Error of creating the reserve for a full disk. Staging fails until the reserve exists.
    pub no_reserve: Option<crate::Error>,
}

/// Repeated runs for one data directory. The content of the journals stays in memory between runs,
/// and is read again only if another process has written to the journals.
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
    consolidator: ConsolidatorState,
    store: SpoolManager,
    /// Length of the reserve for a full disk.
    pub(crate) reserve: usize,
}

/// Arguments of one run, which its steps share.
struct RunInputs<'a> {
    clock: &'a dyn Clock,
    options: &'a Options,
    delivery: &'a DeliveryOptions,
    destination: Destination<'a>,
    watch: &'a Watch<'a>,
    /// Id of the run. The delivery state of a batch names the last run in which the batch failed,
    /// so that several failed attempts in one run count as one.
    id: Uuid,
}

/// Result of consolidating one snapshot: the number of its entries, and the error if the disk was
/// full.
struct ConsolidationStep {
    entries: usize,
    disk_full: Option<LockError>,
}

/// Consolidates the staged entries and delivers the pending batches, until nothing more can be done
/// now. One process at a time does this for a data directory; others get [`RunError::Busy`].
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
    /// Creates a runner for a data directory. Files are read and created by the first run.
    pub fn new(data: impl AsRef<Path>) -> Self {
        Self::on(Arc::new(RealDisk), data.as_ref())
    }

    pub(crate) fn on(disk: Arc<dyn Disk>, data: &Path) -> Self {
        Self {
            data: data.to_owned(),
            consolidator: ConsolidatorState::default(),
            store: SpoolManager::on(Arc::clone(&disk), data),
            disk,
            reserve: reserve::BYTES,
        }
    }

    /// Returns a runner whose runs end when the fence is lost. They then fail with
    /// [`RunError::Fenced`], and the next run continues their work.
    #[must_use]
    pub fn fenced(self, fence: Fence) -> Self {
        Self::on(Arc::new(FencedDisk::new(self.disk, fence)), &self.data)
    }

    /// Runs once, as [`run`] does.
    pub fn run(
        &mut self,
        options: &Options,
        delivery: &DeliveryOptions,
        destination: Destination<'_>,
        watch: &Watch<'_>,
    ) -> Result<Run, RunError> {
        self.run_by(&RealClock, options, delivery, destination, watch)
    }

    /// Runs once, as [`Self::run`] does, with this clock.
    pub(crate) fn run_by(
        &mut self,
        clock: &dyn Clock,
        options: &Options,
        delivery: &DeliveryOptions,
        destination: Destination<'_>,
        watch: &Watch<'_>,
    ) -> Result<Run, RunError> {
        let done = self.try_run(&RunInputs {
            clock,
            options,
            delivery,
            destination,
            watch,
            id: new_id(),
        });
        // A run whose fence was lost is an error even if it has delivered batches: the process that
        // has the right now continues.
        let done = done.and_then(|run| {
            if run.is_fenced() {
                Err(RunError::Fenced)
            } else {
                Ok(run)
            }
        });
        if done.as_ref().map_or(true, |run| run.trouble.is_some()) {
            // After an error the journals on the disk may differ from the state in memory. Drop
            // this state, so that the next run reads the journals again.
            self.consolidator.forget();
            self.store = SpoolManager::on(Arc::clone(&self.disk), &self.data);
        }
        self.store.stop_writing();
        let journal = &mut self.consolidator.journal;
        journal.take_if(|journal| journal.stop_writing().is_err());
        done
    }

    fn try_run(&mut self, inputs: &RunInputs<'_>) -> Result<Run, RunError> {
        let _lock = DeliveryLock::acquire_after_readers(&self.data, &inputs.watch.cancel)?;
        self.store.check_fence()?;
        destination::claim(&*self.disk, &self.data, inputs.destination.name())?;
        // Ignore an error of creating the reserve (space preallocated for a full disk), because the
        // disk may be full now. The reserve is created again after delivery has freed space, and
        // only the error of that attempt is reported.
        let _ = self.create_reserve();
        reserve::remove_old(&*self.disk, &DataDir::new(&self.data));
        self.store.refresh();
        // Entries that are staged from now on are left for the next run. Otherwise fast producers
        // could prolong this run forever.
        let data = DataDir::on(Arc::clone(&self.disk), &self.data);
        let staged = self.consolidator.list(&data).map_err(RunError::Disk)?;
        let mut run = Run::default();
        while self.run_round(inputs, staged, &mut run)?.is_continue() {}
        run.unreadable = self.consolidator.unreadable.errors();
        if let Some(error) = &self.consolidator.unreadable_totals {
            run.add_trouble(error.clone().into());
        }
        run.no_reserve = self.create_reserve().err();
        Ok(run)
    }

    fn create_reserve(&self) -> Result<(), crate::Error> {
        let reserve = Reserve::new(&DataDir::new(&self.data).staging);
        reserve.create(&*self.disk, self.reserve)
    }

    /// Consolidates one snapshot and delivers the pending batches. `Break` ends the run.
    fn run_round(
        &mut self,
        inputs: &RunInputs<'_>,
        staged: usize,
        run: &mut Run,
    ) -> Result<ControlFlow<()>, RunError> {
        self.flush_reserve()?;
        let consolidation = self.consolidate_snapshot(inputs, run);
        let left_before = run.records_that_left();
        let delivery = match self.deliver_pending(inputs, run) {
            Ok(delivery) => delivery,
            Err(error) => {
                run.trouble = Some(Arc::new(error.into()));
                return Ok(ControlFlow::Break(()));
            }
        };
        let has_more_entries = consolidation.entries > 0 && run.consolidated.entries < staged;
        let has_freed_space =
            consolidation.disk_full.is_some() && run.records_that_left() > left_before;
        if delivery.is_continue()
            && !inputs.watch.cancel.is_cancelled()
            && (has_more_entries || has_freed_space)
        {
            return Ok(ControlFlow::Continue(()));
        }
        if let Some(error) = consolidation.disk_full {
            run.add_trouble(error.into());
        }
        Ok(ControlFlow::Break(()))
    }

    /// Writes the content of the reserve to the disk. While the disk is full, the content stays in
    /// the reserve, and that is no error.
    fn flush_reserve(&self) -> Result<(), crate::Error> {
        match self.store.flush_reserve() {
            Err(error) if error.is_full() => Ok(()),
            flushed => flushed,
        }
    }

    /// Consolidates one snapshot. An error does not end the run: pending batches can still be
    /// delivered, and their delivery frees space.
    fn consolidate_snapshot(&mut self, inputs: &RunInputs<'_>, run: &mut Run) -> ConsolidationStep {
        let consolidator = &mut self.consolidator;
        let mut disk_full = None;
        let consolidated =
            match consolidate_on(&self.disk, &self.data, inputs.options, consolidator) {
                Ok(consolidated) => consolidated,
                Err(LockError::InUse { pid, .. }) => {
                    tracing::info!(pid, "another process is consolidating");
                    Consolidated::default()
                }
                Err(error) if error.is_full() => {
                    disk_full = Some(error);
                    Consolidated::default()
                }
                Err(error) => {
                    run.trouble = Some(Arc::new(error.into()));
                    Consolidated::default()
                }
            };
        let records = consolidated.records as u64;
        if records > 0 {
            (inputs.watch.progress)(Progress::Consolidated { records });
        }
        run.add_consolidated(consolidated);
        ConsolidationStep {
            entries: consolidated.entries,
            disk_full,
        }
    }

    /// Delivers or archives the pending batches. Returns `Break` if the destination accepts no
    /// batches now.
    fn deliver_pending(
        &self,
        inputs: &RunInputs<'_>,
        run: &mut Run,
    ) -> Result<ControlFlow<()>, crate::Error> {
        let RunInputs { clock, watch, .. } = inputs;
        let delivered = match inputs.destination {
            Destination::To(sink) => {
                deliver(&self.store, sink, inputs.delivery, *clock, watch, inputs.id)?
            }
            Destination::Archive => {
                let (records, delivered) = archive(&self.store, watch)?;
                run.archived += records;
                delivered
            }
        };
        let is_stopped = delivered.is_stopped;
        run.add_delivered(delivered);
        Ok(if is_stopped {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        })
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

    /// Stores the error of a step of the run, unless an earlier error is stored already.
    fn add_trouble(&mut self, error: RunError) {
        self.trouble.get_or_insert_with(|| Arc::new(error));
    }

    /// True if the fence was lost at any step.
    fn is_fenced(&self) -> bool {
        let trouble = self.trouble.as_deref();
        trouble.is_some_and(|error| matches!(error, RunError::Fenced))
            || (self.no_reserve.as_ref()).is_some_and(crate::Error::is_fenced)
    }

    /// Number of records that left the spool: delivered, failed or archived.
    fn records_that_left(&self) -> u64 {
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
