//! The exporter of `serve`: consolidates staged records into batches and delivers them, periodically
//! and once more on shutdown. Without a receiver it archives the batches, so that staging does not
//! grow without bound and the totals stay complete.
//!
//! The exporter runs on its own thread, because a slow disk or receiver must not delay requests.
//! Unfinished work stays on disk for the next run or the next start.

mod alerts;
mod books;
mod resend;
mod retention;
mod state;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime};

use spool::{
    Cancel, DeliveryOptions, Destination, Http, HttpError, Options, Progress, RunError, Runner,
    Schedule, Sink, SpoolManager, Watch,
};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::config::{Config, env};
use crate::fleet::{Fleet, FleetError};
use crate::{meter, receiver, sys};
pub(crate) use alerts::{Alerts, RunEnd};
use books::BooksCheck;
pub(crate) use resend::{move_back, resend_failed};
pub(crate) use retention::Housekeeping;
pub(crate) use state::{ExportReport, ExportState};

/// Maximum duration of the exporter's last run. `serve` must exit within its drain timeout plus
/// five seconds, or `llmlb stop` reports a timeout.
const LAST_RUN_TIMEOUT: Duration = Duration::from_secs(3);
/// Additional time for a delivery attempt that is in progress when the last run is cancelled, so
/// that a response of the receiver is still noted.
const LAST_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(1);

/// Number of records in an archived batch. It is larger than that of a delivered batch, because no
/// receiver limits it and fewer files cost less.
const ARCHIVE_BATCH_SIZE: usize = 1000;

/// Interval between attempts to start the last run while another process holds the delivery lock.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Exporter {
    state: Arc<ExportState>,
    /// Channel without messages. Dropping it makes the exporter's thread start its last run.
    shutdown: mpsc::Sender<()>,
    cancels: Cancels,
    ended: oneshot::Receiver<()>,
}

/// Cancellation of the export runs at a shutdown.
#[derive(Clone, Debug, Default)]
struct Cancels {
    /// Cancels a periodic run that is in progress at shutdown. The last run, which follows, is not
    /// affected: it must still deliver the newest records.
    run: Cancel,
    /// Cancels the last run if it takes too long, so that a slow receiver does not delay the exit.
    last_run: Cancel,
}

impl Exporter {
    /// Starts the exporter's thread, which begins its first run at once.
    pub(crate) fn start(config: &Config, data: &Path, instance: &str) -> io::Result<Self> {
        let usage = &config.usage;
        let to = http(config).map_err(io::Error::other)?;
        let state = Arc::new(ExportState::new(to.as_ref().map(Sink::name)));
        let (shutdown, until_shutdown) = mpsc::channel();
        let (sender, ended) = oneshot::channel();
        let mut options = Options::default();
        options.pod_name = sys::host_name(env::text).unwrap_or(options.pod_name);
        options.grouping = meter::grouping();
        if to.is_none() {
            // Without a receiver, batches are archived. Make them large, because no receiver limits
            // their size and fewer files cost less.
            options.batch_size = ARCHIVE_BATCH_SIZE;
        }
        let fleet = Fleet::new(&config.fleet, data, instance);
        let mut worker = ExportWorker {
            to,
            data: data.to_owned(),
            options,
            runner: fleet.runner(),
            fleet,
            state: Arc::clone(&state),
            alerts: Alerts::default(),
            housekeeping: Housekeeping::new(usage.archive(), usage.failed()),
            books: BooksCheck::default(),
        };
        let (every, cancels) = (usage.every, Cancels::default());
        let thread_cancels = cancels.clone();
        thread::Builder::new()
            .name("llmlb-usage".to_owned())
            .spawn(move || {
                worker.run_until_shutdown(every, &until_shutdown, &thread_cancels);
                let _ = sender.send(());
            })?;
        Ok(Self {
            state,
            shutdown,
            cancels,
            ended,
        })
    }

    pub(crate) fn state(&self) -> Arc<ExportState> {
        Arc::clone(&self.state)
    }

    /// Ends the exporter with a last run, which delivers the records that were staged last, within
    /// a few seconds. `hurry` (a further signal) ends the wait at once.
    pub(crate) async fn finish(mut self, hurry: impl Future) {
        drop(self.shutdown);
        self.cancels.run.cancel();
        let in_time = async {
            let last_run = tokio::time::timeout(LAST_RUN_TIMEOUT, &mut self.ended).await;
            if last_run.is_err() {
                self.cancels.last_run.cancel();
                tokio::select! {
                    _ = &mut self.ended => {}
                    () = sleep(LAST_ATTEMPT_TIMEOUT) => tracing::info!(
                        "usage: the receiver did not respond in time; the remaining batches are delivered after the next start"
                    ),
                }
            }
        };
        tokio::select! {
            () = in_time => {}
            _ = hurry => {}
        }
        // If the last run has not ended, the exit interrupts it like a crash. The spool is
        // crash-safe, so no record is lost.
        self.cancels.last_run.cancel();
    }
}

