//! Tests on a real terminal: keys that send signals, job control, colour.

use std::fs;

use crate::process::{Launch, until};
use crate::support::Sandbox;
use crate::unix::Terminal;

/// Script that appends a line to the file `$0` for each interrupt, and exits with 42 when it reads
/// a line.
const NOTE_INTERRUPTS: &str = "
    trap 'echo interrupt >> \"$0\"' INT
    echo ready
    until read line; do :; done
    exit 42";

/// Shell script that exits with 42 when it reads a line.
const READ_A_LINE: &str = "echo ready; read line; exit 42";

fn run(sandbox: &Sandbox, script: &str) -> Launch {
    let launch = sandbox.tenure("run x -- sh -c").arg(script);
    launch.arg(sandbox.path("noted"))
}

// A signal that the terminal sent to the whole group is not forwarded again.
#[test]
fn control_c_reaches_the_command_once() {
    const TIMES: usize = 10;
    let sandbox = Sandbox::new();
    let mut terminal = Terminal::start(run(&sandbox, NOTE_INTERRUPTS));
    terminal.until_shown("ready");
    let noted = || fs::read_to_string(sandbox.path("noted")).unwrap_or_default();
    for times in 1..=TIMES {
        terminal.press("\x03");
        until("the interrupt is noted", || {
            noted().lines().count() >= times
        });
    }
    terminal.press("go\n");
    assert_eq!(terminal.finish(), Some(42));
    assert_eq!(noted(), "interrupt\n".repeat(TIMES));
    assert!(!sandbox.has_lock_file("x"));
}

// The terminal signals only its foreground process group, so the wrapper forwards the signal to a
// command that has left the group.
#[cfg(target_os = "linux")]
#[test]
fn control_c_reaches_a_command_that_left_the_group_once() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo interrupt >> \"$0\"' INT
                  echo ready
                  until [ -e \"$0.go\" ]; do sleep 0.02; done
                  exit 42";
    let launch = sandbox.tenure("run x -- setsid sh -c").arg(script);
    let mut terminal = Terminal::start(launch.arg(sandbox.path("noted")));
    terminal.until_shown("ready");
    terminal.press("\x03");
    until("the interrupt is noted", || sandbox.path("noted").exists());
    fs::write(sandbox.path("noted.go"), "").unwrap();
    assert_eq!(terminal.finish(), Some(42));
    let noted = fs::read_to_string(sandbox.path("noted")).unwrap();
    assert_eq!(noted, "interrupt\n");
}

// The wrapper outlives Ctrl-C, so that it can release the key.
#[test]
fn control_c_that_ends_the_command_ends_the_wrapper_with_130() {
    let sandbox = Sandbox::new();
    let mut terminal = Terminal::start(run(&sandbox, "echo ready; read line"));
    terminal.until_shown("ready");
    terminal.press("\x03");
    assert_eq!(terminal.finish(), Some(128 + libc::SIGINT));
    assert!(!sandbox.has_lock_file("x"));
}

// A terminal that is closed signals only the session leader, which is the wrapper in `ssh
// -t host tenure run …`.
#[test]
fn closed_terminal_ends_the_command_too() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo hangup > \"$0\"; exit 3' HUP
                  echo ready
                  while :; do sleep 0.05; done";
    let mut terminal = Terminal::start(run(&sandbox, script));
    terminal.until_shown("ready");
    terminal.hang_up();
    until("the command receives SIGHUP", || {
        sandbox.path("noted").exists()
    });
    assert_eq!(terminal.finish(), Some(3));
    assert!(!sandbox.has_lock_file("x"));
}

// No shell could resume a wrapper that is alone in its session, so it must not stop unless
// the command stops.
#[test]
fn control_z_does_not_stop_a_wrapper_without_a_shell() {
    let sandbox = Sandbox::new();
    let mut terminal = Terminal::start(run(&sandbox, READ_A_LINE));
    terminal.until_shown("ready");
    terminal.press("\x1a");
    terminal.until_shown("^Z");
    terminal.press("go\n");
    assert_eq!(terminal.finish(), Some(42));
    assert!(!sandbox.has_lock_file("x"));
}

#[cfg(target_os = "linux")]
mod job_control {
    use std::fs::File;
    use std::io::Write;
    use std::path::Path;

    use super::{Terminal, until};
    use crate::process::eventually;
    use crate::support::{Sandbox, TENURE, pid_in};
    use crate::unix::{send_to_group, state_of};

