//! Data directory with the processes that stage into it and deliver from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::billing::Policy;
use crate::fault::Mix;
use crate::process::Running;
use crate::producer;
use crate::receiver::{Receiver, TOKEN};
use crate::sample::Sample;
use testkit::{Finished, Sandbox, append, random::Random};

/// Arguments of every deliverer in these tests. Batches are small so that there are many.
const DELIVER: &str = "deliver --batch-size 10 --timeout 1s --max-wait 2s";

/// Settings of a storm: processes stage and deliver records for some seconds, and are killed at
/// random.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StormConfig {
    pub(crate) producers: usize,
    pub(crate) deliverers: usize,
    /// Number of records per thousand that the receiver always rejects (poisoned).
    pub(crate) poison: u64,
    /// True if processes are killed at random during the storm.
    pub(crate) is_killed: bool,
    /// True if the test fills the disk, so that failed staging is no defect.
    pub(crate) may_be_full: bool,
}

impl Default for StormConfig {
    fn default() -> Self {
        Self {
            producers: 2,
            deliverers: 1,
            poison: 0,
            is_killed: true,
            may_be_full: false,
        }
    }
}

/// Data directory, its receiver, and the processes that use both.
pub(crate) struct World {
    sandbox: Sandbox,
    /// Data directory, which may be outside of the sandbox.
    data: PathBuf,
    pub(crate) receiver: Receiver,
    pub(crate) random: Random,
    pub(crate) kills: u64,
    pub(crate) requests_in_storm: u64,
    pub(crate) env: Vec<(String, String)>,
}

pub(crate) fn storm_time() -> Duration {
    Duration::from_secs(from_env("FAULT_SECONDS").unwrap_or(3))
}

/// Returns the number in an environment variable, such as `FAULT_SECONDS`; `None` if the variable
/// is not set or not a number.
pub(crate) fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

impl World {
    pub(crate) fn new(policy: Policy, mix: Mix) -> Self {
        let sandbox = testkit::sandbox!();
        let data = sandbox.data_dir();
        Self::around(sandbox, data, Receiver::start(policy, mix))
    }

