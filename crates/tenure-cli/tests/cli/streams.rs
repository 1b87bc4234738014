//! Input, output, arguments and environment of the command are unchanged.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;

use crate::process::{Outcome, until};
use crate::support::{Sandbox, TENURE};

/// Test input with every byte value, and more bytes than fit into a pipe.
fn every_byte() -> Vec<u8> {
    (0..=255).cycle().take(300_000).collect()
}

// The command has the input and output of the wrapper.
#[test]
fn all_bytes_of_the_input_reach_the_output() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("input"), every_byte()).unwrap();
    let input = File::open(sandbox.path("input")).unwrap();
    let outcome = sandbox.tenure("run x -- cat").stdin(input).finish();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stdout == every_byte(), "{}", outcome.stdout.len());
    assert_eq!(outcome.stderr, "");
}

#[test]
fn stderr_of_the_command_is_kept_apart_from_stdout() {
    let sandbox = Sandbox::new();
    let script = "printf 'to-out'; printf 'to-err\\n' >&2";
    let outcome = sandbox.tenure("run x -- sh -c").arg(script).finish();
    assert_eq!(outcome.text(), "to-out");
    assert_eq!(outcome.stderr, "to-err\n");
}

// `CMD ARGS…` are passed as typed, even if they look like options of `tenure`.
#[test]
fn arguments_are_passed_unchanged() {
    let sandbox = Sandbox::new();
    let odd = [
        "", " ", "a b", "-q", "--wait", "--", "$HOME", "*", "'\"\\", "\n",
    ];
    let outcome = sandbox.tenure("run x -- printf <%s>").args(odd).finish();
    let expected: String = odd.iter().flat_map(|word| ["<", word, ">"]).collect();
    assert_eq!(outcome.text(), expected);
}

// On Unix an argument may consist of any bytes, so the wrapper must not require valid UTF-8.
#[test]
fn argument_that_is_not_utf8_is_passed_unchanged() {
    let sandbox = Sandbox::new();
    let odd = OsStr::from_bytes(b"\xff\xfe\x80 caf\xe9");
    let outcome = sandbox.tenure("run x -- printf %s").arg(odd).finish();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stdout, odd.as_bytes());
}

#[test]
fn environment_and_working_directory_are_those_of_the_caller() {
    let sandbox = Sandbox::new();
    let mut launch = sandbox.tenure("run x -- sh -c").arg("pwd -P; echo $MINE");
    launch.command.current_dir(sandbox.path(""));
    let outcome = launch.env("MINE", "as it was").finish();
    let directory = fs::canonicalize(sandbox.path("")).unwrap();
    assert_eq!(
        outcome.text(),
        format!("{}\nas it was\n", directory.display())
    );
}

// T11: the command can send its fencing token with every write.
#[test]
fn command_has_the_token_of_the_lock_record_which_increases() {
    let sandbox = Sandbox::new();
    let mut last = 0;
    for _ in 0..5 {
        let script = "echo $TENURE_TOKEN; cat \"$0\"";
        let launch = sandbox.tenure("run x -- sh -c").arg(script);
        let outcome = launch.arg(sandbox.lock_file("x")).finish();
        let text = outcome.text();
        let (told, record) = text.split_once('\n').unwrap();
        assert!(record.contains(&format!("\"token\":{told},")), "{text}");
        let told: u64 = told.parse().unwrap();
        assert!(told > last, "{told} after {last}");
        last = told;
    }
}

/// Runs `tenure` with a closed stderr pipe.
fn run_without_reader(sandbox: &Sandbox, words: &str) -> Outcome {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    sandbox.tenure(words).stderr(writer).finish()
}

// T7: a warning that cannot be printed does not prevent the command from running.
#[test]
fn takeover_succeeds_with_a_closed_stderr_pipe() {
    let sandbox = Sandbox::new();
    sandbox.leave_lock_file("x", "garbage");
    let outcome = run_without_reader(&sandbox, "run x -- echo in");
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
    assert!(!sandbox.has_lock_file("x"));
}

// The exit code is correct even if the message cannot be printed.
#[test]
fn refusal_exits_with_75_with_a_closed_stderr_pipe() {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    let outcome = run_without_reader(&sandbox, "run x -- echo in");
    assert_eq!((outcome.code, outcome.text()), (Some(75), String::new()));
}

// T1, T4: a lock file with the descriptor number of a closed stream would be overwritten by the
// command's output.
#[test]
fn lock_record_survives_closed_standard_streams() {
    let sandbox = Sandbox::new();
    let noisy = "until [ -e \"$0/go\" ]; do sleep 0.02; done
                 echo noise; echo noise >&2; echo > \"$0/said\"; exec sleep 300";
    let script = "exec \"$0\" run x -- sh -c \"$1\" \"$2\" <&- >&- 2>&-";
    let launch = sandbox.program("sh").arg("-c").arg(script).arg(TENURE);
    let launch = launch.arg(noisy).arg(sandbox.path(""));
    let mut owner = sandbox.hold_with("x", launch);
    fs::write(sandbox.path("go"), "").unwrap();
    until("the command has written its output", || {
        sandbox.path("said").exists()
    });
    let status = sandbox.status("x");
    assert_eq!(status["pid"], owner.wrapper, "{status}");
    owner.process.kill();
    let refused = sandbox.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
}
