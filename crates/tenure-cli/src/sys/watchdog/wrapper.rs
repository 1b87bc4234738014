//! The wrapper's side of the watchdog: starts the watchdog, sends it the deadlines of the lease,
//! and ends all descendants if the watchdog is killed or does not react.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, Signal, WaitOptions};
use tenure::{LeaseState, Tenure};

use super::message::{Inbox, Order, Report, send};
use super::system::{self, Descendants};
use super::{GRACE_AFTER_EXIT, KILL_ATTEMPTS, KILL_PAUSE, Settings};
use crate::sys::unix::{self, Relay};
use crate::sys::{Ending, LeasedCommand, StartError};

/// Interval between two checks of the lease after a stop was requested. Waiting for a change of the
/// lease would then return at once.
const STOPPING_POLL: Duration = Duration::from_millis(100);
/// Maximum wait for a change of the lease. The thread that sends orders then checks the lease
/// again.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Maximum time that the watchdog has to end the descendants after the command has exited. Then the
/// wrapper kills them.
const END_TIMEOUT: Duration = GRACE_AFTER_EXIT.saturating_add(Duration::from_secs(3));
/// Interval at which the first process of a container reaps orphans, and at which the wrapper checks
/// [`END_TIMEOUT`].
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a command under the watchdog. Returns after the command and all its descendants have ended.
pub(crate) fn supervise(
    tenure: &mut Tenure,
    relay: &Relay,
    leased: &LeasedCommand<'_>,
) -> Result<Ending, StartError> {
    let lease = tenure.lease_state();
    let valid = lease.and_then(|lease| Some((lease.deadline()?, lease)));
    let Some((deadline, lease)) = valid else {
        return Err(StartError::LeaseLost);
    };
    // All steps that can fail precede the start of the watchdog: once it runs, it starts the
    // command, which a failed step would leave running.
    let (socket, theirs) =
        connect(&lease, deadline, leased.patience).map_err(StartError::Watchdog)?;
    // The socket stays open until this process ends, so that no signal handler can write to another
    // file under its number.
    let socket = ManuallyDrop::new(socket);
    let mut family = Family::default();
    start_watchdog(&mut family, theirs, relay, leased, deadline).map_err(StartError::Watchdog)?;
    relay.forward_to(socket.as_raw_fd());
    let program = leased.words.first().map(OsString::as_os_str);
    follow(&socket, &mut family, &lease, |pid| {
        tenure.name_command(pid, Path::new(program.unwrap_or_default()));
    })
}

/// Returns both sides of the connection to the watchdog, and starts the thread that sends orders
/// into it. The socket buffers the orders until the watchdog reads them.
fn connect(
    lease: &LeaseState,
    deadline: Duration,
    patience: Duration,
) -> io::Result<(UnixStream, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    if std::process::id() == 1 {
        ours.set_read_timeout(Some(REAP_INTERVAL))?;
    }
    let orders = ours.try_clone()?;
    let lease = lease.clone();
    thread::Builder::new()
        .name("tenure-orders".to_owned())
        .spawn(move || send_orders(&lease, &orders, deadline, patience))?;
    Ok((ours, theirs))
}

/// The watchdog and all its descendants. Dropping this value kills them, so that none of them runs
/// when the lease is released.
#[derive(Debug, Default)]
struct Family {
    watchdog: Option<Child>,
    /// Pid of the command, once the watchdog has reported its start.
    command: Option<Pid>,
    /// True from the start of the watchdog until all descendants have ended.
    is_running: bool,
}

impl Family {
    /// Ends the watchdog after it has reported that it has no descendants left.
    fn finish(&mut self) {
        self.is_running = false;
        if let Some(mut watchdog) = self.watchdog.take() {
            // A watchdog that is stopped (SIGSTOP) cannot exit by itself, so it is killed.
            let _ = watchdog.kill();
            let _ = watchdog.wait();
        }
    }

    /// Kills the watchdog and all its descendants. SIGKILL also ends a watchdog that is stopped.
    /// Returns the number of processes that this process may not signal.
    fn kill(&mut self) -> u32 {
        self.is_running = false;
        if let Some(watchdog) = self.watchdog.take() {
            let _ = rustix::process::kill_process(Pid::from_child(&watchdog), Signal::KILL);
        }
        // On Linux the wrapper adopts the children of the killed watchdog, and ends them as its own
        // children. macOS finds them by their process group.
        end_all(Descendants::new(self.command))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if self.is_running {
            self.kill();
        }
    }
}

/// Starts the watchdog with its side of the connection. The watchdog then starts the command.
fn start_watchdog(
    family: &mut Family,
    theirs: UnixStream,
    relay: &Relay,
    leased: &LeasedCommand<'_>,
    deadline: Duration,
) -> io::Result<()> {
    system::adopt_orphans()?;
    let settings = Settings {
        socket: theirs.as_raw_fd(),
        // The watchdog gets an earlier deadline than that of the lease, because a busy machine
        // takes time to end many processes.
        deadline: deadline.saturating_sub(leased.patience),
        notice: leased.notice,
        ignored: relay.ignored_signals(),
        command: leased.words.to_vec(),
    };
    let mut command = Command::new(system::own_program()?);
    command
        .arg0("tenure")
        .args(settings.to_arguments())
        .env("TENURE_TOKEN", leased.token.to_string());
    let prepare = move || {
        // The watchdog ignores every signal that the wrapper forwards, so that none of them ends it
        // before the command.
        unix::ignore_forwarded_signals();
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        Ok(())
    };
    // SAFETY: the closure only makes system calls between fork and exec.
    unsafe { command.pre_exec(prepare) };
    family.is_running = true;
    let spawned = command.spawn();
    family.is_running = spawned.is_ok();
    family.watchdog = Some(spawned?);
    // `command` holds a copy of the watchdog's side of the connection. It is dropped here:
    // otherwise the connection would stay open after the watchdog has ended.
    Ok(())
}

