//! `llmlb stop`: stops the server that holds the lock of a port, and no other process.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use tenure::process::Identity;
use tenure::{Holder, Stopped, Store};

use super::args::Stop;
use super::exit::{self, Failure};
use super::{output, port_conflict};
use crate::lock::{self, LockInfo};

/// Drain timeout that is assumed for a server whose lock record has none.
const DRAIN: Duration = Duration::from_secs(30);
/// Time that a server gets to exit after its drain timeout.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// Time after which `llmlb stop` prints a message about its wait for the server.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

pub(super) fn stop(args: &Stop, quiet: bool) -> Result<u8, Failure> {
    let say = |text: &str| {
        if !quiet {
            output::message(text);
        }
    };
    let store = lock::store();
    let Some(port) = args.port else {
        return Err(missing_port(&store));
    };
    let done = stop_in(&store, port, args, say)?;
    for line in done.lines {
        output::data(&line)?;
    }
    done.still_running.map_or(Ok(exit::DONE), Err)
}

/// Result of `llmlb stop`: lines for stdout, and a failure if a server still runs.
#[derive(Debug)]
struct StopResult {
    lines: Vec<String>,
    /// Error if a server still runs on the port, whose lock is in another lock directory.
    still_running: Option<Failure>,
}

/// Returns the error for a missing `-p`, which lists the running servers.
fn missing_port(store: &Store) -> Failure {
    let failure = Failure::new(exit::USAGE, "no port is specified: llmlb stop -p PORT");
    let running: Vec<_> = store
        .list()
        .unwrap_or_default()
        .iter()
        .filter(|status| status.holder().is_some())
        .filter_map(|status| {
            let port = status.key().port_number()?;
            (*status.key() == lock::key(port)).then(|| port.to_string())
        })
        .collect();
    match running.as_slice() {
        [] => failure.hint("no servers are running"),
        ports => failure.hint(format!("servers are running on ports {}", ports.join(", "))),
    }
}

/// Stops the server on a port and returns the lines to print.
fn stop_in(
    store: &Store,
    port: u16,
    args: &Stop,
    say: impl Fn(&str),
) -> Result<StopResult, Failure> {
    let key = lock::key(port);
    let status = store
        .status(&key)
        .map_err(|error| Failure::new(exit::FAILED, error.to_string()))?;
    let server = status.holder().map(StopTarget::from_holder);
    let timeout = args.timeout.unwrap_or_else(|| {
        let info = server.as_ref().and_then(|server| server.info.as_ref());
        default_timeout(info)
    });
    if let Some(pid) = server.as_ref().and_then(|server| server.suspended) {
        say(&format!(
            "pid {pid} is suspended and cannot stop; resume it with `kill -CONT {pid}`"
        ));
    }
    let draining = server.as_ref().is_some_and(StopTarget::is_draining);
    if draining {
        say("the server already received a signal and is draining; waiting");
    }
    // Send no second signal to a draining server: it would abort the requests that the drain lets
    // complete.
    let stop = store
        .stop(&key)
        .timeout(timeout)
        .force(args.force)
        .ask(!draining);
    let began = Instant::now();
    let stopped = notify_if_slow(
        || stop.run(),
        || {
            say(&waiting(timeout, in_flight(store, port)));
        },
    )
    .ok_or_else(|| Failure::new(exit::FAILED, "stopping the server panicked; this is a bug"))?;
    match stopped {
        Ok(stopped) => {
            let mut lines = outcome(port, status.path(), &stopped);
            let drain = server.as_ref().and_then(StopTarget::drain_timeout);
            let is_over = |drain: Duration| !drain.is_zero() && began.elapsed() >= drain;
            if drain.is_some_and(|drain| !draining && is_over(drain)) {
                let text =
                    "The drain timeout expired: the server aborted requests in flight; see its log";
                lines.push(text.to_owned());
            }
            let mut still_running = None;
            if !matches!(stopped, Stopped::Ended { .. }) {
                let other = port_conflict::port_user(port);
                let server = port_conflict::llmlb_pid(port, other.as_ref());
                if let Some(pid) = server {
                    // Drop the line "No server running": a server whose lock is in another lock
                    // directory runs on the port.
                    lines.remove(0);
                    still_running = Some(elsewhere(port, pid, status.path()));
                } else {
                    lines.extend(other.map(|owner| port_conflict::line(port, &owner)));
                }
            }
            Ok(StopResult {
                lines,
                still_running,
            })
        }
        Err(error) => {
            let by_force = error.is_force_required();
            let failure = Failure::new(exit::FAILED, refusal(port, &error));
            let is_init = server.as_ref().is_some_and(|server| server.pid == Some(1));
            Err(if is_init {
                failure.hint(
                    "the server is PID 1 of its container: stop the container, or run `kill -TERM 1` \
                     inside the container",
                )
            } else if by_force && !args.force {
                failure.hint(format!("kill it with `llmlb stop -p {port} --force`"))
            } else {
                failure.hint(format!(
                    "show the server's state with `llmlb status -p {port}`"
                ))
            })
        }
    }
}

