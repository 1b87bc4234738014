//! The watchdog of a command that runs on a lease: a process between the wrapper and the command.
//!
//! ```text
//! wrapper (has the lease) -> watchdog (has the deadline) -> command -> descendants
//! ```
//!
//! The wrapper sends each new deadline of the lease to the watchdog, somewhat shortened, because a busy
//! machine takes time to end many processes. If the deadline is not extended,
//! because the wrapper is stopped or the store cannot be reached, the watchdog sends SIGTERM to the
//! command and all its descendants some time in front of the deadline, and SIGKILL at the deadline.
//! If the wrapper ends, SIGTERM is sent at once. The store grants the lease to another owner only
//! after the deadline and a margin.
//!
//! If the watchdog is killed, the wrapper ends all descendants (`wrapper.rs`).

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
mod message;
mod wrapper;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, Signal, WaitOptions};

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "macos")]
use macos as system;
use message::{Inbox, Report};
pub(super) use message::{Order, send};
use system::{Alarm, Descendants};
pub(crate) use wrapper::supervise;

use super::unix;
use crate::{exit, output};

/// Verb, as first argument, that starts this program as a watchdog. Only the wrapper uses it.
pub(crate) const VERB: &str = "__watchdog";

/// Time that remaining descendants have to exit after the command has exited by itself. Then they
/// are killed.
const GRACE_AFTER_EXIT: Duration = Duration::from_secs(2);
/// Time that the command has to exit after its wrapper has ended, unless the lease ends earlier.
/// Then it is killed.
const GRACE_WITHOUT_WRAPPER: Duration = Duration::from_secs(10);
/// Pause between two attempts to kill all descendants, which may fork new ones in between.
const KILL_PAUSE: Duration = Duration::from_millis(5);
/// Number of attempts to kill descendants that this process may not signal, such as those of
/// another user. Then they are reported as survivors.
const KILL_ATTEMPTS: u32 = 100;

/// Arguments of a watchdog.
struct Settings {
    socket: RawFd,
    /// Time at which the command must have ended unless the lease is extended, on the boot clock. It
    /// is earlier than the deadline of the lease: a busy machine takes time to end many processes.
    deadline: Duration,
    /// Time between SIGTERM to the command and `deadline`.
    notice: Duration,
    /// Signals that the command must ignore, because the caller of the wrapper ignores them.
    ignored: u64,
    command: Vec<OsString>,
}

impl Settings {
    fn to_arguments(&self) -> Vec<OsString> {
        let numbers = [
            self.socket.to_string(),
            self.deadline.as_nanos().to_string(),
            self.notice.as_nanos().to_string(),
            self.ignored.to_string(),
        ];
        let words = [VERB.to_owned()].into_iter().chain(numbers);
        let command = self.command.iter().cloned();
        words.map(OsString::from).chain(command).collect()
    }

    fn parse(arguments: &[OsString]) -> Option<Self> {
        let [socket, deadline, notice, ignored, command @ ..] = arguments else {
            return None;
        };
        let number = |word: &OsString| word.to_str()?.parse::<u64>().ok();
        Some(Self {
            socket: number(socket)?.try_into().ok()?,
            deadline: Duration::from_nanos(number(deadline)?),
            notice: Duration::from_nanos(number(notice)?),
            ignored: number(ignored)?,
            command: command.to_vec(),
        })
    }
}

/// Runs this process as a watchdog. `arguments` are those after [`VERB`].
pub(crate) fn run(arguments: &[OsString]) -> i32 {
    let opened = Settings::parse(arguments).and_then(|settings| {
        // SAFETY: the number is only used if a descriptor is open under it, and the wrapper passes
        // its socket this way. No other code of this process owns it.
        let socket = unsafe {
            if libc::fcntl(settings.socket, libc::F_GETFD) < 0 {
                return None;
            }
            OwnedFd::from_raw_fd(settings.socket)
        };
        Some((settings, UnixStream::from(socket)))
    });
    let Some((settings, socket)) = opened else {
        output::message(&format!("`{VERB}` is used by `tenure run --store` only"));
        return exit::USAGE;
    };
    match Watchdog::start(&settings, socket) {
        Ok(mut watchdog) => watchdog.watch(),
        Err(()) => exit::FAILED,
    }
}