    /// Returns a world with this data directory, such as a disk of its own.
    pub(crate) fn around(sandbox: Sandbox, data: PathBuf, receiver: Receiver) -> Self {
        fs::create_dir_all(data.join("_staging")).unwrap();
        fs::create_dir(sandbox.path("acks")).unwrap();
        Self {
            sandbox,
            data,
            receiver,
            random: Random::of_run(11),
            kills: 0,
            requests_in_storm: 0,
            env: Vec::new(),
        }
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    pub(crate) fn staging(&self) -> PathBuf {
        self.data.join("_staging")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.sandbox.path(name)
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("log")).unwrap_or_default()).into_owned()
    }

    pub(crate) fn usage(&self, arguments: &str) -> Command {
        let mut command = self.sandbox.command("usage --data");
        command
            .arg(&self.data)
            .args(arguments.split_whitespace())
            .env_remove("LLMLB_DATA_DIR")
            .env("LLMLB_USAGE_TOKEN", TOKEN)
            .env("LLMLB_USAGE_URL", self.receiver.url());
        for (name, value) in &self.env {
            command.env(name, value);
        }
        command
    }

    pub(crate) fn run(&self, arguments: &str) -> Finished {
        self.run_with(arguments, b"")
    }

    pub(crate) fn run_with(&self, arguments: &str, input: &[u8]) -> Finished {
        let outcome = Finished::run_with(&mut self.usage(arguments), input);
        let is_regular_exit =
            matches!(outcome.code, Some(0 | 1)) && !outcome.stderr.contains("panicked");
        assert!(is_regular_exit, "{outcome:#?}");
        assert!(!format!("{outcome:?}").contains(TOKEN), "{outcome:#?}");
        outcome
    }

    pub(crate) fn json(&self, arguments: &str) -> Value {
        let outcome = self.run(&format!("{arguments} --json"));
        match serde_json::from_str(&outcome.stdout) {
            Ok(value) => value,
            Err(error) => panic!("{error}: {outcome:#?}"),
        }
    }

    pub(crate) fn start_deliverer(&self) -> Running {
        let arguments = format!("{DELIVER} --every 200ms");
        Running::start(&mut self.usage(&arguments), &self.path("log"))
    }

    pub(crate) fn start_producer(&self, poison: u64) -> Running {
        let mut command = producer::library_producer(&self.data, &self.path("acks"), poison);
        for (name, value) in &self.env {
            command.env(name, value);
        }
        Running::start(&mut command, &self.path("producers.log"))
    }

    /// Runs one delivery without waiting for the time of the next attempt.
    pub(crate) fn deliver_now(&self) -> Finished {
        self.run(&format!("{DELIVER} --now"))
    }

    /// Stages records through a pipe and notes them if the program acknowledged them.
    pub(crate) fn stage(&self, samples: &[Sample]) -> Finished {
        let outcome = self.run_with("stage", &producer::lines(samples));
        if outcome.code == Some(0) {
            self.note(samples);
        }
        outcome
    }

    pub(crate) fn stage_fresh(&self, count: usize, poison: u64) -> Finished {
        let samples: Vec<_> = (0..count).map(|_| producer::fresh(poison)).collect();
        self.stage(&samples)
    }

    pub(crate) fn drop_files(&self, count: usize, poison: u64) {
        for _ in 0..count {
            let sample = producer::fresh(poison);
            if producer::drop_file(&self.staging(), &sample).is_ok() {
                self.note(&[sample]);
            }
        }
    }

    pub(crate) fn note(&self, samples: &[Sample]) {
        producer::note(&mut append(&self.path("acks/here")).unwrap(), samples);
    }

    /// Returns the ids of all records that staging has acknowledged to a producer, each with true
    /// if the receiver must reject the record (poisoned). A missing one is lost, which the tests
    /// detect.
    pub(crate) fn acknowledged(&self) -> Vec<(String, bool)> {
        producer::noted(&self.path("acks"))
    }

    /// Stages in every way, delivers and kills processes for the duration of a storm.
    pub(crate) fn storm(&mut self, config: StormConfig) {
        let deadline = Instant::now() + storm_time();
        let mut producers: Vec<_> = (0..config.producers)
            .map(|_| self.start_producer(config.poison))
            .collect();
        let mut deliverers: Vec<_> = (0..config.deliverers)
            .map(|_| self.start_deliverer())
            .collect();
        while Instant::now() < deadline {
            thread::sleep(Duration::from_millis(self.random.below(80)));
            match self.random.below(10) {
                0 | 1 if config.is_killed && !deliverers.is_empty() => {
                    let victim = self.random.below(deliverers.len() as u64);
                    self.kill(deliverers.swap_remove(victim.try_into().unwrap()));
                    deliverers.push(self.start_deliverer());
                }
                2 if config.is_killed && !producers.is_empty() => {
                    let victim = self.random.below(producers.len() as u64);
                    self.kill(producers.swap_remove(victim.try_into().unwrap()));
                    producers.push(self.start_producer(config.poison));
                }
                3 | 4 => {
                    let count = self.random.below(20).try_into().unwrap();
                    let outcome = self.stage_fresh(count, config.poison);
                    assert!(
                        outcome.code == Some(0) || config.may_be_full,
                        "{outcome:#?}"
                    );
                }
                5 if config.is_killed => self.kill_during_stage(config.poison),
                6 if config.is_killed => self.kill_during_consolidation(),
                _ => {
                    let count = self.random.below(5).try_into().unwrap();
                    self.drop_files(count, config.poison);
                }
            }
        }
        self.requests_in_storm = self.receiver.state().tally.requests;
        for producer in producers {
            self.kill(producer);
        }
        for deliverer in deliverers {
            if config.is_killed {
                self.kill(deliverer);
            } else {
                deliverer.terminate();
            }
        }
    }

    pub(crate) fn kill(&mut self, process: Running) {
        process.kill();
        self.receiver.note_kill();
        self.kills += 1;
    }

    /// Kills `llmlb usage stage` while it stages records, so that the test does not know which records are
    /// staged. In half of the cases all records are staged again, and none may be billed twice.
    fn kill_during_stage(&mut self, poison: u64) {
        let samples: Vec<_> = (0..30).map(|_| producer::fresh(poison)).collect();
        let lines = producer::lines(&samples);
        let fed = self.random.below(lines.len() as u64);
        let pause = Duration::from_micros(self.random.below(20_000));
        let mut command = self.usage("stage");
        producer::feed_and_kill(&mut command, &lines[..usize::try_from(fed).unwrap()], pause);
        self.kills += 1;
        if self.random.below(2) == 0 {
            self.stage(&samples);
        }
    }

    /// Suspends a consolidator with SIGSTOP while it may hold the lock, so that other processes
    /// find the staging directory in use. Then kills it, which leaves its lock stale.
    fn kill_during_consolidation(&mut self) {
        self.stage_fresh(20, 0);
        let mut command = self.usage("consolidate --batch-size 10");
        let process = Running::start(&mut command, &self.path("log"));
        thread::sleep(Duration::from_micros(self.random.below(25_000)));
        process.halt();
        thread::sleep(Duration::from_millis(self.random.below(150)));
        drop(process);
        self.kills += 1;
    }

    /// Ends all faults and delivers everything that can be delivered.
    pub(crate) fn drain(&self) {
        self.receiver.end_faults();
        let deadline = Instant::now() + 2 * testkit::DEADLINE;
        while self.waiting() > 0 && Instant::now() < deadline {
            let outcome = self.deliver_now();
            if outcome.code == Some(1) {
                // Batches are still pending, for example because the receiver requested a pause.
                // Wait, so that deliverers are not started in a tight loop.
                thread::sleep(Duration::from_millis(100));
            }
        }
        self.receiver.wait_until_idle();
    }

    /// Returns the number of files that wait for delivery: entries in the staging directory and
    /// batches in `spool/`.
    pub(crate) fn waiting(&self) -> usize {
        let is_entry = |name: &str| {
            name.len() > 36
                && [".json", ".jsonl", ".jsonl.open"].contains(&&name[36..])
                && !name.starts_with('.')
        };
        let is_batch = |name: &str| is_batch(name);
        names(&self.staging(), is_entry).len() + names(&self.data.join("spool"), is_batch).len()
    }
}

pub(crate) fn names(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let Ok(files) = fs::read_dir(dir) else {
        return Vec::new();
    };
    files
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .filter(|name| is_wanted(name))
        .collect()
}

/// True for a name of a batch: `{uuid}-{line}-{key}.json`.
pub(crate) fn is_batch(name: &str) -> bool {
    let stem = name.strip_suffix(".json").unwrap_or_default();
    stem.split('-').count() == 7 && stem.len() == 36 + 1 + 8 + 1 + 16
}
