//! Signals to the wrapper become signals to the command.
//!
//! Handlers, not a blocked mask: `exec` resets handlers to the default, while a blocked mask would
//! reach the command. A signal that was ignored stays ignored, for the command too (`nohup`).

use std::io;
use std::process::Child;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// What is passed on.
const RELAYED: [libc::c_int; 9] = [
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

/// The command, while it can be signalled: from its start until it has ended, not yet reaped.
static COMMAND: AtomicI32 = AtomicI32::new(0);
/// Signals that came before the command was there.
static EARLY: AtomicU64 = AtomicU64::new(0);

/// Installed before the command starts, so that no signal is lost in between.
#[derive(Debug)]
pub(crate) struct Relay(());

impl Relay {
    pub(crate) fn install() -> Self {
        for signal in RELAYED {
            // SAFETY: zeroed is a valid sigaction, and the handler does only what a handler may.
            unsafe {
                let mut old: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, std::ptr::null(), &raw mut old) != 0
                    || old.sa_sigaction == libc::SIG_IGN
                {
                    continue;
                }
                let mut new: libc::sigaction = std::mem::zeroed();
                new.sa_sigaction = on_signal as *const () as usize;
                new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
                libc::sigaction(signal, &raw const new, std::ptr::null_mut());
            }
        }
        // If the caller ignored SIGCHLD, the command's exit code would be thrown away.
        // SAFETY: the default action needs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        Self(())
    }

    /// Waits for the command, passing signals on, and says with what code to exit.
    pub(crate) fn wait(&self, child: &mut Child) -> io::Result<i32> {
        let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
        COMMAND.store(pid, Ordering::SeqCst);
        let early = EARLY.swap(0, Ordering::SeqCst);
        for signal in RELAYED {
            if early & (1 << signal) != 0 {
                // SAFETY: the command is our child and not yet reaped.
                unsafe { libc::kill(pid, signal) };
            }
        }
        wait_without_reaping(pid)?;
        // From here on its number may be given to another process.
        COMMAND.store(0, Ordering::SeqCst);
        let status = child.wait()?;
        Ok(std::os::unix::process::ExitStatusExt::signal(&status)
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
    // SAFETY: the kernel passes a valid siginfo; kill and errno may be used in a handler.
    unsafe {
        let errno = errno();
        let saved = *errno;
        if !from_terminal(&*info) {
            match COMMAND.load(Ordering::SeqCst) {
                0 => {
                    EARLY.fetch_or(1 << signal, Ordering::SeqCst);
                    // Stored between our look and our note: the other side may have missed it.
                    let command = COMMAND.load(Ordering::SeqCst);
                    if command != 0
                        && EARLY.fetch_and(!(1 << signal), Ordering::SeqCst) & (1 << signal) != 0
                    {
                        libc::kill(command, signal);
                    }
                }
                command => {
                    libc::kill(command, signal);
                }
            }
        }
        if signal == libc::SIGTSTP {
            // The shell wants to see us stop as well.
            libc::raise(libc::SIGSTOP);
        }
        *errno = saved;
    }
}

/// The terminal signals the whole foreground group, the command included.
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
