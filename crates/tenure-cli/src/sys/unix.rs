//! Forwards signals from the wrapper to the command.
//!
//! Signals are caught by handlers instead of being blocked: `exec` resets handlers to the default,
//! while the command would inherit a blocked mask. An ignored signal stays ignored, for the command
//! too (`nohup`).

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use super::watchdog::{self, Order};

/// Signals that are forwarded to the command; `rare` returns further ones. All signals that a user
/// or another program sends are forwarded. Signals that the kernel sends for an action of the
/// wrapper itself are not (faults, exits of children, terminal access).
const COMMON: [libc::c_int; 9] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGWINCH,
];

/// Returns forwarded signals that are seldom sent. Their handlers are installed only after the
/// command has started, because each handler makes the start slower.
#[cfg(target_os = "linux")]
fn rare() -> impl Iterator<Item = libc::c_int> {
    let others = [
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
    ];
    others
        .into_iter()
        .chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

#[cfg(target_os = "macos")]
fn rare() -> impl Iterator<Item = libc::c_int> {
    [
        libc::SIGALRM,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGINFO,
    ]
    .into_iter()
}

/// Pid of the command while it may be signalled: from its start until it is about to be reaped.
/// Otherwise 0, so that no signal reaches another process that gets the same pid.
static COMMAND: AtomicI32 = AtomicI32::new(0);
/// Socket to the watchdog, which forwards signals to the command; [`NO_WATCHDOG`] if the wrapper
/// forwards them itself.
static WATCHDOG: AtomicI32 = AtomicI32::new(NO_WATCHDOG);
const NO_WATCHDOG: RawFd = -1;
/// Signals that arrived before the command was started, as a set of bits. They are sent once it
/// runs.
static EARLY: AtomicU64 = AtomicU64::new(0);

/// True if SIGPIPE was ignored when the wrapper was started. The command must then ignore it too.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Ignores SIGPIPE. Otherwise a message to a closed pipe would end this process with the wrong exit
/// code.
pub(crate) fn ignore_broken_pipes() {
    let before = replace(libc::SIGPIPE, libc::SIG_IGN);
    PIPE_IGNORED.store(before == libc::SIG_IGN, Ordering::Relaxed);
}

/// Opens `/dev/null` under the numbers of standard descriptors that are closed. Otherwise a
/// connection could get such a number and receive messages. The command does not inherit these
/// descriptors.
pub(crate) fn open_standard_descriptors() -> io::Result<()> {
    for number in 0..=2 {
        // SAFETY: plain numbers and a constant text. `open` returns the lowest free number, and no
        // other thread opens files yet.
        let opened = unsafe {
            libc::fcntl(number, libc::F_GETFD) >= 0
                || libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) == number
        };
        if !opened {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Signal handlers of the wrapper. They are installed before the command starts, so that no signal
/// is lost.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Signals that were ignored when this process was started. The command must ignore them too.
    ignored: Vec<libc::c_int>,
}

impl Relay {
    pub(crate) fn install() -> Self {
        COMMON.into_iter().for_each(catch);
        // SIGCHLD gets its default action here: while it is ignored, the kernel discards the
        // command's exit code. The standard library resets SIGPIPE when it starts a command.
        // `prepare` therefore restores both signals for the command.
        let child_ignored = replace(libc::SIGCHLD, libc::SIG_DFL) == libc::SIG_IGN;
        let pipe_ignored = PIPE_IGNORED.load(Ordering::Relaxed);
        let ignored = [
            (libc::SIGCHLD, child_ignored),
            (libc::SIGPIPE, pipe_ignored),
        ];
        Self {
            ignored: ignored
                .into_iter()
                .filter(|(_, was)| *was)
                .map(|(signal, _)| signal)
                .collect(),
        }
    }

    /// Lets the command inherit the signal settings with which this process was started.
    pub(crate) fn prepare(&self, command: &mut Command) {
        if self.ignored.is_empty() {
            return;
        }
        let ignored = self.ignored.clone();
        let restore = move || {
            for signal in &ignored {
                replace(*signal, libc::SIG_IGN);
            }
            Ok(())
        };
        // SAFETY: the closure only calls sigaction between fork and exec.
        unsafe { command.pre_exec(restore) };
    }

    /// Returns the signals that the command must ignore because the caller of the wrapper ignored
    /// them, as a set of bits.
    pub(crate) fn ignored_signals(&self) -> u64 {
        let inherited =
            (1..=64).filter(|signal| *signal != libc::SIGPIPE && current(*signal) == libc::SIG_IGN);
        let replaced = self.ignored.iter().copied();
        inherited
            .chain(replaced)
            .map(bit)
            .fold(0, |set, bit| set | bit)
    }

    /// Forwards all signals to the watchdog from now on, also those that have arrived already. The
    /// socket must stay open.
    pub(crate) fn forward_to(&self, watchdog: RawFd) {
        WATCHDOG.store(watchdog, Ordering::SeqCst);
        let early = EARLY.swap(0, Ordering::SeqCst);
        for signal in COMMON
            .into_iter()
            .filter(|signal| early & bit(*signal) != 0)
        {
            // SAFETY: without a siginfo, the signal is sent to the watchdog.
            unsafe { deliver(signal, None) };
        }
        rare().for_each(catch);
    }

    /// Waits for the command and returns the exit code of the wrapper. Signals that arrive
    /// meanwhile are forwarded.
    pub(crate) fn wait(&self, child: &mut Child) -> io::Result<i32> {
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        COMMAND.store(pid, Ordering::SeqCst);
        let early = EARLY.swap(0, Ordering::SeqCst);
        for signal in COMMON
            .into_iter()
            .filter(|signal| early & bit(*signal) != 0)
        {
            // SAFETY: the command is a child of this process and not yet reaped.
            unsafe { libc::kill(pid, signal) };
        }
        rare().for_each(catch);
        wait_without_reaping(pid)?;
        // The pid of the command may be reused once the command is reaped below, so signals must no
        // longer be forwarded to that pid.
        COMMAND.store(0, Ordering::SeqCst);
        let status = child.wait()?;
        Ok(status
            .signal()
            .map_or_else(|| status.code().unwrap_or(1), |signal| 128 + signal))
    }
}

/// Waits until the command has exited, without reaping it. As the first process of a container the
/// wrapper also inherits orphans, which are reaped here.
fn wait_without_reaping(pid: i32) -> io::Result<()> {
    loop {
        // SAFETY: zeroed is a valid siginfo, to be filled by the call.
        let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the structure outlives the call.
        let result = unsafe {
            libc::waitid(
                libc::P_ALL,
                0,
                &raw mut ended,
                libc::WEXITED | libc::WNOWAIT,
            )
        };
        if result != 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        // SAFETY: `waitid` filled in a child's end, which has a pid.
        let ended_pid = unsafe { ended.si_pid() };
        if ended_pid == pid {
            return Ok(());
        }
        // SAFETY: reaps one orphan, whose status is not needed.
        unsafe { libc::waitpid(ended_pid, std::ptr::null_mut(), libc::WNOHANG) };
    }
}

/// Reaps orphans that have exited, but not `child`, whose exit code is read later. Only the first
/// process of a container inherits orphans.
pub(super) fn reap_orphans(child: i32) {
    loop {
        // SAFETY: zeroed is a valid siginfo, which the call fills in and which outlives it.
        let ended_pid = unsafe {
            let mut ended: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOWAIT | libc::WNOHANG;
            libc::waitid(libc::P_ALL, 0, &raw mut ended, flags);
            ended.si_pid()
        };
        if ended_pid == 0 || ended_pid == child {
            return;
        }
        // SAFETY: reaps one orphan, whose status is not needed.
        unsafe { libc::waitpid(ended_pid, std::ptr::null_mut(), libc::WNOHANG) };
    }
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; everything called here may be used in a handler.
    unsafe {
        keep_errno(|| {
            // SIGTSTP is not stored for a command that is started later: Ctrl-Z applies only to
            // processes that are running now.
            if !deliver(signal, Some(&*info)) && signal != libc::SIGTSTP {
                note_early(signal);
            }
            if signal == libc::SIGTSTP {
                stop_self();
            }
        });
    }
}

/// Sends a signal to the command, directly or through the watchdog, unless the terminal has sent it
/// too. Returns false if there is no command yet.
unsafe fn deliver(signal: libc::c_int, info: Option<&libc::siginfo_t>) -> bool {
    let watchdog = WATCHDOG.load(Ordering::SeqCst);
    if watchdog != NO_WATCHDOG {
        let order = Order::Signal {
            number: signal,
            by_terminal: info.is_some_and(|info| is_sent_to_the_group(signal, info)),
        };
        watchdog::send(watchdog, order.encode());
        return true;
    }
    let command = COMMAND.load(Ordering::SeqCst);
    if command == 0 {
        return false;
    }
    // SAFETY: the command is a child of this process and not yet reaped.
    unsafe {
        if !info.is_some_and(|info| is_sent_by_terminal(signal, info, command)) {
            libc::kill(command, signal);
        }
    }
    true
}

/// Stores a signal for the command, which has not been started yet. The signal is sent at the
/// start.
unsafe fn note_early(signal: libc::c_int) {
    EARLY.fetch_or(bit(signal), Ordering::SeqCst);
    // The command may have been started after the signal handler found none and before the signal
    // was stored. The start then overlooks the stored signal, so this function sends it.
    let started =
        COMMAND.load(Ordering::SeqCst) != 0 || WATCHDOG.load(Ordering::SeqCst) != NO_WATCHDOG;
    if started && EARLY.fetch_and(!bit(signal), Ordering::SeqCst) & bit(signal) != 0 {
        // SAFETY: the function checks that there is a command.
        unsafe { deliver(signal, None) };
    }
}

/// True if the terminal has sent the signal to the command too, so that it must not be forwarded. A
/// terminal signals its whole foreground group, which the command may have left. On hang-up it
/// signals only the session leader.
unsafe fn is_sent_by_terminal(
    signal: libc::c_int,
    info: &libc::siginfo_t,
    command: libc::pid_t,
) -> bool {
    // SAFETY: these calls only return ids.
    let same_group = unsafe { libc::getpgid(command) == libc::getpgrp() };
    same_group && is_sent_to_the_group(signal, info)
}

/// True if the terminal has sent the signal to the whole process group of this process.
fn is_sent_to_the_group(signal: libc::c_int, info: &libc::siginfo_t) -> bool {
    // SAFETY: these calls only return ids.
    let leader = unsafe { libc::getsid(0) == libc::getpid() };
    is_from_terminal(info) && !(leader && signal == libc::SIGHUP)
}

/// Stops this process too, because the shell waits for it to stop. The default action is used,
/// which the kernel skips if no shell could resume the process.
unsafe fn stop_self() {
    replace(libc::SIGTSTP, libc::SIG_DFL);
    // SAFETY: zeroed is a valid, empty set, and the process signals itself.
    unsafe {
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut only, libc::SIGTSTP);
        libc::raise(libc::SIGTSTP);
        // The signal is blocked while its handler runs. Unblocking it stops the process at this
        // line, and SIGCONT resumes it here.
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
    }
    replace(libc::SIGTSTP, handler());
}

/// Catches a signal, so that it can be forwarded to the command. An ignored signal stays ignored,
/// for the command too.
fn catch(signal: libc::c_int) {
    if replace(signal, handler()) == libc::SIG_IGN {
        replace(signal, libc::SIG_IGN);
    }
}

fn handler() -> libc::sighandler_t {
    on_signal as *const () as libc::sighandler_t
}

fn replace(signal: libc::c_int, action: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: zeroed is a valid sigaction, and the handler makes only async-signal-safe calls.
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = action;
        new.sa_flags = libc::SA_RESTART;
        if action != libc::SIG_IGN && action != libc::SIG_DFL {
            new.sa_flags |= libc::SA_SIGINFO;
        }
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &raw const new, &raw mut old);
        old.sa_sigaction
    }
}

