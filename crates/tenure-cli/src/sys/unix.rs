//! Signals to the wrapper become signals to the command.
//!
//! Handlers, not a blocked mask: `exec` resets handlers to the default, while a blocked mask would
//! reach the command. A signal that was ignored stays ignored, for the command too (`nohup`).

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

/// What is passed on, together with `rare`: everything that a person or a program sends, and not
/// what the kernel sends for what a process did itself (faults, children, the terminal's checks).
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

/// Caught only once the command runs: every handler that is there before makes its start slower.
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

/// The command, while it can be signalled: from its start until it has ended, not yet reaped.
static COMMAND: AtomicI32 = AtomicI32::new(0);
/// Signals that came before the command was there, one bit each.
static EARLY: AtomicU64 = AtomicU64::new(0);

/// SIGPIPE was ignored when we were started.
static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);

/// Keeps a reader of our messages that went away from ending us with the wrong code.
pub(crate) fn ignore_broken_pipes() {
    let before = replace(libc::SIGPIPE, libc::SIG_IGN);
    PIPE_IGNORED.store(before == libc::SIG_IGN, Ordering::Relaxed);
}

/// Installed before the command starts, so that no signal is lost in between.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Signals that were ignored, and that starting a command would reset.
    ignored: Vec<libc::c_int>,
}

impl Relay {
    pub(crate) fn install() -> Self {
        COMMON.into_iter().for_each(catch);
        // With SIGCHLD ignored, the command's exit code would be thrown away. SIGPIPE is reset by
        // the standard library when it starts a command.
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

    /// Makes the command find the signals as we found them.
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
        // SAFETY: it calls sigaction and nothing else between fork and exec.
        unsafe { command.pre_exec(restore) };
    }

    /// Waits for the command, passing signals on, and says with what code to exit.
    pub(crate) fn wait(&self, child: &mut Child) -> io::Result<i32> {
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        COMMAND.store(pid, Ordering::SeqCst);
        let early = EARLY.swap(0, Ordering::SeqCst);
        for signal in COMMON
            .into_iter()
            .filter(|signal| early & bit(*signal) != 0)
        {
            // SAFETY: the command is our child and not yet reaped.
            unsafe { libc::kill(pid, signal) };
        }
        rare().for_each(catch);
        wait_without_reaping(pid)?;
        // From here on its number may be given to another process.
        COMMAND.store(0, Ordering::SeqCst);
        let status = child.wait()?;
        Ok(status
            .signal()
            .map_or_else(|| status.code().unwrap_or(1), |signal| 128 + signal))
    }
}

/// Returns when the command has ended. As the first process of a container we also inherit
/// orphans; those are reaped on the way.
fn wait_without_reaping(pid: i32) -> io::Result<()> {
    loop {
        // SAFETY: zeroed is a valid siginfo, to be filled by the call.
        let mut ended: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the structure is ours.
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
        let who = unsafe { ended.si_pid() };
        if who == pid {
            return Ok(());
        }
        // SAFETY: reaps that one child; its status interests nobody.
        unsafe { libc::waitpid(who, std::ptr::null_mut(), libc::WNOHANG) };
    }
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo; everything called here may be used in a handler.
    unsafe {
        let errno = errno();
        let saved = *errno;
        let command = COMMAND.load(Ordering::SeqCst);
        if command == 0 {
            // Stopping is for whoever runs now.
            if signal != libc::SIGTSTP {
                note_early(signal);
            }
        } else if !reached_by_terminal(signal, &*info, command) {
            libc::kill(command, signal);
        }
        if signal == libc::SIGTSTP {
            stop_like_everyone();
        }
        *errno = saved;
    }
}

/// Keeps a signal for the command, which is not there yet.
unsafe fn note_early(signal: libc::c_int) {
    EARLY.fetch_or(bit(signal), Ordering::SeqCst);
    // It may have come between our look and our note; then nobody else will look at the note.
    let command = COMMAND.load(Ordering::SeqCst);
    if command != 0 && EARLY.fetch_and(!bit(signal), Ordering::SeqCst) & bit(signal) != 0 {
        // SAFETY: the command is our child and not yet reaped.
        unsafe { libc::kill(command, signal) };
    }
}

/// The terminal signals the whole foreground group, the command included, unless the command left
/// our group. On hang-up it signals the session's leader alone.
unsafe fn reached_by_terminal(
    signal: libc::c_int,
    info: &libc::siginfo_t,
    command: libc::pid_t,
) -> bool {
    // SAFETY: these only ask.
    let (same_group, leader) = unsafe {
        (
            libc::getpgid(command) == libc::getpgrp(),
            libc::getsid(0) == libc::getpid(),
        )
    };
    from_terminal(info) && same_group && !(leader && signal == libc::SIGHUP)
}

/// The shell wants to see us stop as well. By the default action, which the kernel leaves out where
/// nobody could wake us again.
unsafe fn stop_like_everyone() {
    replace(libc::SIGTSTP, libc::SIG_DFL);
    // SAFETY: zeroed is a valid, empty set; the signal is our own.
    unsafe {
        let mut only: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut only, libc::SIGTSTP);
        libc::raise(libc::SIGTSTP);
        // It was held back while this handler for it ran: here we stop, and here we go on.
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const only, std::ptr::null_mut());
    }
    replace(libc::SIGTSTP, handler());
}

/// Passes a signal on, unless it is ignored.
fn catch(signal: libc::c_int) {
    if replace(signal, handler()) == libc::SIG_IGN {
        replace(signal, libc::SIG_IGN);
    }
}

fn handler() -> libc::sighandler_t {
    on_signal as *const () as libc::sighandler_t
}

/// Sets what happens on a signal, and returns what happened before.
fn replace(signal: libc::c_int, action: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: zeroed is a valid sigaction, and the handler does only what a handler may.
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

/// Signals are numbered from 1 to 64.
fn bit(signal: libc::c_int) -> u64 {
    1 << (signal - 1)
}

/// Whether the kernel sent it, as it does for the terminal.
#[cfg(target_os = "linux")]
fn from_terminal(info: &libc::siginfo_t) -> bool {
    info.si_code == libc::SI_KERNEL
}

/// macOS does not mark the terminal's signals; they alone come from no process.
#[cfg(target_os = "macos")]
fn from_terminal(info: &libc::siginfo_t) -> bool {
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
