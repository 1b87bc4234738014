//! CPU time and memory of a process and its children.

use std::fs;

/// CPU time and memory of a process and its descendants during a run.
pub struct Watched {
    pids: Vec<u32>,
    cpu_before: f64,
    rss_before: u64,
    rss_peak: u64,
}

impl Watched {
    /// Watches this process, or none if it is 0.
    pub fn new(root: u32) -> Self {
        Self {
            pids: if root == 0 { Vec::new() } else { tree(root) },
            cpu_before: 0.0,
            rss_before: 0,
            rss_peak: 0,
        }
    }

    /// Starts the measurement: earlier CPU time does not count.
    pub fn begin(&mut self) {
        self.cpu_before = cpu(&self.pids);
        self.rss_before = rss(&self.pids);
    }

    /// Updates the peak memory.
    pub fn sample(&mut self) {
        self.rss_peak = self.rss_peak.max(rss(&self.pids));
    }

    /// Returns the fields of a JSON object: CPU seconds and memory in KiB.
    pub fn json(&self) -> String {
        let (cpu, rss) = (cpu(&self.pids) - self.cpu_before, rss(&self.pids));
        format!(
            "\"cpu\":{cpu},\"rss_before\":{},\"rss_peak\":{},\"rss_after\":{rss}",
            self.rss_before, self.rss_peak
        )
    }
}

/// Returns the process and all its present descendants.
fn tree(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let tasks = fs::read_dir(format!("/proc/{}/task", found[next]));
        for task in tasks.into_iter().flatten().flatten() {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split_whitespace()
                    .filter_map(|pid| pid.parse::<u32>().ok()),
            );
        }
        next += 1;
    }
    found
}

/// Returns the CPU seconds of these processes, with all threads, including threads that have ended.
fn cpu(pids: &[u32]) -> f64 {
    pids.iter().map(|&pid| clock(pid)).sum()
}

fn clock(pid: u32) -> f64 {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both calls write only to the local variables that they get.
    let ok = unsafe {
        libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    assert!(ok, "process {pid} has exited");
    #[expect(
        clippy::cast_precision_loss,
        reason = "the precision of seconds suffices"
    )]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}

/// Returns the resident memory of these processes in KiB.
fn rss(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    pids.iter().filter_map(of).sum()
}
