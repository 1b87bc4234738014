//! Descendants of a process on Linux. A child subreaper becomes the parent of every descendant whose
//! own parent has exited, so no descendant can leave the tree by forking twice or by `setsid`.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Returns the program to start as the watchdog: the one that this process runs. `/proc/self/exe`
/// leads to it even if its file was replaced by an upgrade.
pub(super) fn own_program() -> io::Result<std::path::PathBuf> {
    Ok("/proc/self/exe".into())
}

/// Makes this process a child subreaper: it becomes the parent of every descendant whose own parent
/// exits, and can therefore find and end all descendants.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(
        rustix::process::getpid(),
    ))?)
}

/// Prepares the start of the command: the kernel kills the command if the watchdog is killed.
pub(super) fn prepare(command: &mut Command) {
    let watchdog = rustix::process::getpid();
    let die_with_the_watchdog = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The kernel does not send this signal if the watchdog ended before the request, so the
        // child checks that the watchdog is still its parent.
        if rustix::process::getppid() == Some(watchdog) {
            Ok(())
        } else {
            Err(Errno::SRCH.into())
        }
    };
    // SAFETY: the closure only makes system calls, which is allowed between fork and exec.
    unsafe { command.pre_exec(die_with_the_watchdog) };
}

/// Moves the watchdog to a session of its own after the command was started. A signal for the whole
/// process group or session, such as `kill -9 -PGID`, then does not end wrapper and watchdog at
/// once.
pub(super) fn leave_the_group() {
    let _ = rustix::process::setsid();
    // Without a name, process lists would show the watchdog as `exe`. The name is only
    // informational, so an error is ignored.
    let _ = fs::write("/proc/self/comm", "tenure-watchdog");
}

/// Does nothing: on Linux the command shares the process group of the wrapper, so the wrapper never
/// loses the terminal.
pub(super) fn return_terminal(_command: Pid) {}

#[derive(Clone, Copy, Debug)]
pub(super) struct Descendants;

/// A process and the parent under which it was found. The parent is compared again before the
/// process is signalled, since its pid may have been reused.
struct Descendant {
    pid: Pid,
    parent: Pid,
}

impl Descendants {
    pub(super) fn new(_command: Option<Pid>) -> Self {
        Self
    }

    /// Always false: on Linux every orphan becomes a child of this process, so there are no
    /// descendants if this process has no children.
    pub(super) fn has_others(self) -> bool {
        false
    }

    pub(super) fn signal(self, signal: Signal) {
        let own = rustix::process::getpid();
        for descendant in tree(own) {
            let _ = send(&descendant, own, signal);
        }
    }

    /// Sends SIGKILL once to all descendants. Processes that they fork meanwhile become children of
    /// the watchdog, and the caller repeats the call until none is left. If the watchdog may signal
    /// none of them, returns the number of its children; else 0.
    pub(super) fn kill(self) -> u32 {
        let own = rustix::process::getpid();
        let (mut children, mut refused) = (0, 0);
        for descendant in tree(own) {
            let sent = send(&descendant, own, Signal::KILL);
            if descendant.parent == own {
                children += 1;
                refused += u32::from(sent == Err(Errno::PERM));
            }
        }
        if children == refused { refused } else { 0 }
    }
}

/// Signals a descendant. The pid of a child cannot be reused before this process reaps the child.
/// The pid of a more distant descendant can: such a process is pinned by a pidfd, and its parent is
/// checked afterwards, so that no unrelated process is signalled.
fn send(descendant: &Descendant, own: Pid, signal: Signal) -> Result<(), Errno> {
    let pid = descendant.pid;
    if descendant.parent == own {
        return rustix::process::kill_process(pid, signal);
    }
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::NOSYS) => None,
        pidfd => Some(pidfd?),
    };
    let parent = fs::read_to_string(format!("/proc/{pid}/stat"))
        .ok()
        .and_then(|stat| parent_in(&stat));
    if parent != Some(descendant.parent) && parent != Some(own) {
        return Err(Errno::SRCH);
    }
    match pidfd {
        Some(pidfd) => rustix::process::pidfd_send_signal(pidfd, signal),
        None => rustix::process::kill_process(pid, signal),
    }
}

