//! A data directory, those who stage into it and those who deliver from it, and their bad luck.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::books::Policy;
use crate::fault::Mix;
use crate::process::Running;
use crate::producer;
use crate::receiver::{Receiver, TOKEN};
use crate::sample::Sample;
use testkit::{Finished, Sandbox, append, random::Random};

/// How every deliverer of these tests is called. Batches are small so that there are many.
const DELIVER: &str = "deliver --batch-size 10 --timeout 1s --max-wait 2s";

/// Which processes live in a world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) producers: usize,
    pub(crate) deliverers: usize,
    /// Of a thousand records, so many are poisoned.
    pub(crate) poison: u64,
    /// Whether they are killed.
    pub(crate) is_killed: bool,
    /// Whether staging may fail because the disk is full.
    pub(crate) is_refused: bool,
}

impl Default for Crowd {
    fn default() -> Self {
        Self {
            producers: 2,
            deliverers: 1,
            poison: 0,
            is_killed: true,
            is_refused: false,
        }
    }
}

pub(crate) struct World {
    sandbox: Sandbox,
    /// Where the data is, if not in the directory of this world.
    data: PathBuf,
    pub(crate) receiver: Receiver,
    pub(crate) random: Random,
    pub(crate) kills: u64,
    /// How many requests came before the storm was over.
    pub(crate) stormy: u64,
    /// Variables for everyone who is started here.
    pub(crate) env: Vec<(String, String)>,
}

/// How long a storm lasts.
pub(crate) fn storm_time() -> Duration {
    Duration::from_secs(from_env("FAULT_SECONDS").unwrap_or(3))
}

/// A number from the environment.
pub(crate) fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

impl World {
    pub(crate) fn new(policy: Policy, mix: Mix) -> Self {
        let sandbox = testkit::sandbox!();
        let data = sandbox.data_dir();
        Self::around(sandbox, data, Receiver::start(policy, mix))
    }

