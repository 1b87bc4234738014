//! Tests of wrong usage, help and completions of `tenure`.

use std::path::Path;

use crate::process::Outcome;
use crate::support::{Sandbox, TENURE};

fn refused(words: &str) -> Outcome {
    let sandbox = Sandbox::new();
    let outcome = sandbox.tenure(words).finish();
    assert_eq!(outcome.code, Some(2), "{words:?}: {outcome:?}");
    assert_eq!(outcome.text(), "", "{words:?}: data goes to stdout alone");
    assert!(!outcome.stderr.is_empty(), "{words:?}");
    assert!(
        !sandbox.locks().exists(),
        "{words:?}: something was created"
    );
    outcome
}

fn assert_names(outcome: &Outcome, part: &str) {
    assert!(outcome.stderr.contains(part), "{part:?} in {outcome:?}");
}

#[test]
fn missing_verb_is_wrong_usage_and_prints_help() {
    let outcome = refused("");
    assert_names(&outcome, "Usage: tenure");
    for verb in ["run", "status", "stop"] {
        assert_names(&outcome, verb);
    }
}

#[test]
fn unknown_verb_is_wrong_usage() {
    assert_names(&refused("walk x"), "walk");
}

#[test]
fn two_keys_are_wrong_usage() {
    assert_names(&refused("run x --port 80 -- true"), "--port");
    refused("run --file f --port 80 -- true");
    refused("stop x --port 80");
    refused("stop x y");
}

#[test]
fn invalid_port_is_wrong_usage() {
    assert_names(&refused("run --port 70000 -- true"), "70000");
    refused("stop --port -1");
    refused("status --port http");
}

// The name of a key becomes a file name, so it must not contain a path.
#[test]
fn name_with_a_path_in_it_is_wrong_usage() {
    for words in ["run ../x -- true", "stop ../x", "status ../x"] {
        assert_names(&refused(words), "../x");
    }
}

#[test]
fn invalid_number_of_seconds_is_wrong_usage() {
    assert_names(&refused("run --wait=soon x -- true"), "soon");
    refused("run --wait=-1 x -- true");
    refused("stop --timeout later x");
}

#[test]
fn missing_dashes_or_command_is_wrong_usage() {
    refused("run x true");
    refused("run x --");
    refused("run x");
}

#[test]
fn exit_code_above_255_is_wrong_usage() {
    assert_names(&refused("run -E 256 x -- true"), "256");
}

// `stop` needs a key.
#[test]
fn stop_without_a_key_is_wrong_usage() {
    assert_names(&refused("stop"), "NAME");
}

#[test]
fn help_succeeds_and_has_examples() {
    let sandbox = Sandbox::new();
    for words in ["--help", "run --help", "status --help", "stop --help"] {
        let outcome = sandbox.tenure(words).finish();
        assert_eq!(outcome.code, Some(0), "{words}: {outcome:?}");
        assert!(outcome.text().contains("Examples:"), "{words}: {outcome:?}");
        assert!(outcome.text().contains("Exit codes:"), "{words}");
        assert_eq!(outcome.stderr, "", "{words}");
    }
}

// `--version`
#[test]
fn version_is_printed() {
    let outcome = Sandbox::new().tenure("--version").finish();
    assert_eq!(outcome.code, Some(0));
    let expected = format!("tenure {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(outcome.text(), expected);
}

#[test]
fn completion_script_of_each_shell_contains_the_verbs() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let outcome = sandbox.tenure("completions").arg(shell).finish();
        assert_eq!(outcome.code, Some(0), "{shell}: {}", outcome.stderr);
        for part in ["tenure", "run", "status", "stop", "wait"] {
            assert!(outcome.text().contains(part), "{part} for {shell}");
        }
        assert_eq!(outcome.stderr, "", "{shell}");
    }
}

#[test]
fn unknown_shell_is_wrong_usage() {
    let outcome = Sandbox::new().tenure("completions tcl").finish();
    assert_eq!((outcome.code, outcome.text()), (Some(2), String::new()));
    assert!(outcome.stderr.contains("tcl"), "{outcome:?}");
}

// The most likely mistakes in a command line are rejected with a hint that names the correct form.
#[test]
fn missing_separator_or_equals_sign_has_a_hint() {
    assert_names(&refused("run backup echo hi"), "comes after `--`");
    assert_names(&refused("run backup"), "comes after `--`");
    assert_names(&refused("run --wait 60 -- true"), "--wait=60");
    assert_names(&refused("run --port 0 -- true"), "0");
}

#[test]
fn help_screens_are_those_of_the_snapshot() {
    let snapshot = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/help.txt");
    testkit::help::assert_screens(TENURE, &snapshot);
}
