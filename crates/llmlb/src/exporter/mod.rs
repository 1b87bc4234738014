//! The exporter: within `serve`, it folds what is staged into batches and sends them, again and
//! again, and once more at the end. Without a receiver the batches are archived, so that staging
//! does not grow without end and the totals are kept.
//!
//! It has a thread of its own, since the disk and the receiver may take their time. Whatever it does
//! not get done waits on the disk for the next run, or the next start.

mod alerts;
mod kept;
mod state;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime};

use spool::{
    BatchStore, Cancel, DeliveryOptions, Destination, Http, HttpError, Options, Progress, RunError,
    Runner, Schedule, Sink, SpoolManager, Watch,
};
use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::config::{Usage, env};
use crate::{receiver, sys};
pub(crate) use alerts::Alerts;
pub(crate) use kept::Housekeeping;
pub(crate) use state::State;

/// How long the last run may go on: `serve` must end within its drain timeout and five seconds.
const LAST_RUN_WITHIN: Duration = Duration::from_secs(3);
/// How long an attempt that is being made is then still waited for.
const LAST_ATTEMPT_WITHIN: Duration = Duration::from_secs(1);

/// How many records an archived batch has.
const ARCHIVED_TOGETHER: usize = 1000;

/// How soon the last run is tried again while another process is at it.
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// The exporter, as seen from outside.
#[derive(Debug)]
pub(crate) struct Exporter {
    state: Arc<State>,
    /// Dropped to ask for the last run.
    orders: mpsc::Sender<()>,
    cancels: Cancels,
    ended: oneshot::Receiver<()>,
}

/// How runs are ended early.
#[derive(Clone, Debug, Default)]
struct Cancels {
    /// Any but the last.
    run: Cancel,
    last_run: Cancel,
}

impl Exporter {
    /// Starts it; the first run is at once.
    pub(crate) fn start(usage: &Usage, data: &Path) -> io::Result<Self> {
        let to = http(usage).map_err(io::Error::other)?;
        let state = Arc::new(State::new(to.as_ref().map(Sink::name)));
        let (orders, told) = mpsc::channel();
        let (sender, ended) = oneshot::channel();
        let mut options = Options::default();
        options.pod_name = sys::host_name(env::text).unwrap_or(options.pod_name);
        if to.is_none() {
            // No receiver must take it at once, and fewer files cost less.
            options.batch_size = ARCHIVED_TOGETHER;
        }
        let mut work = Work {
            to,
            data: data.to_owned(),
            options,
            runner: Runner::new(data),
            state: Arc::clone(&state),
            alerts: Alerts::default(),
            housekeeping: Housekeeping::new(usage.archive, usage.failed),
        };
        let (every, cancels) = (usage.every, Cancels::default());
        let asked = cancels.clone();
        thread::Builder::new()
            .name("llmlb-usage".to_owned())
            .spawn(move || {
                work.again_and_again(every, &told, &asked);
                let _ = sender.send(());
            })?;
        Ok(Self {
            state,
            orders,
            cancels,
            ended,
        })
    }

    /// What it has done so far.
    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state)
    }

    /// One more run, for what was staged last; it takes at most a few seconds. `hurry` ends it at
    /// once.
    pub(crate) async fn finish(mut self, hurry: impl Future) {
        drop(self.orders);
        self.cancels.run.cancel();
        let in_time = async {
            let last_run = tokio::time::timeout(LAST_RUN_WITHIN, &mut self.ended).await;
            if last_run.is_err() {
                self.cancels.last_run.cancel();
                tokio::select! {
                    _ = &mut self.ended => {}
                    () = sleep(LAST_ATTEMPT_WITHIN) => tracing::info!(
                        "usage: the receiver takes too long; what is left waits for the next start"
                    ),
                }
            }
        };
        tokio::select! {
            () = in_time => {}
            _ = hurry => {}
        }
        // Whoever is not done by now is interrupted as by a crash, which costs nothing.
        self.cancels.last_run.cancel();
    }
}

fn http(usage: &Usage) -> Result<Option<Http>, HttpError> {
    let Some(receiver) = &usage.url else {
        return Ok(None);
    };
    let options = receiver::options(usage.format, usage.token.clone(), usage.allow_http)?;
    Http::new(receiver.url(), options).map(Some)
}

/// Who did the work of a run.
enum Turn {
    Ours,
    /// Another process is at it.
    Busy,
}

/// What the thread works with.
struct Work {
    to: Option<Http>,
    data: PathBuf,
    options: Options,
    runner: Runner,
    state: Arc<State>,
    alerts: Alerts,
    housekeeping: Housekeeping,
}

impl Work {
    /// Runs never overlap: a time that comes while one is going on is skipped.
    fn again_and_again(&mut self, every: Duration, told: &mpsc::Receiver<()>, cancels: &Cancels) {
        let mut schedule = Schedule::new(every);
        while let Err(RecvTimeoutError::Timeout) = told.recv_timeout(schedule.tick().wait) {
            let _ = self.once(&cancels.run, &|_| {});
            if !cancels.run.is_cancelled()
                && let Some(sizes) = self.housekeeping.run(&self.data)
            {
                self.state.note(|report| report.sizes = Some(sizes));
            }
            sys::release_freed_memory();
        }
        let last = &cancels.last_run;
        // What would have to wait, waits for the next start.
        let impatient = |seen| {
            if let Progress::Waiting { .. } = seen {
                last.cancel();
            }
        };
        // Somebody else who is at it may have begun before the last record was staged.
        while let Turn::Busy = self.once(last, &impatient)
            && !last.wait(BUSY_PAUSE)
        {}
        let report = self.state.report();
        if let Some(waiting) = report.waiting.filter(|waiting| *waiting > 0) {
            let why = report
                .error
                .map_or_else(String::new, |why| format!(" ({why})"));
            tracing::info!("usage: batches that wait for the next start: {waiting}{why}");
        }
    }

    fn once(&mut self, cancel: &Cancel, progress: &dyn Fn(Progress)) -> Turn {
        let watch = Watch {
            cancel: cancel.clone(),
            progress,
        };
        let to = match &self.to {
            Some(http) => Destination::To(http),
            None => Destination::Archive,
        };
        let delivery = DeliveryOptions::default();
        let run = self.runner.run(&self.options, &delivery, to, &watch);
        let spool = SpoolManager::of(&self.data);
        let (waiting, failed) = (spool.count().ok(), spool.count_failed().ok());
        let now = SystemTime::now();
        self.state.note(|report| {
            (report.waiting, report.failed) = (waiting, failed);
            match &run {
                // Whoever is at it does this work too.
                Err(RunError::Busy { pid, .. }) => {
                    tracing::debug!(?pid, "another process handles the usage records");
                    return Turn::Busy;
                }
                Err(_) => {}
                Ok(run) => report.add(run, now),
            }
            report.last_run = Some(now);
            report.error = self.alerts.update(&run, &self.data, cancel.is_cancelled());
            Turn::Ours
        })
    }
}