/// The server to stop, as its lock record described it before the signal.
struct StopTarget {
    pid: Option<u32>,
    info: Option<LockInfo>,
    /// Process id of the server, if the process is suspended and so cannot react to a signal.
    suspended: Option<u32>,
}

impl StopTarget {
    fn from_holder(holder: &Holder) -> Self {
        Self {
            pid: holder.pid(),
            info: holder.record().and_then(|record| {
                let port = record.port().unwrap_or_default();
                LockInfo::from_record(record, port).ok()
            }),
            suspended: holder.pid().filter(|_| holder.is_suspended()),
        }
    }

    fn is_draining(&self) -> bool {
        self.info
            .as_ref()
            .is_some_and(|info| info.draining.is_some())
    }

    fn drain_timeout(&self) -> Option<Duration> {
        self.info.as_ref()?.drain_timeout
    }
}

/// Returns the number of requests in flight from the server's lock record, which a draining server
/// updates.
fn in_flight(store: &Store, port: u16) -> Option<u64> {
    let status = store.status(&lock::key(port)).ok()?;
    let record = status.holder()?.record()?;
    LockInfo::from_record(record, port).ok()?.draining
}

fn default_timeout(info: Option<&LockInfo>) -> Duration {
    info.and_then(|info| info.drain_timeout)
        .unwrap_or(DRAIN)
        .saturating_add(GRACE)
}

/// Runs work and calls `notify` once if the work takes longer than `NOTICE_AFTER`. `None` if the
/// work panicked.
fn notify_if_slow<T: Send>(work: impl FnOnce() -> T + Send, notify: impl FnOnce()) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let worker = scope.spawn(move || {
            let result = work();
            let _ = sender.send(());
            result
        });
        if receiver.recv_timeout(NOTICE_AFTER) == Err(RecvTimeoutError::Timeout) {
            notify();
        }
        worker.join().ok()
    })
}

fn waiting(timeout: Duration, in_flight: Option<u64>) -> String {
    let limit = timeout.as_secs_f32();
    match in_flight {
        Some(1) => format!("draining: 1 request is in flight; waiting for at most {limit} s"),
        Some(count @ 2..) => {
            format!("draining: {count} requests are in flight; waiting for at most {limit} s")
        }
        _ => format!("draining: waiting for at most {limit} s"),
    }
}

/// Returns the error for a server that still runs on the port, because its lock is in another lock
/// directory.
fn elsewhere(port: u16, pid: u32, path: &Path) -> Failure {
    let dir = path.parent().unwrap_or(path).display();
    let message = format!(
        "The server on port {port} (PID: {pid}) was not stopped: its lock file is not in {dir}"
    );
    Failure::new(exit::FAILED, message)
        .hint("find the server's lock directory: LLMLB_LOCK_DIR, else TMPDIR, of its environment")
        .hint(format!(
            "stop the server inside its container, or stop it with \
             `LLMLB_LOCK_DIR=DIR llmlb stop -p {port}`"
        ))
}

/// Returns the lines that `llmlb stop` prints. The first is `No server running …`, unless a server
/// was stopped.
fn outcome(port: u16, path: &Path, stopped: &Stopped) -> Vec<String> {
    let nothing = format!("No server running on port {port}");
    let path = path.display();
    match stopped {
        Stopped::Ended { pid, killed: false } => {
            vec![format!("Stopped the server on port {port} (PID: {pid})")]
        }
        Stopped::Ended { pid, killed: true } => vec![format!(
            "Killed the server on port {port} (PID: {pid}): it did not exit in time"
        )],
        Stopped::Cleaned { record } => {
            let pid = record.as_ref().map(|record| record.pid());
            // A zombie of the crashed server, for which `Identity::from_pid` returns `None`, must
            // not be reported as another process that has the PID now.
            let reused = pid.is_some_and(|pid| Identity::from_pid(pid).is_some());
            vec![nothing, cleaned(pid, reused)]
        }
        Stopped::LeftAlone { why } => vec![
            nothing,
            format!("{path} has no valid lock record ({why}) and was left in place"),
        ],
        _ => vec![nothing],
    }
}

