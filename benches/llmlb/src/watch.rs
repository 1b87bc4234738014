//! What a process and its children use.

use std::fs;

/// A process with its descendants, over the time of a run.
pub struct Watched {
    pids: Vec<u32>,
    cpu_before: f64,
    rss_before: u64,
    rss_peak: u64,
}

impl Watched {
    /// Watches this process; nobody if it is 0.
    pub fn new(root: u32) -> Self {
        Self {
            pids: if root == 0 { Vec::new() } else { tree(root) },
            cpu_before: 0.0,
            rss_before: 0,
            rss_peak: 0,
        }
    }

    /// What was used up to now does not count.
    pub fn begin(&mut self) {
        self.cpu_before = cpu(&self.pids);
        self.rss_before = rss(&self.pids);
    }

    /// Looks at the memory.
    pub fn sample(&mut self) {
        self.rss_peak = self.rss_peak.max(rss(&self.pids));
    }

    /// The fields of a JSON object: seconds and KiB, up to now.
    pub fn json(&self) -> String {
        let (cpu, rss) = (cpu(&self.pids) - self.cpu_before, rss(&self.pids));
        format!(
            "\"cpu\":{cpu},\"rss_before\":{},\"rss_peak\":{},\"rss_after\":{rss}",
            self.rss_before, self.rss_peak
        )
    }
}

/// The process and all its descendants, as they are now.
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

/// CPU time that these processes used so far, in seconds: exact, of all threads, also ended ones.
fn cpu(pids: &[u32]) -> f64 {
    pids.iter().map(|&pid| clock(pid)).sum()
}

fn clock(pid: u32) -> f64 {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both calls write to what lives on this stack.
    let ok = unsafe {
        libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    assert!(ok, "process {pid} is gone");
    #[expect(clippy::cast_precision_loss, reason = "seconds")]
    let seconds = time.tv_sec as f64 + time.tv_nsec as f64 / 1e9;
    seconds
}

/// Memory of these processes in KiB.
fn rss(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    pids.iter().filter_map(of).sum()
}
