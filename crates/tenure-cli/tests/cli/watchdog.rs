//! The command on a lease and all its descendants end before the next owner starts, however the
//! wrapper, the watchdog or the store fail.
//!
//! The kernel shows if a process is left: the command has a shared lock on a witness file, which
//! all its descendants inherit. The command of the next owner tries to lock the file exclusively,
//! which fails as long as a single descendant of the previous command lives.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tenure_tests::servers::RedisServer;

use crate::process::{Launch, Process, TIMEOUT, until};
use crate::redis::{self, LeaseSandbox};
use crate::support::{Owner, Sandbox};
use crate::unix::{Terminal, is_alive, send, state_of};

/// Shell script that locks the file `$0` for itself and its descendants, and starts three of them
/// in sessions of their own, each by a parent that exits: one that SIGTERM ends, one that ignores
/// SIGTERM, and one that is stopped. The script appends the pid of each to `$0.started`, and runs
/// `$1` at the end.
const FAMILY: &str = r#"
    exec 9<"$0"
    flock -s 9
    (setsid sh -c 'echo $$ >> "$0.started"; while :; do sleep 0.02; done' "$0" &)
    (setsid sh -c 'trap "" TERM; echo $$ >> "$0.started"; while :; do sleep 0.02; done' "$0" &)
    (setsid sh -c 'echo $$ >> "$0.started"; kill -STOP $$; sleep 300' "$0" &)
    until [ "$(cat "$0.started" 2>/dev/null | wc -l)" = 3 ]; do sleep 0.02; done
    eval "$1"
"#;

/// Shell script that prints `alone` if no process has the lock on the witness file `$0`.
const NEXT: &str = "if flock -n -x \"$0\" true; then echo alone; else echo overlap; fi";

/// TTL of all leases in these tests, in seconds.
const TTL: &str = "--ttl 3";

/// A sandbox with an owner whose command has three descendants.
struct Family {
    sandbox: LeaseSandbox,
    owner: Owner,
    /// Guard that lets one family run at a time: starting and killing the 200 processes of one test
    /// slows the watchdog of another test down, which must end its family before the lease ends.
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

impl Family {
    fn witness(sandbox: &Sandbox) -> PathBuf {
        sandbox.path("witness")
    }

    fn launch(sandbox: &LeaseSandbox, last: &str) -> Launch {
        let witness = Self::witness(&sandbox.sandbox);
        fs::write(&witness, "").expect("a file");
        let launch = sandbox.tenure("run", &format!("{TTL} x -- sh -c"));
        launch.arg(FAMILY).arg(witness).arg(last)
    }

    /// Starts the owner, and waits until all descendants run. `None` if Redis is not installed.
    fn start() -> Option<Self> {
        Self::start_with("sleep 300")
    }

    /// Like `start`, but the script runs this text as its last command.
    fn start_with(last: &str) -> Option<Self> {
        let sandbox = LeaseSandbox::new()?;
        let launch = Self::launch(&sandbox, last);
        Some(Self::start_in(sandbox, launch))
    }

    /// Starts the owner in the sandbox and with the program that `launch` prepares.
    fn start_in(sandbox: LeaseSandbox, launch: Launch) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let owner = sandbox.hold(launch);
        let family = Self {
            sandbox,
            owner,
            _turn: turn,
        };
        let started = family.sandbox.sandbox.path("witness.started");
        until("the descendants run", || {
            fs::read_to_string(&started).is_ok_and(|text| text.lines().count() == 3)
        });
        assert!(
            !family.are_all_gone(),
            "the witness does not see the family"
        );
        family
    }

    fn next(&self) -> Process {
        Self::next_in(&self.sandbox.redis, &self.sandbox.sandbox)
    }

    fn next_in(redis: &RedisServer, sandbox: &Sandbox) -> Process {
        let launch = sandbox.tenure("run --wait --store").arg(redis.url());
        let launch = launch.words(TTL).words("x -- sh -c");
        let launch = launch.arg(NEXT).arg(Self::witness(sandbox));
        let next = launch.start();
        next.until_stderr_has("waiting for x");
        next
    }