    /// With the data elsewhere, such as on a disk of its own.
    pub(crate) fn around(sandbox: Sandbox, data: PathBuf, receiver: Receiver) -> Self {
        fs::create_dir_all(data.join("_staging")).unwrap();
        fs::create_dir(sandbox.path("acks")).unwrap();
        Self {
            sandbox,
            data,
            receiver,
            random: Random::of_run(11),
            kills: 0,
            stormy: 0,
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

    /// What all deliverers have said.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.path("log")).unwrap_or_default()).into_owned()
    }

    /// `llmlb usage` with these words.
    pub(crate) fn usage(&self, words: &str) -> Command {
        let mut command = self.sandbox.command("usage --data");
        command
            .arg(&self.data)
            .args(words.split_whitespace())
            .env_remove("LLMLB_DATA_DIR")
            .env("LLMLB_USAGE_TOKEN", TOKEN)
            .env("LLMLB_USAGE_URL", self.receiver.url());
        for (name, value) in &self.env {
            command.env(name, value);
        }
        command
    }

    /// Runs `llmlb usage` with these words to its end.
    pub(crate) fn run(&self, words: &str) -> Finished {
        self.run_with(words, b"")
    }

    pub(crate) fn run_with(&self, words: &str, input: &[u8]) -> Finished {
        let outcome = Finished::run_with(&mut self.usage(words), input);
        let is_civil = matches!(outcome.code, Some(0 | 1)) && !outcome.stderr.contains("panicked");
        assert!(is_civil, "{outcome:#?}");
        assert!(!format!("{outcome:?}").contains(TOKEN), "{outcome:#?}");
        outcome
    }

    /// What a verb says in JSON.
    pub(crate) fn json(&self, words: &str) -> Value {
        let outcome = self.run(&format!("{words} --json"));
        match serde_json::from_str(&outcome.stdout) {
            Ok(value) => value,
            Err(error) => panic!("{error}: {outcome:#?}"),
        }
    }

    pub(crate) fn start_deliverer(&self) -> Running {
        let words = format!("{DELIVER} --every 200ms");
        Running::start(&mut self.usage(&words), &self.path("log"))
    }

    pub(crate) fn start_producer(&self, poison: u64) -> Running {
        let mut command = producer::with_the_library(&self.data, &self.path("acks"), poison);
        for (name, value) in &self.env {
            command.env(name, value);
        }
        Running::start(&mut command, &self.path("producers.log"))
    }

    /// One run of delivery, which waits for nobody.
    pub(crate) fn deliver_now(&self) -> Finished {
        self.run(&format!("{DELIVER} --now"))
    }

    /// Stages these through a pipe. What the program acknowledged is noted.
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

    /// Everything that somebody was told is safe.
    pub(crate) fn acknowledged(&self) -> Vec<(String, bool)> {
        producer::noted(&self.path("acks"))
    }

    /// Lets everybody work, stage in every way, and die, for as long as a storm lasts.
    pub(crate) fn storm(&mut self, crowd: Crowd) {
        let deadline = Instant::now() + storm_time();
        let mut producers: Vec<_> = (0..crowd.producers)
            .map(|_| self.start_producer(crowd.poison))
            .collect();
        let mut deliverers: Vec<_> = (0..crowd.deliverers)
            .map(|_| self.start_deliverer())
            .collect();
        while Instant::now() < deadline {
            thread::sleep(Duration::from_millis(self.random.below(80)));
            match self.random.below(10) {
                0 | 1 if crowd.is_killed && !deliverers.is_empty() => {
                    let victim = self.random.below(deliverers.len() as u64);
                    self.kill(deliverers.swap_remove(victim.try_into().unwrap()));
                    deliverers.push(self.start_deliverer());
                }
                2 if crowd.is_killed && !producers.is_empty() => {
                    let victim = self.random.below(producers.len() as u64);
                    self.kill(producers.swap_remove(victim.try_into().unwrap()));
                    producers.push(self.start_producer(crowd.poison));
                }
                3 | 4 => {
                    let count = self.random.below(20).try_into().unwrap();
                    let outcome = self.stage_fresh(count, crowd.poison);
                    assert!(outcome.code == Some(0) || crowd.is_refused, "{outcome:#?}");
                }
                5 if crowd.is_killed => self.cut_a_stage_short(crowd.poison),
                6 if crowd.is_killed => self.cut_a_consolidation_short(),
                _ => {
                    let count = self.random.below(5).try_into().unwrap();
                    self.drop_files(count, crowd.poison);
                }
            }
        }
        self.stormy = self.receiver.state().tally.requests;
        for producer in producers {
            self.kill(producer);
        }
        for deliverer in deliverers {
            if crowd.is_killed {
                self.kill(deliverer);
            } else {
                deliverer.terminate();
            }
        }
    }

    pub(crate) fn kill(&mut self, process: Running) {
        process.kill();
        self.receiver.killed();
        self.kills += 1;
    }

    /// Some are fed to a program that is killed: nobody knows what it staged. So all are staged
    /// again, which must not count any of them twice.
    fn cut_a_stage_short(&mut self, poison: u64) {
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

    /// Somebody consolidates, halts in the middle, so that others find the directory in use, and is
    /// killed.
    fn cut_a_consolidation_short(&mut self) {
        self.stage_fresh(20, 0);
        let mut command = self.usage("consolidate --batch-size 10");
        let process = Running::start(&mut command, &self.path("log"));
        thread::sleep(Duration::from_micros(self.random.below(25_000)));
        process.halt();
        thread::sleep(Duration::from_millis(self.random.below(150)));
        drop(process);
        self.kills += 1;
    }

    /// The receiver is well again: everything is delivered that can be.
    pub(crate) fn drain(&self) {
        self.receiver.behave();
        let deadline = Instant::now() + 2 * testkit::DEADLINE;
        while self.waiting() > 0 && Instant::now() < deadline {
            let outcome = self.deliver_now();
            if outcome.code == Some(1) {
                // It said when to come again.
                thread::sleep(Duration::from_millis(100));
            }
        }
        self.receiver.wait_until_idle();
    }

    /// How many entries and batches wait, as anyone can see who looks into the directories.
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

/// The names in a directory that are of some kind.
pub(crate) fn names(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let Ok(files) = fs::read_dir(dir) else {
        return Vec::new();
    };
    files
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .filter(|name| is_wanted(name))
        .collect()
}

/// `{uuid}-{line}-{key}.json`
pub(crate) fn is_batch(name: &str) -> bool {
    let stem = name.strip_suffix(".json").unwrap_or_default();
    stem.split('-').count() == 7 && stem.len() == 36 + 1 + 8 + 1 + 16
}
