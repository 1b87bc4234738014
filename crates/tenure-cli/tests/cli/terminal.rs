//! On a real terminal: keys that send signals, job control, colour.

use std::fs;

use crate::process::{Launch, until};
use crate::support::Place;
use crate::unix::Terminal;

/// Notes each interrupt in the file `$0`, and ends with 42 when a line is typed.
const NOTE_INTERRUPTS: &str = "
    trap 'echo interrupt >> \"$0\"' INT
    echo ready
    until read line; do :; done
    exit 42";

/// Ends with 42 when a line is typed.
const READ_A_LINE: &str = "echo ready; read line; exit 42";

fn run(here: &Place, script: &str) -> Launch {
    let launch = here.tenure("run x -- sh -c").arg(script);
    launch.arg(here.path("noted"))
}

// Command: one that the terminal sent to the whole group is not passed on again.
#[test]
fn control_c_reaches_the_command_once() {
    const TIMES: usize = 10;
    let here = Place::new();
    let mut terminal = Terminal::start(run(&here, NOTE_INTERRUPTS));
    terminal.until_shown("ready");
    let noted = || fs::read_to_string(here.path("noted")).unwrap_or_default();
    for times in 1..=TIMES {
        terminal.press("\x03");
        until("the interrupt is noted", || {
            noted().lines().count() >= times
        });
    }
    terminal.press("go\n");
    assert_eq!(terminal.finish(), Some(42));
    assert_eq!(noted(), "interrupt\n".repeat(TIMES));
    assert!(!here.has_lock_file("x"));
}

