//! What a process and its children use.

use std::fs;

/// The process and all its descendants, as they are now.
pub fn tree(root: u32) -> Vec<u32> {
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
pub fn cpu(pids: &[u32]) -> f64 {
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
pub fn rss(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    pids.iter().filter_map(of).sum()
}