/// Returns the handler that is set for a signal, or its default or ignoring action. The command
/// must start with the same.
fn current(signal: libc::c_int) -> libc::sighandler_t {
    // SAFETY: zeroed is a valid sigaction. It is unchanged for numbers that are no signal.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut now);
        now.sa_sigaction
    }
}

/// Ignores all signals that a wrapper forwards, and those that a terminal sends to background
/// processes. The watchdog must survive them to end the command in time.
pub(super) fn ignore_forwarded_signals() {
    for signal in COMMON
        .into_iter()
        .chain(rare())
        .chain([libc::SIGTTIN, libc::SIGTTOU])
    {
        replace(signal, libc::SIG_IGN);
    }
}

/// Ignores the signals of this set, and gives all others their default action.
pub(super) fn set_ignored_signals(ignored: u64) {
    for signal in 1..=64 {
        let action = if ignored & bit(signal) == 0 {
            libc::SIG_DFL
        } else {
            libc::SIG_IGN
        };
        replace(signal, action);
    }
}

/// Calls a handler whenever a child exits. The handler must make only async-signal-safe calls.
pub(super) fn catch_child_exits(
    handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void),
) {
    replace(libc::SIGCHLD, handler as *const () as libc::sighandler_t);
}

/// Runs a part of a signal handler and restores the error number (`errno`) afterwards. The
/// interrupted code could otherwise read an error of the handler as its own.
pub(super) fn keep_errno(run: impl FnOnce()) {
    // SAFETY: the address is valid in every thread.
    unsafe {
        let errno = errno();
        let saved = *errno;
        run();
        *errno = saved;
    }
}

fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// True if the kernel sent the signal, as it does for keys pressed on the terminal. A signal from a
/// process is always forwarded to the command.
#[cfg(target_os = "linux")]
fn is_from_terminal(info: &libc::siginfo_t) -> bool {
    info.si_code == libc::SI_KERNEL
}

/// True if no process sent the signal. macOS does not mark signals of the terminal, but only they
/// have no sender.
#[cfg(target_os = "macos")]
fn is_from_terminal(info: &libc::siginfo_t) -> bool {
    info.si_pid == 0
}

#[cfg(target_os = "linux")]
unsafe fn errno() -> *mut libc::c_int {
    // SAFETY: always a valid, thread-local address.
    unsafe { libc::__errno_location() }
}

#[cfg(target_os = "macos")]
unsafe fn errno() -> *mut libc::c_int {
    // SAFETY: always a valid, thread-local address.
    unsafe { libc::__error() }
}