    fn are_all_gone(&self) -> bool {
        let file = File::open(Self::witness(&self.sandbox.sandbox)).expect("the witness");
        try_lock(&file)
    }

    /// Like `start_with`, with 200 more descendants and a Redis server that writes no files, so that
    /// a release takes little time.
    fn start_crowd(last: &str) -> Option<Self> {
        let redis = RedisServer::start_with(&[])?;
        let sandbox = Sandbox::new();
        let sandbox = LeaseSandbox { sandbox, redis };
        let launch = Self::launch(&sandbox, &format!("{CROWD} {last}"));
        let family = Self::start_in(sandbox, launch);
        let crowd = family.sandbox.sandbox.path("witness.crowd");
        until("the crowd runs", || crowd.exists());
        Some(family)
    }

    /// Asserts that no process is left when the store has released the lease after `end`.
    fn assert_gone_at_release(&self, end: impl FnOnce(&Self)) {
        let is_held = || {
            let reply = self
                .sandbox
                .redis
                .command(&["EXISTS", "tenure:{name_x}:lease"]);
            reply.starts_with(":1")
        };
        assert!(is_held(), "the lease has another key");
        end(self);
        let limit = Instant::now() + TIMEOUT;
        while is_held() {
            assert!(Instant::now() < limit, "the lease was not released");
        }
        assert!(self.are_all_gone(), "released before the descendants ended");
    }

    /// Returns the pid of the watchdog, which is the parent of the command.
    fn watchdog(&self) -> u32 {
        parent_of(self.owner.command)
    }
}

fn parent_of(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let fields = stat.rsplit_once(") ").expect("fields").1;
    let parent = fields.split(' ').nth(1).and_then(|pid| pid.parse().ok());
    parent.expect("a pid")
}

/// Kills the descendants that a failed test has left. They are found by their arguments, which name
/// the witness file.
impl Drop for Family {
    fn drop(&mut self) {
        let witness = Self::witness(&self.sandbox.sandbox);
        let started = fs::read_to_string(self.sandbox.sandbox.path("witness.started"));
        for pid in started.unwrap_or_default().lines() {
            let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&arguments).into_owned();
            if arguments.contains(&*witness.to_string_lossy())
                && let Ok(pid) = pid.parse()
            {
                send(pid, libc::SIGKILL);
            }
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the file is a witness and not a lock file of tenure"
)]
fn try_lock(file: &File) -> bool {
    file.try_lock().is_ok()
}

/// Asserts that the next owner found no process of the previous one.
fn assert_alone(next: Process) {
    let outcome = next.finish();
    assert_eq!(outcome.text(), "alone\n", "{outcome:?}");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

// T1
#[test]
fn descendants_of_a_killed_wrapper_end_before_the_next_owner_starts() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let next = family.next();
    family.owner.process.kill();
    assert_alone(next);
}

// T1: a signal to the process group does not reach the watchdog, which has a session of its own.
#[test]
fn descendants_of_a_killed_process_group_end_before_the_next_owner_starts() {
    let Some(family) = Family::start() else {
        return;
    };
    let next = family.next();
    crate::unix::send_to_group(family.owner.wrapper, libc::SIGKILL);
    assert_alone(next);
}

// T1: the wrapper is stopped with SIGSTOP. It reports the loss of the lease once it is resumed.
#[test]
fn descendants_of_a_stopped_wrapper_end_before_the_next_owner_starts() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let next = family.next();
    send(family.owner.wrapper, libc::SIGSTOP);
    assert_alone(next);
    assert_eq!(state_of(family.owner.wrapper), Some('T'));
    send(family.owner.wrapper, libc::SIGCONT);
    let outcome = family.owner.process.wait();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    for part in ["lease of x was lost", "hint: check that redis://"] {
        assert!(outcome.stderr.contains(part), "{part:?} in {outcome:?}");
    }
}