struct Watchdog {
    /// Socket to the wrapper; `None` after the wrapper has ended.
    socket: Option<UnixStream>,
    inbox: Inbox,
    /// Socket that becomes readable when a child has exited, so that `poll` wakes up.
    exits: UnixStream,
    alarm: Alarm,
    /// Process group of the wrapper. A command that is still in it gets the terminal's signals
    /// directly, so they are not forwarded.
    group: Pid,
    command: Pid,
    descendants: Descendants,
    deadline: Duration,
    notice: Duration,
    stage: Stage,
}

/// Progress of ending the command and its descendants.
#[derive(Default)]
struct Stage {
    /// True once the command has exited and is reaped.
    exited: bool,
    /// True once SIGTERM was sent to all descendants.
    asked: bool,
    lease: Validity,
    /// Time until which the descendants may exit by themselves; then they are killed.
    grace_end: Option<Duration>,
    /// Number of consecutive failed attempts to kill descendants that this process may not signal.
    refusals: u32,
}

/// State of the lease as the watchdog knows it.
#[derive(Default, PartialEq, Eq)]
enum Validity {
    #[default]
    Valid,
    /// The lease was not renewed in time, and SIGTERM was sent. A renewal makes it valid again.
    Expiring,
    /// The wrapper reported the loss, or the deadline has passed and SIGKILL was sent.
    Lost,
}

