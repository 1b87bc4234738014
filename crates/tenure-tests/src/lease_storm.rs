//! Several processes that compete for one key in any store, while a test kills and suspends them or
//! breaks the store and the network. The owners note their [`intervals`] and write
//! to a [fenced resource](crate::fenced).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tenure::{Error, Key, Store, Tenure};

use crate::Random;
use crate::fenced::{FencedResource, ResourceClient, ResourceReport};
use crate::intervals::{self, IntervalLog, Verdict};
use crate::naive_lease::NaiveLease;

/// Name of the one key for which all processes of a run compete.
pub const KEY: &str = "contended";

/// Behaviour of the competing processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// This library, used as documented.
    Correct,
    /// Wrong on purpose: the owner does not check whether its key is lost.
    IgnoresLoss,
    /// Wrong on purpose: a lease in Redis that is deleted without a comparison of its owner.
    DeletesUnchecked,
}

impl Behaviour {
    fn name(self) -> &'static str {
        match self {
            Self::Correct => "correct",
            Self::IgnoresLoss => "ignores-loss",
            Self::DeletesUnchecked => "deletes-unchecked",
        }
    }
}

impl FromStr for Behaviour {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Correct, Self::IgnoresLoss, Self::DeletesUnchecked]
            .into_iter()
            .find(|behaviour| behaviour.name() == text)
            .ok_or_else(|| format!("{text} is not a behaviour"))
    }
}

/// Opens a store: a URL of a lease store, or a directory of lock files.
pub fn open_store(location: &str) -> Result<Store, Error> {
    if location.contains("://") {
        Store::connect(location)
    } else {
        Ok(Store::in_dir(location))
    }
}

/// Parameters of the competing processes.
#[derive(Clone, Debug)]
pub struct LeaseStorm {
    /// The `torture` program.
    pub program: PathBuf,
    /// Location of the store for each process: a URL, or a directory of lock files.
    pub stores: Vec<String>,
    /// TTL of the leases.
    pub ttl: Duration,
    /// Average time for which an owner holds the key.
    pub hold: Duration,
    /// Behaviour of the processes.
    pub behaviour: Behaviour,
    /// Time by which the wall clock of every second process is ahead. Leases must not depend on
    /// wall clocks.
    pub clock_offset: Option<Duration>,
}

/// Running processes of a [`LeaseStorm`], killed when dropped.
#[derive(Debug)]
pub struct RunningStorm {
    storm: LeaseStorm,
    dir: tempfile::TempDir,
    resource: FencedResource,
    workers: Vec<Child>,
}

/// Findings after a storm.
#[derive(Clone, Debug)]
pub struct StormFindings {
    /// Verdict on the intervals that the owners noted: overlaps, and tokens out of order.
    pub verdict: Verdict,
    /// Counts of the fenced resource.
    pub resource: ResourceReport,
    /// Unexpected errors that the processes printed to stderr. A correct run has none.
    pub errors: String,
    /// Time of the findings on the boot clock.
    pub at: Duration,
}

impl LeaseStorm {
    /// Starts one process for each store location. Without `checks_tokens` the resource accepts late
    /// writes, which is wrong on purpose.
    pub fn start(self, checks_tokens: bool) -> RunningStorm {
        let dir = tempfile::tempdir().expect("a directory");
        let resource = FencedResource::start(checks_tokens);
        let workers = (0..self.stores.len())
            .map(|index| self.worker(index, dir.path(), resource.address()))
            .collect();
        RunningStorm {
            storm: self,
            dir,
            resource,
            workers,
        }
    }

    fn worker(&self, index: usize, dir: &Path, resource: SocketAddr) -> Child {
        let mut command = Command::new(&self.program);
        if let Some(offset) = self.clock_offset
            && index % 2 == 1
        {
            // The library of `faketime` is loaded directly. The command `faketime` would run the
            // process as its child, which would survive when the test kills the command.
            command.env("LD_PRELOAD", faketime_library());
            command.env("FAKETIME", format!("+{}s", offset.as_secs()));
            // Shift the wall clock only. Leases rely on monotonic clocks, which no administrator
            // can set, so a shift of those would break correct runs.
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let errors = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(dir.join("errors"))
            .expect("the file for errors opens");
        command
            .args(["lease-worker", self.behaviour.name(), &self.stores[index]])
            .arg(dir)
            .arg(self.ttl.as_millis().to_string())
            .arg(self.hold.as_millis().to_string())
            .arg(resource.to_string())
            .stdin(Stdio::null())
            .stderr(errors)
            .spawn()
            .expect("a worker starts")
    }
}

/// Path of the library of `faketime`, which shifts the clocks of a dynamically linked program.
fn faketime_library() -> PathBuf {
    let systems = std::fs::read_dir("/usr/lib").expect("libraries are installed");
    systems
        .flatten()
        .map(|dir| dir.path().join("faketime/libfaketime.so.1"))
        .find(|path| path.exists())
        .expect("faketime is installed: scripts/install-test-tools")
}

impl RunningStorm {
    /// Number of processes.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Kills a process with SIGKILL and starts another one in its place.
    pub fn kill_and_replace(&mut self, index: usize) {
        self.kill(index);
        self.workers[index] = self
            .storm
            .worker(index, self.dir.path(), self.resource.address());
    }

    /// Kills a process with SIGKILL.
    pub fn kill(&mut self, index: usize) {
        let _ = self.workers[index].kill();
        let _ = self.workers[index].wait();
    }

    /// Suspends a process.
    pub fn suspend(&self, index: usize) {
        self.signal(index, Signal::STOP);
    }

    /// Resumes a suspended process.
    pub fn resume(&self, index: usize) {
        self.signal(index, Signal::CONT);
    }