// Command: nor is it lost for a command that is no longer in the group.
#[cfg(target_os = "linux")]
#[test]
fn control_c_reaches_a_command_that_left_the_group_once() {
    let here = Place::new();
    let script = "trap 'echo interrupt >> \"$0\"' INT
                  echo ready
                  until [ -e \"$0.go\" ]; do sleep 0.02; done
                  exit 42";
    let launch = here.tenure("run x -- setsid sh -c").arg(script);
    let mut terminal = Terminal::start(launch.arg(here.path("noted")));
    terminal.until_shown("ready");
    terminal.press("\x03");
    until("the interrupt is noted", || here.path("noted").exists());
    fs::write(here.path("noted.go"), "").unwrap();
    assert_eq!(terminal.finish(), Some(42));
    let noted = fs::read_to_string(here.path("noted")).unwrap();
    assert_eq!(noted, "interrupt\n");
}

// Command: the wrapper outlives Ctrl-C, so that the key is let go in order.
#[test]
fn control_c_that_ends_the_command_ends_the_wrapper_with_130() {
    let here = Place::new();
    let mut terminal = Terminal::start(run(&here, "echo ready; read line"));
    terminal.until_shown("ready");
    terminal.press("\x03");
    assert_eq!(terminal.finish(), Some(128 + libc::SIGINT));
    assert!(!here.has_lock_file("x"));
}

// Command: a terminal that goes away tells only the leader of the session, which is the wrapper
// here (`ssh -t host tenure run …`).
#[test]
fn a_terminal_that_goes_away_ends_the_command_too() {
    let here = Place::new();
    let script = "trap 'echo hangup > \"$0\"; exit 3' HUP
                  echo ready
                  while :; do sleep 0.05; done";
    let mut terminal = Terminal::start(run(&here, script));
    terminal.until_shown("ready");
    terminal.hang_up();
    until("the command hears of it", || here.path("noted").exists());
    assert_eq!(terminal.finish(), Some(3));
    assert!(!here.has_lock_file("x"));
}

// Command: nobody could wake a wrapper that is alone in its session, so it must not fall asleep
// when the command does not.
#[test]
fn control_z_does_not_strand_a_wrapper_that_no_shell_watches() {
    let here = Place::new();
    let mut terminal = Terminal::start(run(&here, READ_A_LINE));
    terminal.until_shown("ready");
    terminal.press("\x1a");
    terminal.until_shown("^Z");
    terminal.press("go\n");
    assert_eq!(terminal.finish(), Some(42));
    assert!(!here.has_lock_file("x"));
}

#[cfg(target_os = "linux")]
mod job_control {
    use std::fs::File;
    use std::io::Write;
    use std::path::Path;

    use super::{Terminal, until};
    use crate::process::eventually;
    use crate::support::{Place, TENURE, pid_in};
    use crate::unix::{send_to_group, state_of};

    /// Ends with 42 when a line comes out of the FIFO `$0`. It does not read from the terminal,
    /// which would stop it in the background.
    const READ_A_FIFO: &str = "echo ready; read line < \"$0\"; exit 42";

    /// A shell with job control that starts a job, waits for a line when it stops, and then lets
    /// it go on in the foreground.
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
        fn runs(&self) -> bool {
            let states = [self.wrapper, self.command].map(state_of);
            states
                .iter()
                .all(|state| matches!(state, Some('S' | 'R' | 'D')))
        }
    }

    /// Does not wait for a reader. What was written is there for as long as the FIFO is open.
    fn write_a_line(fifo: &Path) -> File {
        let mut fifo = File::options()
            .read(true)
            .write(true)
            .open(fifo)
            .expect("the FIFO");
        writeln!(fifo, "go").expect("there is room");
        fifo
    }

    fn suspended(here: &Place) -> Job {
        let made = here.program("mkfifo").arg(here.path("go")).finish();
        assert_eq!(made.code, Some(0), "{made:?}");
        let launch = here.program("sh").arg("-c").arg(SHELL).arg(READ_A_FIFO);
        let launch = launch.arg(here.path("go")).env("TENURE", TENURE);
        let mut terminal = Terminal::start(launch);
        terminal.until_shown("ready");
        let (wrapper, command) = eventually("the record names both", || {
            let record = here.record("x")?;
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

    // Command: job control works as it would without the wrapper.
    #[test]
    fn control_z_suspends_the_wrapper_and_the_command_and_fg_resumes_both() {
        let here = Place::new();
        let mut job = suspended(&here);
        job.terminal.press("now\n");
        until("both run again", || job.runs());
        let _fifo = write_a_line(&here.path("go"));
        job.terminal.until_shown("job-ended-42");
        assert!(!here.has_lock_file("x"));
    }

    // Command: a signal to the group, as `kill -CONT %1` sends it, is enough.
    #[test]
    fn a_continue_signal_to_the_group_resumes_both() {
        let here = Place::new();
        let job = suspended(&here);
        send_to_group(job.wrapper, libc::SIGCONT);
        until("both run again", || job.runs());
        let _fifo = write_a_line(&here.path("go"));
        until("the key is let go", || !here.has_lock_file("x"));
    }

    // T1: a suspended owner is still the owner, and says so.
    #[test]
    fn a_suspended_job_still_holds_its_key() {
        let here = Place::new();
        let job = suspended(&here);
        let refused = here.tenure("run x -- true").finish();
        assert_eq!(refused.code, Some(75), "{refused:?}");
        assert!(refused.stderr.contains("[suspended]"), "{refused:?}");
        assert_eq!(here.status("x")["pid"], job.wrapper);
        assert_eq!(here.status("x")["suspended"], true);
    }
}

fn status_on_a_terminal(no_color: Option<&str>) -> String {
    let here = Place::new();
    let _owner = here.hold("x");
    let mut launch = here.tenure("status");
    if let Some(value) = no_color {
        launch = launch.env("NO_COLOR", value);
    }
    let mut terminal = Terminal::start(launch);
    terminal.until_shown("held (verified)");
    assert_eq!(terminal.finish(), Some(0));
    terminal.screen()
}

// Command: colour for people.
#[test]
fn a_terminal_gets_colour() {
    let screen = status_on_a_terminal(None);
    assert!(screen.contains("\x1b["), "{screen:?}");
}

// Command: NO_COLOR
#[test]
fn no_color_is_respected_on_a_terminal() {
    let screen = status_on_a_terminal(Some("1"));
    assert!(!screen.contains('\x1b'), "{screen:?}");
}