/// Sends changes of the lease to the watchdog until the lease is lost or released. If the watchdog
/// has not ended all descendants within `patience` after the loss, the connection is closed, and
/// the wrapper ends them.
fn send_orders(lease: &LeaseState, socket: &UnixStream, first: Duration, patience: Duration) {
    let mut known = first;
    let (mut stop_requested, mut stop_sent) = (false, false);
    loop {
        if stop_requested {
            thread::sleep(STOPPING_POLL);
        } else {
            lease.wait_for_change(Some(known), LONGEST_WAIT);
        }
        match lease.deadline() {
            Some(deadline) if deadline != known => {
                known = deadline;
                // A deadline that cannot be sent is ignored: the watchdog keeps an earlier
                // deadline, which is safe.
                let deadline = deadline.saturating_sub(patience);
                send(socket.as_raw_fd(), Order::Deadline(deadline).encode());
            }
            Some(_) => {}
            None => {
                let end = Instant::now() + patience;
                // Sending is repeated, because the socket is full if the watchdog was stopped for a
                // long time.
                while !send(socket.as_raw_fd(), Order::Kill.encode()) && Instant::now() < end {
                    thread::sleep(KILL_PAUSE);
                }
                thread::sleep(end.saturating_duration_since(Instant::now()));
                // Shutting the connection down makes the wrapper act as if the watchdog had been
                // killed: it kills all descendants.
                let _ = socket.shutdown(Shutdown::Read);
                return;
            }
        }
        stop_requested = lease.is_stop_requested();
        if stop_requested && !stop_sent {
            let stop = Order::Signal {
                number: libc::SIGTERM,
                by_terminal: false,
            };
            stop_sent = send(socket.as_raw_fd(), stop.encode());
        }
    }
}

/// Receives the reports of the watchdog until all descendants have ended. Returns the reason why
/// the command ended.
fn follow(
    socket: &UnixStream,
    family: &mut Family,
    lease: &LeaseState,
    mut on_start: impl FnMut(u32),
) -> Result<Ending, StartError> {
    let mut inbox = Inbox::default();
    let mut ending = None;
    let mut end_by: Option<Instant> = None;
    loop {
        let report = match inbox.next(socket) {
            Ok(Some(bytes)) => Report::decode(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if let Some(watchdog) = &family.watchdog {
                    unix::reap_orphans(Pid::from_child(watchdog).as_raw_nonzero().get());
                }
                if end_by.is_some_and(|end| Instant::now() >= end) {
                    break;
                }
                continue;
            }
            Ok(None) | Err(_) => break,
        };
        match report {
            Some(Report::Started(pid)) => {
                family.command = i32::try_from(pid).ok().and_then(Pid::from_raw);
                on_start(pid);
            }
            Some(Report::NotStarted(errno)) => {
                family.finish();
                return Err(if errno == libc::ETIMEDOUT {
                    StartError::LeaseLost
                } else {
                    StartError::Command(io::Error::from_raw_os_error(errno))
                });
            }
            Some(Report::Expiring) => tracing::warn!(
                "the lease was not renewed in time; SIGTERM was sent to the command and all its \
                 descendants"
            ),
            Some(Report::Exited { code, by_watchdog }) => {
                ending = Some(if by_watchdog {
                    Ending::LeaseLost
                } else {
                    Ending::Exited(code)
                });
                end_by = Some(Instant::now() + END_TIMEOUT);
                let _ = socket.set_read_timeout(Some(REAP_INTERVAL));
            }
            Some(Report::Ended { survivors }) => {
                family.finish();
                warn_of_survivors(survivors);
                return Ok(ending.unwrap_or(Ending::WatchdogEnded));
            }
            None => {}
        }
    }
    // The watchdog has closed its connection before its last report, or does not react: the wrapper
    // kills it and all descendants.
    let is_lost = lease.is_lost();
    warn_of_survivors(family.kill());
    Ok(match ending {
        Some(ending) => ending,
        None if is_lost => Ending::LeaseLost,
        None => Ending::WatchdogEnded,
    })
}

/// Kills all descendants and reaps them. Returns the number of those that this process may not
/// signal.
fn end_all(descendants: Descendants) -> u32 {
    let mut refusals = 0;
    loop {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(_) if descendants.has_others() => break,
                Err(_) => return 0,
            }
        }
        let survivors = descendants.kill();
        refusals = if survivors > 0 { refusals + 1 } else { 0 };
        if refusals > KILL_ATTEMPTS {
            return survivors;
        }
        thread::sleep(KILL_PAUSE);
    }
}

fn warn_of_survivors(count: u32) {
    if count > 0 {
        tracing::warn!(
            count,
            "processes of another user that the command started could not be ended"
        );
    }
}
