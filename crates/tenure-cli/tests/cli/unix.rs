//! Helpers that send signals, read the states of processes and open terminals.

use std::ffi::{CStr, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::process::{Launch, Process, TIMEOUT, until};

/// Signals whose default action is restored in each program that a test starts. A test harness that
/// runs in the background may have left them ignored, and programs inherit that.
const RESET: [libc::c_int; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCHLD,
    libc::SIGTSTP,
];

pub(crate) fn default_signals(command: &mut Command) {
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in RESET {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}

pub(crate) fn ignoring(mut launch: Launch, signal: libc::c_int) -> Launch {
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        launch.command.pre_exec(move || {
            libc::signal(signal, libc::SIG_IGN);
            Ok(())
        });
    }
    launch
}

pub(crate) fn send(pid: u32, signal: libc::c_int) {
    assert_eq!(kill(raw(pid), signal), 0, "pid {pid} cannot be signalled");
}

#[cfg(target_os = "linux")]
pub(crate) fn send_to_group(leader: u32, signal: libc::c_int) {
    assert_eq!(kill(-raw(leader), signal), 0, "group {leader}");
}

/// Kills the rest of a process group or session and waits until it has exited. A process with a
/// lock must not outlive its test.
pub(crate) fn kill_group(leader: u32) {
    let deadline = Instant::now() + TIMEOUT;
    kill(-raw(leader), libc::SIGKILL);
    loop {
        let alive = members(leader);
        if alive.is_empty() || Instant::now() > deadline {
            return;
        }
        for pid in alive {
            kill(raw(pid), libc::SIGKILL);
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Living processes of a process group or session; empty on systems without `/proc`.
fn members(leader: u32) -> Vec<u32> {
    let alive_member = |entry: io::Result<fs::DirEntry>| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let alive = !matches!(fields.next()?, "Z" | "X");
        let mut ids = fields.skip(1).take(2).map(str::parse);
        (alive && ids.any(|id| id == Ok(leader))).then_some(pid)
    };
    let processes = fs::read_dir("/proc").into_iter().flatten();
    processes.filter_map(alive_member).collect()
}

/// True if a process is running. A zombie is not.
pub(crate) fn is_alive(pid: u32) -> bool {
    if cfg!(target_os = "linux") {
        state_of(pid).is_some_and(|state| state != 'Z' && state != 'X')
    } else {
        kill(raw(pid), 0) == 0
    }
}

/// Letter of a process state in `/proc/PID/stat`: `S` is sleeping, `T` is stopped.
pub(crate) fn state_of(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[cfg(target_os = "linux")]
pub(crate) fn flock(file: &File, operation: libc::c_int) {
    // SAFETY: the descriptor is open.
    let done = unsafe { libc::flock(file.as_raw_fd(), operation) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
}

#[cfg(target_os = "linux")]
pub(crate) fn is_root() -> bool {
    // SAFETY: the call has no preconditions.
    unsafe { libc::geteuid() == 0 }
}

fn kill(pid: libc::pid_t, signal: libc::c_int) -> libc::c_int {
    assert!(
        !(-1..=1).contains(&pid),
        "a test must not signal all processes or pid 1"
    );
    // SAFETY: plain numbers.
    unsafe { libc::kill(pid, signal) }
}

fn raw(pid: u32) -> libc::pid_t {
    pid.try_into().expect("a possible process id")
}

/// A terminal with a program, which is the leader of a new session.
pub(crate) struct Terminal {
    pub(crate) process: Process,
    keyboard: Option<File>,
    screen: Vec<u8>,
}

impl Terminal {
    pub(crate) fn start(mut launch: Launch) -> Self {
        let (ours, theirs) = open_terminal().expect("a terminal");
        let copy = || theirs.try_clone().expect("a copy of the terminal");
        launch.command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: the closure only makes system calls, which is allowed between fork and exec.
        unsafe { launch.command.pre_exec(lead_a_session) };
        Self {
            process: launch.spawn(),
            keyboard: Some(ours),
            screen: Vec::new(),
        }
    }

    pub(crate) fn press(&mut self, keys: &str) {
        let keyboard = self.keyboard.as_mut().expect("a connected terminal");
        keyboard
            .write_all(keys.as_bytes())
            .expect("the terminal accepts keys");
    }

    pub(crate) fn screen(&mut self) -> String {
        let mut chunk = [0; 4096];
        while let Some(Ok(count @ 1..)) = self.keyboard.as_mut().map(|end| end.read(&mut chunk)) {
            self.screen.extend_from_slice(&chunk[..count]);
        }
        String::from_utf8_lossy(&self.screen).into_owned()
    }

    pub(crate) fn until_shown(&mut self, part: &str) {
        until(format!("the terminal shows {part:?}"), || {
            self.screen().contains(part)
        });
    }

    /// Closes the terminal, which sends SIGHUP.
    pub(crate) fn hang_up(&mut self) {
        self.keyboard = None;
    }

    pub(crate) fn finish(&mut self) -> Option<i32> {
        let mut ended = None;
        until("the program on the terminal exits", || {
            self.screen();
            ended = self
                .process
                .child
                .try_wait()
                .expect("the program is waited for");
            ended.is_some()
        });
        ended.and_then(|status| status.code())
    }
}

/// Starts a new session whose controlling terminal is stdin.
fn lead_a_session() -> io::Result<()> {
    #[cfg_attr(
        target_os = "linux",
        expect(
            clippy::useless_conversion,
            reason = "the type of TIOCSCTTY differs between systems"
        )
    )]
    let control = libc::TIOCSCTTY.into();
    // SAFETY: plain numbers.
    if unsafe { libc::setsid() == -1 || libc::ioctl(0, control, 0) == -1 } {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn open_terminal() -> io::Result<(File, File)> {
    // Serializes the calls of `ptsname`, which returns memory that the next call overwrites.
    static NAME: Mutex<()> = Mutex::new(());
    let ours = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK)
        .open("/dev/ptmx")?;
    let _name = NAME.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the descriptor is open, and the name is copied while the mutex is held.
    let path = unsafe {
        let fd = ours.as_raw_fd();
        if libc::grantpt(fd) != 0 || libc::unlockpt(fd) != 0 {
            return Err(io::Error::last_os_error());
        }
        let name = libc::ptsname(fd);
        if name.is_null() {
            return Err(io::Error::last_os_error());
        }
        OsStr::from_bytes(CStr::from_ptr(name).to_bytes()).to_owned()
    };
    let theirs = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(path)?;
    Ok((ours, theirs))
}