// T1: the whole process group is stopped with SIGSTOP, as with Ctrl-Z.
#[test]
fn descendants_of_a_stopped_process_group_end_before_the_next_owner_starts() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let next = family.next();
    crate::unix::send_to_group(family.owner.wrapper, libc::SIGSTOP);
    assert_alone(next);
    crate::unix::send_to_group(family.owner.wrapper, libc::SIGCONT);
    assert_eq!(family.owner.process.wait().code, Some(1));
}

// The wrapper adopts the descendants, ends them and releases the lease at once.
#[test]
fn descendants_of_a_killed_watchdog_end_before_the_next_owner_starts() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let next = family.next();
    send(family.watchdog(), libc::SIGKILL);
    assert_alone(next);
    let outcome = family.owner.process.wait();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stderr.contains("watchdog"), "{outcome:?}");
}

// A watchdog that was stopped for longer than a TTL reads the renewals that the wrapper sent
// meanwhile, before it acts on the earlier deadline.
#[test]
fn command_survives_a_watchdog_that_is_stopped_while_the_wrapper_renews() {
    let Some(family) = Family::start() else {
        return;
    };
    let watchdog = family.watchdog();
    send(watchdog, libc::SIGSTOP);
    let token = family.sandbox.status("x")["record"]["token"].clone();
    std::thread::sleep(Duration::from_millis(3500));
    send(watchdog, libc::SIGCONT);
    std::thread::sleep(Duration::from_millis(500));
    assert!(is_alive(family.owner.command));
    assert_eq!(family.sandbox.status("x")["record"]["token"], token);
    // The resumed watchdog still works: after the end of the wrapper it ends the family.
    let next = family.next();
    send(family.owner.wrapper, libc::SIGKILL);
    assert_alone(next);
}

/// Shell script that starts 200 descendants that ignore SIGTERM. Ending them takes longer than the
/// request that releases the lease.
const CROWD: &str = "trap '' TERM; for i in $(seq 200); do sleep 300 & done; echo > \"$0.crowd\";";

// The exit code is the command's, and the lease is released only after the last descendant has
// ended. The test checks this right after the release, because descendants could end before the
// next owner starts.
#[test]
fn descendants_that_the_command_leaves_end_before_the_lease_is_released() {
    let last = "until [ -e \"$0.go\" ]; do sleep 0.02; done; exit 7";
    let Some(mut family) = Family::start_crowd(last) else {
        return;
    };
    family.assert_gone_at_release(|family| {
        fs::write(family.sandbox.sandbox.path("witness.go"), "").unwrap();
    });
    assert_eq!(family.owner.process.wait().code, Some(7));
}

#[test]
fn descendants_of_a_killed_watchdog_end_before_the_lease_is_released() {
    let Some(family) = Family::start_crowd("sleep 300") else {
        return;
    };
    family.assert_gone_at_release(|family| send(family.watchdog(), libc::SIGKILL));
}

// The store is restarted elsewhere with the same data, so that the wrapper cannot reach it, but the
// next owner can.
#[test]
fn descendants_end_before_the_lease_expires_in_a_store_that_became_unreachable() {
    let Some(mut family) = Family::start() else {
        return;
    };
    family.sandbox.redis.kill9();
    let Some(moved) = redis::start_in(&family.sandbox.sandbox.path("")) else {
        return;
    };
    let next = Family::next_in(&moved, &family.sandbox.sandbox);
    assert_alone(next);
    let outcome = family.owner.process.wait();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    for part in ["could not be renewed", "hint: check that redis://"] {
        assert!(outcome.stderr.contains(part), "{part:?} in {outcome:?}");
    }
}

// A store that has forgotten the lease may have granted it to another owner, so the command is
// killed at once, without time to exit by itself.
#[test]
fn command_is_killed_when_the_store_has_forgotten_the_lease() {
    let Some(mut family) = Family::start() else {
        return;
    };
    family.sandbox.redis.command(&["FLUSHALL"]);
    let outcome = family.owner.process.wait();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(family.are_all_gone(), "a descendant outlived the wrapper");
    assert!(
        !outcome.stderr.contains("SIGTERM"),
        "the command got time to exit: {outcome:?}"
    );
}