fn cleaned(pid: Option<u32>, reused: bool) -> String {
    match pid {
        Some(pid) if reused => format!(
            "Removed the stale lock file of PID {pid}; a different process has this PID now and was \
             not stopped"
        ),
        Some(pid) => format!("Removed the stale lock file of PID {pid}, which no longer runs"),
        None => "Removed an incomplete lock file".to_owned(),
    }
}

/// Returns the message for an error of the lock library. It names the server instead of the
/// library's key.
fn refusal(port: u16, error: &tenure::Error) -> String {
    match error.stop_reason() {
        Some(why) => format!("The server on port {port} was not stopped: {why}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(stopped: &Stopped) -> Vec<String> {
        outcome(8000, Path::new("/l/serve_8000.lock"), stopped)
    }

    #[test]
    fn every_outcome_has_its_message() {
        assert_eq!(
            texts(&Stopped::Ended {
                pid: 7,
                killed: false
            }),
            ["Stopped the server on port 8000 (PID: 7)"]
        );
        assert_eq!(
            texts(&Stopped::Ended {
                pid: 7,
                killed: true
            }),
            ["Killed the server on port 8000 (PID: 7): it did not exit in time"]
        );
        assert_eq!(
            texts(&Stopped::NotRunning),
            ["No server running on port 8000"]
        );
        assert_eq!(
            texts(&Stopped::Cleaned { record: None }),
            [
                "No server running on port 8000",
                "Removed an incomplete lock file"
            ]
        );
        let why = "it is not a JSON object".to_owned();
        assert_eq!(
            texts(&Stopped::LeftAlone { why }),
            [
                "No server running on port 8000",
                "/l/serve_8000.lock has no valid lock record (it is not a JSON object) and was left in place"
            ]
        );
        assert_eq!(
            cleaned(Some(7), false),
            "Removed the stale lock file of PID 7, which no longer runs"
        );
        assert_eq!(
            cleaned(Some(7), true),
            "Removed the stale lock file of PID 7; a different process has this PID now and was \
             not stopped"
        );
    }

    #[test]
    fn wait_message_names_the_requests_in_flight() {
        let limit = Duration::from_secs(35);
        assert_eq!(
            waiting(limit, Some(3)),
            "draining: 3 requests are in flight; waiting for at most 35 s"
        );
        assert_eq!(
            waiting(limit, Some(1)),
            "draining: 1 request is in flight; waiting for at most 35 s"
        );
        assert_eq!(waiting(limit, None), "draining: waiting for at most 35 s");
        assert_eq!(waiting(limit, Some(0)), waiting(limit, None));
    }

    #[test]
    fn default_timeout_is_the_servers_drain_timeout_plus_five_seconds() {
        let info = |text| -> LockInfo { serde_json::from_str(text).unwrap() };
        let minimal = info(r#"{"pid":1,"started_at":"2026-01-30T12:00:00Z","port":8000}"#);
        let full = info(
            r#"{"pid":1,"started_at":"2026-01-30T12:00:00Z","port":1,"drain_timeout_ms":1500}"#,
        );
        assert_eq!(default_timeout(None), Duration::from_secs(35));
        assert_eq!(default_timeout(Some(&minimal)), Duration::from_secs(35));
        assert_eq!(default_timeout(Some(&full)), Duration::from_millis(6_500));
    }

    #[test]
    fn refusal_names_the_server_instead_of_the_key() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_dir(dir.path());
        let key = lock::key(8000);
        let _held = store.claim(&key).try_acquire().unwrap();
        // Stopping is refused because this process owns the lock, and `stop` never signals its own
        // process.
        let refused = store.stop(&key).run().unwrap_err();
        let why = refused.stop_reason().unwrap();
        assert_eq!(
            refusal(8000, &refused),
            format!("The server on port 8000 was not stopped: {why}")
        );
        assert!(!why.contains(&key.to_string()), "{why}");

        let other = store.claim(&key).try_acquire().unwrap_err();
        assert_eq!(refusal(8000, &other), other.to_string());
    }

    #[test]
    fn stop_never_signals_its_own_process() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_dir(dir.path());
        let _lock = lock::ServerLock::acquire_in(&store, 8000, None).unwrap();
        let args = Stop {
            port: Some(8000),
            timeout: None,
            force: true,
        };
        let failure = stop_in(&store, 8000, &args, |_| {}).unwrap_err();
        assert_eq!(failure.code, exit::FAILED);
        assert!(store.status(&lock::key(8000)).unwrap().holder().is_some());
    }

    #[test]
    fn panic_of_the_work_is_reported_as_none() {
        let result: Option<()> = notify_if_slow(|| panic!("the work fails"), || ());
        assert_eq!(result, None);
    }
}