    fn signal(&self, index: usize, signal: Signal) {
        if let Ok(raw) = i32::try_from(self.workers[index].id())
            && let Some(pid) = Pid::from_raw(raw)
        {
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills and replaces random processes until the time is over.
    pub fn kill_randomly(&mut self, length: Duration, every: Duration) -> u64 {
        let mut random = Random::new(u64::from(std::process::id()));
        let until = Instant::now() + length;
        let around = u64::try_from(every.as_millis()).unwrap_or(100).max(2);
        let mut killed = 0;
        while Instant::now() < until {
            thread::sleep(Duration::from_millis(around / 2 + random.below(around)));
            let index = random.below(self.workers.len() as u64);
            self.kill_and_replace(usize::try_from(index).unwrap_or(0));
            killed += 1;
        }
        killed
    }

    /// Findings up to now, while the processes keep running.
    pub fn findings(&self) -> StormFindings {
        StormFindings {
            at: tenure::boot_time(),
            verdict: intervals::judge(self.dir.path()),
            resource: self.resource.report(),
            errors: std::fs::read_to_string(self.dir.path().join("errors")).unwrap_or_default(),
        }
    }

    /// Waits until an acquisition starts after this time. Returns its start, or `None` if none
    /// starts within `limit`.
    pub fn wait_for_acquisition(&self, after: Duration, limit: Duration) -> Option<Duration> {
        let until = Instant::now() + limit;
        loop {
            let found = intervals::judge(self.dir.path()).first_start_after(after);
            if found.is_some() || Instant::now() >= until {
                return found;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends all processes and returns the findings.
    pub fn finish(mut self) -> StormFindings {
        for index in 0..self.workers.len() {
            self.kill(index);
        }
        self.findings()
    }
}

impl Drop for RunningStorm {
    fn drop(&mut self) {
        for index in 0..self.workers.len() {
            self.kill(index);
        }
    }
}

enum Ownership {
    Tenure(Box<Tenure>),
    Naive(NaiveLease),
}

impl Ownership {
    fn token(&self) -> u64 {
        match self {
            Self::Tenure(tenure) => tenure.token(),
            Self::Naive(lease) => lease.token(),
        }
    }

    fn is_lost(&self) -> bool {
        match self {
            Self::Tenure(tenure) => tenure.lost(),
            Self::Naive(lease) => lease.is_lost(),
        }
    }
}

/// Acquires the key, works and releases the key in a loop. Each process of a [`LeaseStorm`] runs this
/// until it is killed.
#[expect(
    clippy::print_stderr,
    reason = "the test collects stderr of its processes"
)]
pub fn worker(
    behaviour: Behaviour,
    location: &str,
    dir: &Path,
    ttl: Duration,
    hold: Duration,
    resource: SocketAddr,
) -> ! {
    let mut log = IntervalLog::create(dir);
    let mut resource = ResourceClient::connect(resource);
    let mut random = Random::new(u64::from(std::process::id()) << 16 | ttl.as_secs());
    let mut store = None;
    loop {
        let owned = match behaviour {
            Behaviour::DeletesUnchecked => NaiveLease::acquire(location, ttl).map(Ownership::Naive),
            _ => acquire(&mut store, location, ttl).map(|tenure| Ownership::Tenure(tenure.into())),
        };
        let owned = match owned {
            Ok(owned) => owned,
            Err(why) => {
                if !why.is_empty() {
                    eprintln!("{why}");
                }
                assert!(dir.exists(), "the test has ended");
                thread::sleep(Duration::from_millis(5 + random.below(20)));
                continue;
            }
        };
        let is_valid = || behaviour == Behaviour::IgnoresLoss || !owned.is_lost();
        let around = u64::try_from(hold.as_micros()).unwrap_or(1000).max(2);
        let until = Instant::now() + Duration::from_micros(around / 2 + random.below(around));
        if let Some(interval) = log.begin(owned.token(), is_valid) {
            // The owner checks for a loss after each pause and only then writes. Most suspensions
            // hit a process in this pause, since it spends most of its time there.
            while Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
                if !log.extend(&interval, is_valid) {
                    break;
                }
                resource.write(owned.token());
            }
            // An owner that has lost the key writes once more on purpose, like a write that was
            // under way at the loss. The resource must reject this write by its token.
            if owned.is_lost() {
                resource.write(owned.token());
            }
        }
        release(owned, &mut random);
        // Pause before the next attempt. Otherwise the former owner would often acquire the key
        // again before a waiting process can.
        thread::sleep(Duration::from_micros(random.below(2000)));
    }
}

fn acquire(store: &mut Option<Store>, location: &str, ttl: Duration) -> Result<Tenure, String> {
    let opened = match store {
        Some(opened) => opened,
        None => store.insert(open_store(location).map_err(|error| error.to_string())?),
    };
    let key = Key::name(KEY).map_err(|error| error.to_string())?;
    let claim = opened.claim(&key).ttl(ttl).keep_file(true);
    claim
        .acquire_within(Duration::from_secs(5), |_| {})
        .map_err(|error| {
            // Refusals and an unreachable store are expected in these runs, so they are not
            // reported as errors.
            if error.is_held() || error.is_unreachable() {
                String::new()
            } else {
                error.to_string()
            }
        })
}

fn release(owned: Ownership, random: &mut Random) {
    match owned {
        Ownership::Tenure(tenure) => match random.below(4) {
            0 => drop(tenure),
            _ => drop(tenure.release()),
        },
        Ownership::Naive(lease) => {
            // Sleep for a whole TTL in one of four rounds. The lease then expires before the
            // release, which deletes the lease of the next owner.
            if random.below(4) == 0 {
                thread::sleep(lease.ttl());
            }
            lease.delete_unchecked();
        }
    }
}