// Ctrl-Z and `fg` must work as they would without the wrapper, while the lease is valid.
#[test]
fn control_z_and_fg_resume_a_command_on_a_lease() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let script = "set -m
        \"$TENURE\" run --ttl 60 x -- sh -c 'echo ready; until [ -e \"$0\" ]; do sleep 0.02; done; exit 42' \"$0\"
        echo job-stopped
        read line
        fg
        echo job-ended-$?";
    let go = sandbox.sandbox.path("go");
    let launch = sandbox.sandbox.program("sh").arg("-c").arg(script).arg(&go);
    let launch = launch
        .env("TENURE", crate::support::TENURE)
        .env("TENURE_STORE", sandbox.redis.url());
    let mut terminal = Terminal::start(launch);
    terminal.until_shown("ready");
    let (wrapper, command) = sandbox.owner_of_x();
    terminal.press("\x1a");
    until("wrapper and command are stopped", || {
        [wrapper, command].map(state_of) == [Some('T'); 2]
    });
    terminal.until_shown("job-stopped");
    terminal.press("now\n");
    until("wrapper and command run again", || {
        [wrapper, command]
            .map(state_of)
            .iter()
            .all(|state| matches!(state, Some('S' | 'R' | 'D')))
    });
    fs::write(go, "").unwrap();
    terminal.until_shown("job-ended-42");
}

/// Fills a pipe that no process reads, so that the next write to it blocks.
fn fill(pipe: &impl std::os::fd::AsRawFd) {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    // The pipe is opened again, because the flag for non-blocking writes would otherwise apply to
    // all processes that share it.
    let mut options = fs::OpenOptions::new();
    let options = options.write(true).custom_flags(libc::O_NONBLOCK);
    let mut pipe = options.open(path).expect("the pipe");
    for size in [4096, 1] {
        while pipe.write(&vec![b'x'; size]).is_ok() {}
    }
}

// Stderr blocks if it is a pipe whose reader is stuck, or a terminal after Ctrl-S. The watchdog
// must not wait for it.
#[test]
fn descendants_end_before_the_next_owner_starts_while_stderr_is_blocked() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let (_reader, writer) = std::io::pipe().unwrap();
    let launch = Family::launch(&sandbox, "sleep 300");
    let launch = launch.stderr(writer.try_clone().unwrap());
    let mut family = Family::start_in(sandbox, launch);
    fill(&writer);
    let next = family.next();
    family.owner.process.kill();
    assert_alone(next);
}

// The failed renewal is logged on stderr, which blocks. The next renewal must not wait for it.
#[test]
fn lease_is_renewed_after_a_failed_renewal_while_stderr_is_blocked() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let (_reader, writer) = std::io::pipe().unwrap();
    let launch = sandbox.tenure("run", "--ttl 12 x -- sleep 300");
    let owner = sandbox.hold(launch.stderr(writer.try_clone().unwrap()));
    fill(&writer);
    let redis = &sandbox.redis;
    let token = sandbox.status("x")["record"]["token"].clone();
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    until("a renewal has failed", || {
        redis
            .command(&["INFO", "errorstats"])
            .contains("NOREPLICAS")
    });
    redis.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    // Without renewals, less than two thirds of the TTL would be left at this time.
    until("the lease is renewed", || {
        sandbox.status("x")["expires_in_ms"].as_u64() > Some(9000)
    });
    assert!(is_alive(owner.command));
    assert_eq!(sandbox.status("x")["record"]["token"], token);
}

