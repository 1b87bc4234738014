//! What was typed wrong, help, and completions.

use crate::process::Outcome;
use crate::support::Place;

fn refused(words: &str) -> Outcome {
    let here = Place::new();
    let outcome = here.tenure(words).finish();
    assert_eq!(outcome.code, Some(2), "{words:?}: {outcome:?}");
    assert_eq!(outcome.text(), "", "{words:?}: data goes to stdout alone");
    assert!(!outcome.stderr.is_empty(), "{words:?}");
    assert!(!here.locks().exists(), "{words:?}: something was created");
    outcome
}

fn assert_names(outcome: &Outcome, part: &str) {
    assert!(outcome.stderr.contains(part), "{part:?} in {outcome:?}");
}

// Command: no verb: short help, exit 2.
#[test]
fn no_verb_is_wrong_usage_and_shows_help() {
    let outcome = refused("");
    assert_names(&outcome, "Usage: tenure");
    for verb in ["run", "status", "stop"] {
        assert_names(&outcome, verb);
    }
}

// Command: exit 2 for wrong usage.
#[test]
fn an_unknown_verb_is_wrong_usage() {
    assert_names(&refused("walk x"), "walk");
}

// Command
#[test]
fn two_keys_are_wrong_usage() {
    assert_names(&refused("run x --port 80 -- true"), "--port");
    refused("run --file f --port 80 -- true");
    refused("stop x --port 80");
    refused("stop x y");
}

// Command
#[test]
fn a_number_that_is_no_port_is_wrong_usage() {
    assert_names(&refused("run --port 70000 -- true"), "70000");
    refused("stop --port -1");
    refused("status --port http");
}

// Command: a key is safe as a file name.
#[test]
fn a_name_that_leaves_its_directory_is_wrong_usage() {
    for words in ["run ../x -- true", "stop ../x", "status ../x"] {
        assert_names(&refused(words), "../x");
    }
}

// Command
#[test]
fn a_wait_that_is_no_number_is_wrong_usage() {
    assert_names(&refused("run --wait=soon x -- true"), "soon");
    refused("run --wait=-1 x -- true");
    refused("stop --timeout later x");
}

// Command: what runs comes after `--`, and there must be something.
#[test]
fn a_command_without_dashes_or_no_command_is_wrong_usage() {
    refused("run x true");
    refused("run x --");
    refused("run x");
}

// Command
#[test]
fn a_code_that_no_program_can_exit_with_is_wrong_usage() {
    assert_names(&refused("run -E 256 x -- true"), "256");
}

// Command: `stop` guesses nothing.
#[test]
fn stopping_nothing_in_particular_is_wrong_usage() {
    assert_names(&refused("stop"), "NAME");
}

// Command: help is data, with examples.
#[test]
fn help_is_printed_with_examples_and_is_no_error() {
    let here = Place::new();
    for words in ["--help", "run --help", "status --help", "stop --help"] {
        let outcome = here.tenure(words).finish();
        assert_eq!(outcome.code, Some(0), "{words}: {outcome:?}");
        assert!(outcome.text().contains("Examples:"), "{words}: {outcome:?}");
        assert!(outcome.text().contains("Exit codes:"), "{words}");
        assert_eq!(outcome.stderr, "", "{words}");
    }
}

// Command: `--version`
#[test]
fn the_version_is_printed() {
    let outcome = Place::new().tenure("--version").finish();
    assert_eq!(outcome.code, Some(0));
    let expected = format!("tenure {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(outcome.text(), expected);
}

// Command
#[test]
fn every_shell_gets_a_script_that_knows_the_verbs() {
    let here = Place::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let outcome = here.tenure("completions").arg(shell).finish();
        assert_eq!(outcome.code, Some(0), "{shell}: {}", outcome.stderr);
        for part in ["tenure", "run", "status", "stop", "wait"] {
            assert!(outcome.text().contains(part), "{part} for {shell}");
        }
        assert_eq!(outcome.stderr, "", "{shell}");
    }
}

// Command
#[test]
fn an_unknown_shell_is_wrong_usage() {
    let outcome = Place::new().tenure("completions tcl").finish();
    assert_eq!((outcome.code, outcome.text()), (Some(2), String::new()));
    assert!(outcome.stderr.contains("tcl"), "{outcome:?}");
}

// Command: the most likely slips are told how to mend them.
#[test]
fn a_forgotten_separator_and_a_forgotten_equals_sign_are_explained() {
    assert_names(&refused("run backup echo hi"), "comes after `--`");
    assert_names(&refused("run backup"), "comes after `--`");
    assert_names(&refused("run --wait 60 -- true"), "--wait=60");
    assert_names(&refused("run --port 0 -- true"), "0");
}