fn http(config: &Config) -> Result<Option<Http>, HttpError> {
    let usage = &config.usage;
    let Some(receiver) = &usage.url else {
        return Ok(None);
    };
    let token = config.usage_token.clone();
    let options = receiver::options(usage.format, token, usage.allow_http)?;
    Http::new(receiver.url(), options).map(Some)
}

/// Outcome of an attempt at an export run, which consolidates and delivers the staged records. The
/// last run is attempted again while the outcome is `Busy`.
enum RunAttempt {
    Ran,
    /// Another process holds the delivery lock. Its run may have started before the last record was
    /// staged, so the last run is attempted again.
    Busy,
    /// Another process of the fleet holds the lease. It delivers the records of this server too, at
    /// the latest in its next run.
    Held,
}

struct ExportWorker {
    to: Option<Http>,
    data: PathBuf,
    options: Options,
    runner: Runner,
    fleet: Fleet,
    state: Arc<ExportState>,
    alerts: Alerts,
    housekeeping: Housekeeping,
    books: BooksCheck,
}

impl ExportWorker {
    /// Runs at the interval `every` until shutdown, then once more. Runs never overlap: a time that
    /// falls within a run is skipped.
    fn run_until_shutdown(
        &mut self,
        every: Duration,
        until_shutdown: &mpsc::Receiver<()>,
        cancels: &Cancels,
    ) {
        let mut schedule = Schedule::new(every);
        while let Err(RecvTimeoutError::Timeout) = until_shutdown.recv_timeout(schedule.tick().wait)
        {
            let _ = self.run_once(&cancels.run, &|_| {});
            if !cancels.run.is_cancelled() && self.housekeeping.is_due() {
                let (housekeeping, spool) = (&mut self.housekeeping, self.fleet.spool());
                let sizes = self.fleet.run(|| housekeeping.run(&self.data, &spool));
                if let Some(sizes) = sizes.ok().flatten() {
                    self.state.update(|report| report.sizes = Some(sizes));
                }
            }
            if let Some(checked) = self.books.run_if_due(&self.data, &cancels.run) {
                self.state.update(|report| report.books = Some(checked));
            }
            sys::release_freed_memory();
        }
        let last = &cancels.last_run;
        // Do not wait for the retry of a failed batch during the shutdown. The batch stays pending
        // until the next start.
        let cancel_on_backoff = |progress| {
            if let Progress::Waiting { .. } = progress {
                last.cancel();
            }
        };
        // Retry while another process delivers: its run may have started before the last record of
        // this server was staged.
        while let RunAttempt::Busy = self.run_once(last, &cancel_on_backoff)
            && !last.wait(BUSY_PAUSE)
        {}
        let report = self.state.report();
        if let Some(waiting) = report.waiting.filter(|waiting| *waiting > 0) {
            let why = report
                .error
                .map_or_else(String::new, |why| format!(" ({why})"));
            let batches = alerts::counted(waiting, "batch");
            tracing::info!("usage: {batches} pending until the next start{why}");
        }
    }

    fn run_once(&mut self, cancel: &Cancel, progress: &dyn Fn(Progress)) -> RunAttempt {
        let watch = Watch {
            cancel: cancel.clone(),
            progress,
        };
        let to = match &self.to {
            Some(http) => Destination::To(http),
            None => Destination::Archive,
        };
        let delivery = DeliveryOptions::default();
        let (runner, options) = (&mut self.runner, &self.options);
        let run = self
            .fleet
            .run(|| runner.run(options, &delivery, to, &watch));
        let spool = SpoolManager::new(&self.data);
        let (waiting, failed) = (spool.count().ok(), spool.count_failed().ok());
        let now = SystemTime::now();
        self.state.update(|report| {
            (report.waiting, report.failed) = (waiting, failed);
            let run = match run {
                Ok(run) => run,
                Err(FleetError::Held(holder)) => {
                    tracing::debug!("{holder} delivers the usage records");
                    report.deliverer = Some(holder.to_string());
                    return RunAttempt::Held;
                }
                Err(error) => {
                    report.last_run = Some(now);
                    report.error = Some(self.alerts.refused(&error));
                    return RunAttempt::Ran;
                }
            };
            report.deliverer = None;
            match &run {
                // The process that holds the delivery lock delivers the records of this server as
                // well, so this is no problem to report.
                Err(RunError::Busy { pid, .. }) => {
                    tracing::debug!(?pid, "another process delivers the usage records");
                    return RunAttempt::Busy;
                }
                Err(_) => {}
                Ok(run) => report.add(run, now),
            }
            report.last_run = Some(now);
            let end = RunEnd::from_cancel(cancel);
            report.error = self.alerts.update(&run, &self.data, end);
            RunAttempt::Ran
        })
    }
}
