//! What goes in and out of the command is not touched.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;

use crate::process::{Outcome, until};
use crate::support::{Place, TENURE};

/// Every byte, and more than fits into a pipe.
fn every_byte() -> Vec<u8> {
    (0..=255).cycle().take(300_000).collect()
}

// Command: the command has the wrapper's own input and output.
#[test]
fn every_byte_of_the_input_reaches_the_output() {
    let here = Place::new();
    fs::write(here.path("input"), every_byte()).unwrap();
    let input = File::open(here.path("input")).unwrap();
    let outcome = here.tenure("run x -- cat").stdin(input).finish();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout == every_byte(), "{}", outcome.stdout.len());
    assert_eq!(outcome.stderr, "");
}

// Command: messages are the command's own, and nothing is added.
#[test]
fn errors_of_the_command_go_to_stderr_alone() {
    let here = Place::new();
    let script = "printf 'to-out'; printf 'to-err\\n' >&2";
    let outcome = here.tenure("run x -- sh -c").arg(script).finish();
    assert_eq!(outcome.text(), "to-out");
    assert_eq!(outcome.stderr, "to-err\n");
}

// Command: `CMD ARGS…` as they were typed, options of ours among them.
#[test]
fn arguments_are_passed_as_they_are() {
    let here = Place::new();
    let odd = [
        "", " ", "a b", "-q", "--wait", "--", "$HOME", "*", "'\"\\", "\n",
    ];
    let outcome = here.tenure("run x -- printf <%s>").args(odd).finish();
    let expected: String = odd.iter().flat_map(|word| ["<", word, ">"]).collect();
    assert_eq!(outcome.text(), expected);
}

// Command: arguments are bytes.
#[test]
fn an_argument_that_is_not_utf8_is_passed_as_it_is() {
    let here = Place::new();
    let odd = OsStr::from_bytes(b"\xff\xfe\x80 caf\xe9");
    let outcome = here.tenure("run x -- printf %s").arg(odd).finish();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, odd.as_bytes());
}

// Command: the environment and the working directory are the caller's.
#[test]
fn the_environment_and_the_working_directory_are_passed_on() {
    let here = Place::new();
    let mut launch = here.tenure("run x -- sh -c").arg("pwd -P; echo $MINE");
    launch.command.current_dir(here.path(""));
    let outcome = launch.env("MINE", "as it was").finish();
    let directory = fs::canonicalize(here.path("")).unwrap();
    assert_eq!(
        outcome.text(),
        format!("{}\nas it was\n", directory.display())
    );
}

// T11: the command can send its token along with what it writes.
#[test]
fn the_command_is_told_the_token_in_the_record_and_it_rises() {
    let here = Place::new();
    let mut last = 0;
    for _ in 0..5 {
        let script = "echo $TENURE_TOKEN; cat \"$0\"";
        let launch = here.tenure("run x -- sh -c").arg(script);
        let outcome = launch.arg(here.lock_file("x")).finish();
        let text = outcome.text();
        let (told, record) = text.split_once('\n').unwrap();
        assert!(record.contains(&format!("\"token\":{told},")), "{text}");
        let told: u64 = told.parse().unwrap();
        assert!(told > last, "{told} after {last}");
        last = told;
    }
}

/// Runs a command with nobody to read the messages.
fn run_without_reader(here: &Place, words: &str) -> Outcome {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    here.tenure(words).stderr(writer).finish()
}

// T7: a warning that nobody can read does not keep the command from running.
#[test]
fn a_takeover_works_though_nobody_reads_the_warning() {
    let here = Place::new();
    here.leave_lock_file("x", "garbage");
    let outcome = run_without_reader(&here, "run x -- echo in");
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
    assert!(!here.has_lock_file("x"));
}

// Command: the code says it, whether or not anyone reads the message.
#[test]
fn a_refusal_has_its_code_though_nobody_reads_the_message() {
    let here = Place::new();
    let _owner = here.hold("x");
    let outcome = run_without_reader(&here, "run x -- echo in");
    assert_eq!((outcome.code, outcome.text()), (Some(75), String::new()));
}

// T1, T4: were the lock file opened in place of a closed stream, the command would write into it.
#[test]
fn closed_streams_cost_neither_the_lock_nor_the_record() {
    let here = Place::new();
    let noisy = "until [ -e \"$0/go\" ]; do sleep 0.02; done
                 echo noise; echo noise >&2; echo > \"$0/said\"; exec sleep 300";
    let script = "exec \"$0\" run x -- sh -c \"$1\" \"$2\" <&- >&- 2>&-";
    let launch = here.program("sh").arg("-c").arg(script).arg(TENURE);
    let launch = launch.arg(noisy).arg(here.path(""));
    let mut owner = here.hold_with("x", launch);
    fs::write(here.path("go"), "").unwrap();
    until("the noise is made", || here.path("said").exists());
    let status = here.status("x");
    assert_eq!(status["pid"], owner.wrapper, "{status}");
    owner.process.kill();
    let refused = here.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
}
