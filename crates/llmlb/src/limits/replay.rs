//! The tokens that keys have spent, from usage records: read at the start and every ten seconds.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::KeyStates;
use super::period::{PeriodId, day_of_name};
use crate::config::Period;
use crate::episode::{Episode, Event};
use crate::meter;

/// Minimum pause between two readings of the usage records of other servers.
const EVERY: Duration = Duration::from_secs(10);
/// Factor by which the pause after a reading is at least longer than the reading itself, so that
/// reading takes at most 1 % of the time of the thread.
const MAX_SHARE: u32 = 100;

/// Thread that reads the usage records of other servers, so that budgets include what those servers
/// have served.
#[derive(Debug)]
pub(super) struct Replay {
    stop: Mutex<Option<mpsc::Sender<()>>>,
}

impl Replay {
    /// Reads the tokens that all keys have spent, now and then every ten seconds on a thread.
    /// `instance` is the name of this server in its records.
    ///
    /// An error of the first reading does not keep the server from starting: it is logged, and the
    /// next reading counts the missing records.
    pub(super) fn start(states: &Arc<KeyStates>, data: &Path, instance: &str) -> io::Result<Self> {
        let mut reader = Reader {
            states: Arc::clone(states),
            data: data.to_owned(),
            instance: instance.to_owned(),
            failures: Episode::default(),
        };
        reader.read();
        let (stop, stopped) = mpsc::channel();
        thread::Builder::new()
            .name("llmlb-spend".to_owned())
            .spawn(move || reader.run(&stopped))?;
        Ok(Self {
            stop: Mutex::new(Some(stop)),
        })
    }

    /// Ends the thread after the current reading. The exit of the server does not wait for the
    /// thread, because it only reads.
    pub(super) fn finish(&self) {
        let stop = self.stop.lock();
        drop(stop.unwrap_or_else(PoisonError::into_inner).take());
    }
}

struct Reader {
    states: Arc<KeyStates>,
    data: PathBuf,
    instance: String,
    failures: Episode,
}

impl Reader {
    fn run(&mut self, stopped: &mpsc::Receiver<()>) {
        let mut pause = EVERY;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
            let began = Instant::now();
            self.read();
            pause = EVERY.max(began.elapsed() * MAX_SHARE);
        }
    }

    /// Reads the tokens that all keys have spent in the current month.
    fn read(&mut self) {
        if !self.states.are_needed() {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now_ms = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or_default());
        let month = PeriodId::at(Period::Month, now_ms);
        let from = SystemTime::UNIX_EPOCH + Duration::from_millis(month.start_ms());
        let tally = spool::tally(&self.data, &meter::grouping(), Some(from), None);
        let problem = match &tally {
            Ok(tally) => tally.problems.first().map(ToString::to_string),
            Err(error) => Some(error.to_string()),
        };
        self.log(problem);
        if let Ok(tally) = tally {
            self.merge(&tally, now_ms);
        }
    }

    fn merge(&self, tally: &spool::Tally, now_ms: u64) {
        let periods = [Period::Day, Period::Month].map(|per| PeriodId::at(per, now_ms));
        // Sums of tokens by key, period and server.
        let mut sums = HashMap::<(&str, PeriodId, &str), u64>::new();
        for row in &tally.exact {
            let [Some(key), server] = row.values.as_slice() else {
                continue;
            };
            let Some(day) = day_of_name(&row.day).map(PeriodId::Day) else {
                continue;
            };
            let month = PeriodId::at(Period::Month, day.start_ms());
            // Skip periods whose spend is not kept. A day earlier in the month counts in the sum of
            // its month only.
            for period in [day, month].into_iter().filter(|of| periods.contains(of)) {
                let server = server.as_deref().unwrap_or_default();
                let sum = sums.entry((key, period, server)).or_default();
                *sum = sum.saturating_add(row.total);
            }
        }
        for ((key, period, server), tokens) in sums {
            let state = self.states.get(key);
            let spend = &mut state.lock().spend;
            if server == self.instance {
                spend.merge_own(period, tokens);
            } else {
                spend.merge_other(period, server, tokens);
            }
        }
    }

    fn log(&self, problem: Option<String>) {
        let Some(problem) = problem else {
            if let Some(Event::Ended { .. }) = self.failures.end(Instant::now()) {
                tracing::info!("budgets: usage records can be read again");
            }
            return;
        };
        let event = self.failures.occurred(Instant::now());
        if let Some(Event::Began | Event::Continues { .. }) = event {
            tracing::warn!(
                "budgets: {problem}; tokens in usage records that cannot be read do not count until \
                 the records can be read"
            );
        }
    }
}