/// Finds all descendants, parents in front of their children.
fn tree(own: Pid) -> Vec<Descendant> {
    let mut found: Vec<Descendant> = Vec::new();
    // A process that gets another parent during the search must not be listed twice.
    let mut known = HashSet::from([own]);
    let all = (!has_lists_of_children(own)).then(all_processes);
    let children_of = |parent: Pid| match &all {
        None => listed_children(parent),
        Some(all) => all
            .iter()
            .filter(|process| process.parent == parent)
            .map(|process| process.pid)
            .collect(),
    };
    let mut next = Some(own);
    let mut done = 0;
    while let Some(parent) = next {
        for pid in children_of(parent) {
            if known.insert(pid) {
                found.push(Descendant { pid, parent });
            }
        }
        next = found.get(done).map(|descendant| descendant.pid);
        done += 1;
    }
    found
}

/// True if the kernel lists the children of each thread, as most kernels do. Otherwise all processes
/// have to be searched.
fn has_lists_of_children(own: Pid) -> bool {
    fs::exists(format!("/proc/self/task/{own}/children")).unwrap_or(false)
}

fn listed_children(parent: Pid) -> Vec<Pid> {
    let threads = fs::read_dir(format!("/proc/{parent}/task"));
    let lists = threads
        .into_iter()
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let pids = list.split_ascii_whitespace().filter_map(parse_pid);
            pids.collect::<Vec<_>>()
        })
        .collect()
}

fn all_processes() -> Vec<Descendant> {
    let entries = fs::read_dir("/proc").into_iter().flatten();
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let pid = parse_pid(entry.file_name().to_str()?)?;
            let parent = parent_in(&fs::read_to_string(entry.path().join("stat")).ok()?)?;
            Some(Descendant { pid, parent })
        })
        .collect()
}

/// Returns the parent pid from the text of `/proc/PID/stat`. The search begins behind the program's
/// name, which may contain spaces and parentheses.
fn parent_in(stat: &str) -> Option<Pid> {
    let (_, fields) = stat.rsplit_once(") ")?;
    parse_pid(fields.split(' ').nth(1)?)
}

fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

/// Timer on the boot clock, which also counts while the machine is suspended. The lease may end
/// during a suspension.
#[derive(Debug)]
pub(super) struct Alarm(OwnedFd);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Boottime, flags)?))
    }

    pub(super) fn set(&self, at: Duration) -> io::Result<()> {
        let at = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
                // A time of zero would disarm the timer, so at least 1 ns is set.
                tv_nsec: i64::from(at.subsec_nanos().max(1)),
            },
        };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &at)?;
        Ok(())
    }

    /// Descriptor that becomes readable at the time of the alarm, so that `poll` returns.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    /// Returns the maximum time-out of `poll`. `None`: the alarm's descriptor ends the wait.
    pub(super) fn longest_wait(&self, _until: Duration) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parent_is_found_after_any_program_name() {
        let stat = "7 (a) R 9 (b) S 42 7 7 0";
        assert_eq!(parent_in(stat), Pid::from_raw(42));
        assert_eq!(parent_in("7 (a"), None);
        assert_eq!(parent_in("7 (init) S 0 1"), None);
    }

    #[test]
    fn both_ways_to_find_children_agree() {
        let mut child = Command::new("sleep").arg("300").spawn().unwrap();
        let own = rustix::process::getpid();
        let pid = Pid::from_child(&child);
        assert!(listed_children(own).contains(&pid));
        let scanned = all_processes();
        assert!(
            scanned
                .iter()
                .any(|process| process.pid == pid && process.parent == own)
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
