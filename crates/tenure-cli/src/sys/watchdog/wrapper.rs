//! The side of the wrapper: starts the watchdog, sends it the deadlines of the lease, and ends all
//! descendants if the watchdog is killed.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

use rustix::io::{Errno, FdFlags};
use rustix::process::{Pid, WaitOptions};
use tenure::{LeaseState, Tenure};

use super::message::{Inbox, Order, Report, send};
use super::system::{self, Descendants};
use super::{KILL_ATTEMPTS, KILL_PAUSE, Settings};
use crate::sys::unix::{self, Relay};
use crate::sys::{Ending, LeasedCommand, StartError};

/// Interval between two looks at the lease after a stop was requested.
const STOPPING_POLL: Duration = Duration::from_millis(100);
/// Longest wait for a change of the lease.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Interval at which the first process of a container reaps orphans.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// Runs a command under the watchdog. Returns after the command and all its descendants have ended.
pub(crate) fn supervise(
    tenure: &mut Tenure,
    relay: &Relay,
    leased: &LeasedCommand<'_>,
) -> Result<Ending, StartError> {
    let lease = tenure.lease_state();
    let Some(deadline) = lease.as_ref().and_then(LeaseState::deadline) else {
        return Err(StartError::LeaseLost);
    };
    let (socket, watchdog) =
        start_watchdog(relay, leased, deadline).map_err(StartError::Watchdog)?;
    relay.forward_to(socket.as_raw_fd());
    let orders = socket.try_clone().map_err(StartError::Watchdog)?;
    thread::Builder::new()
        .name("tenure-orders".to_owned())
        .spawn(move || lease.map(|lease| send_orders(&lease, &orders, deadline)))
        .map_err(StartError::Watchdog)?;
    let program = leased.words.first().map(OsString::as_os_str);
    let outcome = follow(&socket, watchdog, |pid| {
        tenure.name_command(pid, Path::new(program.unwrap_or_default()));
    });
    // Signals that arrive from now on are ignored: there is no command left. The socket stays open,
    // so that no handler can write to another file under its number.
    std::mem::forget(socket);
    outcome
}

fn start_watchdog(
    relay: &Relay,
    leased: &LeasedCommand<'_>,
    deadline: Duration,
) -> io::Result<(UnixStream, Child)> {
    system::adopt_orphans()?;
    let (ours, theirs) = UnixStream::pair()?;
    let settings = Settings {
        socket: theirs.as_raw_fd(),
        deadline,
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
        // The watchdog must outlive every signal that the wrapper forwards.
        unix::ignore_forwarded_signals();
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
        Ok(())
    };
    // SAFETY: the closure only makes system calls between fork and exec.
    unsafe { command.pre_exec(prepare) };
    let watchdog = command.spawn()?;
    // The wrapper keeps no copy of the other end: the end of the watchdog must close the connection.
    drop(command);
    if std::process::id() == 1 {
        ours.set_read_timeout(Some(REAP_INTERVAL))?;
    }
    Ok((ours, watchdog))
}

/// Sends changes of the lease to the watchdog until the lease is lost or released.
fn send_orders(lease: &LeaseState, socket: &UnixStream, first: Duration) {
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
                // An order that does not arrive leaves the earlier deadline, which is safe.
                send(socket.as_raw_fd(), Order::Deadline(deadline).encode());
            }
            Some(_) => {}
            None => {
                while !send(socket.as_raw_fd(), Order::Kill.encode()) {
                    thread::sleep(STOPPING_POLL);
                }
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

/// Waits for the reports of the watchdog until all descendants have ended.
fn follow(
    socket: &UnixStream,
    mut watchdog: Child,
    mut on_start: impl FnMut(u32),
) -> Result<Ending, StartError> {
    let mut inbox = Inbox::default();
    let mut started = None;
    let mut ending = None;
    loop {
        let report = match inbox.next(socket) {
            Ok(Some(bytes)) => Report::decode(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                unix::reap_orphans(Pid::from_child(&watchdog).as_raw_nonzero().get());
                continue;
            }
            Ok(None) | Err(_) => break,
        };
        match report {
            Some(Report::Started(pid)) => {
                started = i32::try_from(pid).ok().and_then(Pid::from_raw);
                on_start(pid);
            }
            Some(Report::NotStarted(errno)) => {
                let _ = watchdog.wait();
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
            }
            Some(Report::Ended { survivors }) => {
                warn_of_survivors(survivors);
                let _ = watchdog.wait();
                return Ok(ending.unwrap_or(Ending::WatchdogEnded));
            }
            None => {}
        }
    }
    // The watchdog was killed. Its children are children of this process now, where the system
    // allows that.
    warn_of_survivors(end_all(Descendants::new(started)));
    let _ = watchdog.wait();
    Ok(Ending::WatchdogEnded)
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