impl Watchdog {
    /// Starts the command. If that fails, the error is reported to the wrapper in a message, so the
    /// returned error carries none.
    fn start(settings: &Settings, socket: UnixStream) -> Result<Self, ()> {
        let fail = |error: &io::Error| {
            let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
            send(socket.as_raw_fd(), Report::NotStarted(errno).encode());
        };
        let prepared = rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)
            .map_err(io::Error::from)
            .and_then(|()| socket.set_nonblocking(true))
            .and_then(|()| unix::open_standard_descriptors())
            .and_then(|()| system::adopt_orphans())
            .and_then(|()| Ok((notify_of_exits()?, Alarm::new()?)));
        let (exits, alarm) = prepared.map_err(|error| fail(&error))?;
        let group = rustix::process::getpgrp();
        if tenure::boot_time() + settings.notice >= settings.deadline {
            fail(&io::Error::from_raw_os_error(libc::ETIMEDOUT));
            return Err(());
        }
        let child = start_command(settings).map_err(|error| fail(&error))?;
        let command = Pid::from_child(&child);
        // The watchdog leaves the wrapper's session and group only after the start: the command
        // inherits both, and must stay in them.
        system::leave_the_group();
        let started = Report::Started(child.id());
        send(socket.as_raw_fd(), started.encode());
        Ok(Self {
            socket: Some(socket),
            inbox: Inbox::default(),
            exits,
            alarm,
            group,
            command,
            descendants: Descendants::new(Some(command)),
            deadline: settings.deadline,
            notice: settings.notice,
            stage: Stage::default(),
        })
    }

    /// Waits until the command and all its descendants have ended. Ends them if the lease is not
    /// renewed in time.
    fn watch(&mut self) -> i32 {
        let mut survivors = 0;
        while self.reap() {
            let now = tenure::boot_time();
            let wake = if self.must_kill(now) {
                survivors = self.kill(now);
                if self.stage.refusals > KILL_ATTEMPTS {
                    break;
                }
                now + KILL_PAUSE
            } else {
                if self.must_ask(now) && !self.stage.asked {
                    self.ask(now);
                }
                self.next_action()
            };
            self.wait(wake);
            self.receive();
            survivors = 0;
        }
        system::return_terminal(self.command);
        self.report(Report::Ended { survivors });
        // The message is printed last, because a write to a full pipe, or to a terminal after
        // Ctrl-S, blocks and would delay killing the descendants.
        if self.socket.is_none() && can_write(&io::stderr()) {
            output::message("`tenure run` was killed; its command and all descendants were ended");
        }
        exit::DONE
    }

    /// Reaps all children that have exited. Returns false if there is no descendant left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.command => {
                    self.stage.exited = true;
                    let ended_by = status.terminating_signal().map(|signal| 128 + signal);
                    self.report(Report::Exited {
                        code: ended_by.or(status.exit_status()).unwrap_or(exit::FAILED),
                        by_watchdog: self.stage.lease != Validity::Valid,
                    });
                    self.limit_grace(GRACE_AFTER_EXIT);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => return true,
                Err(_) => return self.descendants.has_others(),
            }
        }
    }

    fn must_kill(&self, now: Duration) -> bool {
        self.stage.lease == Validity::Lost
            || now >= self.deadline
            || self.stage.grace_end.is_some_and(|end| now >= end)
    }

    fn must_ask(&self, now: Duration) -> bool {
        self.stage.grace_end.is_some() || now + self.notice >= self.deadline
    }

    /// Sends SIGTERM to all descendants, and SIGCONT, because a stopped process cannot exit.
    fn ask(&mut self, now: Duration) {
        self.stage.asked = true;
        self.descendants.signal(Signal::TERM);
        self.descendants.signal(Signal::CONT);
        if now + self.notice >= self.deadline && !self.stage.exited {
            self.stage.lease = Validity::Expiring;
            self.report(Report::Expiring);
        }
    }

    /// Sends SIGKILL once to all descendants. Returns the number of those that this process may not
    /// signal, such as processes of another user.
    fn kill(&mut self, now: Duration) -> u32 {
        if now >= self.deadline {
            self.stage.lease = Validity::Lost;
        }
        let survivors = self.descendants.kill();
        if survivors > 0 {
            self.stage.refusals += 1;
        } else {
            self.stage.refusals = 0;
        }
        survivors
    }

    /// Returns the time of the next signal to the descendants, on the boot clock.
    fn next_action(&self) -> Duration {
        let asking = self.deadline.saturating_sub(self.notice);
        let next = if self.stage.asked {
            self.deadline
        } else {
            asking
        };
        self.stage.grace_end.map_or(next, |end| end.min(next))
    }

    /// Limits the time in which the descendants may exit by themselves. The earliest limit counts.
    fn limit_grace(&mut self, grace: Duration) {
        let end = tenure::boot_time() + grace;
        let earlier = self.stage.grace_end.map_or(end, |before| before.min(end));
        self.stage.grace_end = Some(earlier);
    }

    /// Waits for an order, the exit of a child, or this time of the boot clock.
    fn wait(&self, until: Duration) {
        let limit = match self.alarm.set(until) {
            Ok(()) => self.alarm.longest_wait(until),
            Err(_) => Some(KILL_PAUSE),
        };
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let ends = [
            Some(self.exits.as_fd()),
            self.socket.as_ref().map(AsFd::as_fd),
            self.alarm.fd(),
        ];
        let mut events: Vec<_> = ends
            .iter()
            .flatten()
            .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
            .collect();
        // The result of `poll` is ignored: the caller then checks every source of events, whatever
        // woke it.
        let _ = rustix::event::poll(&mut events, limit.as_ref());
        let mut bytes = [0; 64];
        while matches!((&self.exits).read(&mut bytes), Ok(1..)) {}
    }

    /// Executes the orders of the wrapper that have arrived: new deadlines, signals for the
    /// command, and the loss of the lease.
    fn receive(&mut self) {
        while let Some(socket) = &self.socket {
            match self.inbox.next(socket) {
                Ok(Some(bytes)) => {
                    if let Some(order) = Order::decode(bytes) {
                        self.execute(order);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => {
                    self.socket = None;
                    self.limit_grace(GRACE_WITHOUT_WRAPPER);
                }
            }
        }
    }

    fn execute(&mut self, order: Order) {
        match order {
            Order::Deadline(deadline) => {
                // A deadline is ignored once the descendants are being killed, because the lease
                // then counts as lost. A deadline that the wrapper sent in time counts even if the
                // watchdog was stopped when it arrived.
                if deadline > self.deadline && self.stage.lease != Validity::Lost {
                    self.deadline = deadline;
                    self.stage.lease = Validity::Valid;
                    self.stage.asked &= self.stage.grace_end.is_some();
                }
            }
            Order::Kill => self.stage.lease = Validity::Lost,
            Order::Signal {
                number,
                by_terminal,
            } => {
                let sent_to_the_command =
                    || rustix::process::getpgid(Some(self.command)) == Ok(self.group);
                let is_done = self.stage.exited || (by_terminal && sent_to_the_command());
                if !is_done {
                    // SAFETY: the command is a child of this process and not yet reaped.
                    unsafe { libc::kill(self.command.as_raw_nonzero().get(), number) };
                }
            }
        }
    }

    fn report(&self, report: Report) {
        if let Some(socket) = &self.socket {
            send(socket.as_raw_fd(), report.encode());
        }
    }
}

/// True if a short write to this file does not block now.
fn can_write(file: &impl AsFd) -> bool {
    let mut events = [PollFd::new(file, PollFlags::OUT)];
    let at_once = Timespec::default();
    rustix::event::poll(&mut events, Some(&at_once)).is_ok()
        && events[0].revents().contains(PollFlags::OUT)
}

/// Starts the command with the signal settings that the wrapper was started with.
fn start_command(settings: &Settings) -> io::Result<std::process::Child> {
    let Some((program, arguments)) = settings.command.split_first() else {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    };
    let mut command = Command::new(program);
    command.args(arguments);
    system::prepare(&mut command);
    let ignored = settings.ignored;
    // SAFETY: the closure only calls sigaction between fork and exec.
    unsafe {
        command.pre_exec(move || {
            unix::set_ignored_signals(ignored);
            Ok(())
        });
    }
    command.spawn()
}

/// Descriptor of the socket to which the handler of SIGCHLD writes a byte for each exit.
static EXITS: AtomicI32 = AtomicI32::new(-1);

/// Returns a socket that becomes readable whenever a child exits, so that `poll` can wait for exits
/// and for orders at the same time.
fn notify_of_exits() -> io::Result<UnixStream> {
    let (ours, handlers) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    handlers.set_nonblocking(true)?;
    EXITS.store(
        std::os::fd::IntoRawFd::into_raw_fd(handlers),
        Ordering::SeqCst,
    );
    unix::catch_child_exits(on_exit);
    Ok(ours)
}

extern "C" fn on_exit(_: libc::c_int, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    unix::keep_errno(|| {
        // SAFETY: writes one byte to a socket that stays open.
        unsafe { libc::write(EXITS.load(Ordering::SeqCst), [0_u8].as_ptr().cast(), 1) };
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_a_watchdog_are_those_of_the_wrapper() {
        let settings = Settings {
            socket: 3,
            deadline: Duration::from_nanos(5_000_000_001),
            notice: Duration::from_millis(167),
            ignored: 1 << 63,
            command: ["sh", "-c", "true"].map(OsString::from).to_vec(),
        };
        let words = settings.to_arguments();
        assert_eq!(words[0], VERB);
        let parsed = Settings::parse(&words[1..]).unwrap();
        assert_eq!(parsed.socket, 3);
        assert_eq!(parsed.deadline, settings.deadline);
        assert_eq!(parsed.notice, settings.notice);
        assert_eq!(parsed.ignored, settings.ignored);
        assert_eq!(parsed.command, settings.command);
        assert!(Settings::parse(&words[..3]).is_none());
        assert!(Settings::parse(&["-1", "0", "0", "0"].map(OsString::from)).is_none());
    }
}