// Starting a thread needs memory, so each limit makes the start of another thread fail. The caller
// ignores SIGTERM, so that only SIGKILL ends the command.
#[test]
fn no_descendant_outlives_a_wrapper_that_cannot_start_a_thread() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let witness = Family::witness(&sandbox.sandbox);
    fs::write(&witness, "").unwrap();
    let mut codes = Vec::new();
    for limit in (1..=10).map(|step| step * 128 * 1024) {
        let script = "trap '' TERM; ulimit -v $0; exec \"$@\"";
        let launch = sandbox.sandbox.program("sh").arg("-c").arg(script);
        let launch = launch.arg(limit.to_string()).arg(crate::support::TENURE);
        let launch = launch.words("run --wait --store").arg(sandbox.redis.url());
        let launch = launch.words(TTL).words("x -- sh -c");
        let launch = launch.arg("flock -s \"$0\" sleep 1; exit 7").arg(&witness);
        // The stack of each thread is larger than all other memory together, so the limit decides
        // how many threads start.
        let launch = launch.env("RUST_MIN_STACK", (256 << 20).to_string());
        // The wrapper's handle is dropped only after the check, because dropping it kills the
        // process group, and with it the descendants that the test searches for.
        let mut process = launch.start();
        let outcome = process.wait();
        if outcome.code != Some(7) {
            // Waits for the time in which a watchdog that is still running would start the command.
            std::thread::sleep(Duration::from_millis(300));
        }
        let file = File::open(&witness).unwrap();
        assert!(try_lock(&file), "limit {limit}: {outcome:?}");
        codes.push(outcome.code);
    }
    assert_eq!(codes.first(), Some(&Some(1)), "{codes:?}");
    assert_eq!(codes.last(), Some(&Some(7)), "{codes:?}");
}

// A stopped watchdog cannot end the descendants. The wrapper must therefore kill it, and then the
// descendants.
#[test]
fn descendants_of_a_stopped_watchdog_end_when_the_lease_is_lost() {
    let Some(mut family) = Family::start() else {
        return;
    };
    let watchdog = family.watchdog();
    send(watchdog, libc::SIGSTOP);
    family.sandbox.redis.kill9();
    let Some(moved) = redis::start_in(&family.sandbox.sandbox.path("")) else {
        return;
    };
    let next = Family::next_in(&moved, &family.sandbox.sandbox);
    assert_alone(next);
    let outcome = family.owner.process.wait();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome.stderr.contains("lease of x was lost"),
        "{outcome:?}"
    );
    assert!(!is_alive(watchdog));
}

// The watchdog is stopped between the exit of the command and the end of its descendants.
#[test]
fn wrapper_ends_the_descendants_of_a_command_that_exited_if_the_watchdog_is_stopped() {
    let last = "until [ -e \"$0.go\" ]; do sleep 0.02; done; exit 7";
    let Some(mut family) = Family::start_with(last) else {
        return;
    };
    let watchdog = family.watchdog();
    let next = family.next();
    fs::write(family.sandbox.sandbox.path("witness.go"), "").unwrap();
    until("the command has exited", || !is_alive(family.owner.command));
    // The watchdog reports the exit of the command at once, and then gives the descendants 2 s to
    // exit. The test stops it in this time.
    std::thread::sleep(Duration::from_millis(300));
    send(watchdog, libc::SIGSTOP);
    let outcome = family.owner.process.wait();
    assert_eq!(outcome.code, Some(7), "{outcome:?}");
    assert_alone(next);
}

// A connection under the descriptor number of a closed standard stream would receive messages and
// output.
#[test]
fn closed_standard_streams_are_closed_for_the_command_and_no_socket_of_the_wrapper() {
    let Some(sandbox) = LeaseSandbox::new() else {
        return;
    };
    let script = "exec \"$0\" run x -- sleep 300 <&- >&- 2>&-";
    let launch = sandbox.sandbox.program("sh").arg("-c").arg(script);
    let launch = launch.arg(crate::support::TENURE);
    let owner = sandbox.hold(launch.env("TENURE_STORE", sandbox.redis.url()));
    for pid in [owner.wrapper, parent_of(owner.command)] {
        for number in 0..3 {
            let target = fs::read_link(format!("/proc/{pid}/fd/{number}")).unwrap();
            assert_eq!(target, PathBuf::from("/dev/null"), "descriptor {number}");
        }
    }
    for number in 0..3 {
        let path = format!("/proc/{}/fd/{number}", owner.command);
        assert!(fs::read_link(path).is_err(), "descriptor {number}");
    }
}