    /// Script that exits with 42 when it reads a line from the FIFO `$0`. Reading from the terminal
    /// would stop it in the background.
    const READ_A_FIFO: &str = "echo ready; read line < \"$0\"; exit 42";

    /// Shell script with job control: starts a job, waits for a line after it has stopped, and
    /// resumes it in the foreground.
    const SHELL: &str = "
        set -m
        \"$TENURE\" run x -- sh -c \"$0\" \"$1\"
        echo job-stopped
        read line
        fg
        echo job-ended-$?";

    struct Job {
        terminal: Terminal,
        wrapper: u32,
        command: u32,
    }

    impl Job {
        fn is_running(&self) -> bool {
            let states = [self.wrapper, self.command].map(state_of);
            states
                .iter()
                .all(|state| matches!(state, Some('S' | 'R' | 'D')))
        }
    }

    /// Writes a line without waiting for a reader. The line stays available while the FIFO is open.
    fn write_a_line(fifo: &Path) -> File {
        let mut fifo = File::options()
            .read(true)
            .write(true)
            .open(fifo)
            .expect("the FIFO");
        writeln!(fifo, "go").expect("the FIFO has room");
        fifo
    }

    fn suspended(sandbox: &Sandbox) -> Job {
        let made = sandbox.program("mkfifo").arg(sandbox.path("go")).finish();
        assert_eq!(made.code, Some(0), "{made:?}");
        let launch = sandbox.program("sh").arg("-c").arg(SHELL).arg(READ_A_FIFO);
        let launch = launch.arg(sandbox.path("go")).env("TENURE", TENURE);
        let mut terminal = Terminal::start(launch);
        terminal.until_shown("ready");
        let (wrapper, command) = eventually("the record names both", || {
            let record = sandbox.record("x")?;
            Some((pid_in(&record["pid"])?, pid_in(&record["command"]["pid"])?))
        });
        terminal.press("\x1a");
        until("both are stopped", || {
            [wrapper, command].map(state_of) == [Some('T'); 2]
        });
        terminal.until_shown("job-stopped");
        Job {
            terminal,
            wrapper,
            command,
        }
    }

    // Ctrl-Z and `fg` must work as they would for the command without the wrapper.
    #[test]
    fn control_z_suspends_the_wrapper_and_the_command_and_fg_resumes_both() {
        let sandbox = Sandbox::new();
        let mut job = suspended(&sandbox);
        job.terminal.press("now\n");
        until("both are running again", || job.is_running());
        let _fifo = write_a_line(&sandbox.path("go"));
        job.terminal.until_shown("job-ended-42");
        assert!(!sandbox.has_lock_file("x"));
    }

    // SIGCONT to the process group, as `kill -CONT %1` sends it, resumes both.
    #[test]
    fn sigcont_to_the_group_resumes_wrapper_and_command() {
        let sandbox = Sandbox::new();
        let job = suspended(&sandbox);
        send_to_group(job.wrapper, libc::SIGCONT);
        until("both are running again", || job.is_running());
        let _fifo = write_a_line(&sandbox.path("go"));
        until("the key is released", || !sandbox.has_lock_file("x"));
    }

    // T1: a suspended owner keeps its key and is reported as suspended.
    #[test]
    fn suspended_job_keeps_its_key() {
        let sandbox = Sandbox::new();
        let job = suspended(&sandbox);
        let refused = sandbox.tenure("run x -- true").finish();
        assert_eq!(refused.code, Some(75), "{refused:?}");
        assert!(refused.stderr.contains("[suspended]"), "{refused:?}");
        assert_eq!(sandbox.status("x")["pid"], job.wrapper);
        assert_eq!(sandbox.status("x")["suspended"], true);
    }
}

fn status_on_a_terminal(no_color: Option<&str>) -> String {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    let mut launch = sandbox.tenure("status");
    if let Some(value) = no_color {
        launch = launch.env("NO_COLOR", value);
    }
    let mut terminal = Terminal::start(launch);
    terminal.until_shown("held (verified)");
    assert_eq!(terminal.finish(), Some(0));
    terminal.screen()
}

// A terminal gets colours.
#[test]
fn status_on_a_terminal_has_colour() {
    let screen = status_on_a_terminal(None);
    assert!(screen.contains("\x1b["), "{screen:?}");
}

// NO_COLOR
#[test]
fn no_color_disables_colour_on_a_terminal() {
    let screen = status_on_a_terminal(Some("1"));
    assert!(!screen.contains('\x1b'), "{screen:?}");
}
