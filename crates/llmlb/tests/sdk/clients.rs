//! One test for each client.

use std::process::Command;

use crate::tools;
use crate::world::World;
use testkit::ollama;

#[test]
fn openai_for_python_works_unmodified() {
    passes(tools::python("openai_checks.py"));
}

#[test]
fn openai_for_node_works_unmodified() {
    passes(tools::node("openai_checks.mjs"));
}

#[test]
fn anthropic_for_python_works_unmodified() {
    passes(tools::python("anthropic_checks.py"));
}

#[test]
fn anthropic_for_node_works_unmodified() {
    passes(tools::node("anthropic_checks.mjs"));
}

#[test]
fn a_newcomers_first_script_works_with_the_demo() {
    let Some(mut script) = tools::python("demo.py") else {
        return;
    };
    let place = testkit::sandbox!();
    let server = place.serve("--demo");
    script.arg(format!("http://{}/v1", server.address));
    let outcome = place.start(&mut script).finish();
    assert_eq!(
        outcome.code,
        Some(0),
        "{}{}",
        outcome.stdout,
        outcome.stderr
    );
    assert_eq!(outcome.stdout.trim_end(), "all good");
    server.until_in_flight(0);
}

#[test]
fn ollama_for_python_works_unmodified() {
    let Some(mut script) = tools::python("ollama_checks.py") else {
        return;
    };
    let place = testkit::sandbox!();
    let ollama = ollama("llama3:latest");
    let server = place.serve(&format!("--backend {}", ollama.url()));
    script.arg(format!("http://{}", server.address));
    let outcome = place.start(&mut script).finish();
    assert_eq!(
        outcome.code,
        Some(0),
        "{}{}",
        outcome.stdout,
        outcome.stderr
    );
    server.until_in_flight(0);
}

/// Runs a script, if there is a tool for it, and wants every check in it to hold.
fn passes(script: Option<Command>) {
    let Some(mut script) = script else {
        return;
    };
    let place = testkit::sandbox!();
    let world = World::start(&place);
    script.arg(world.about().to_string());
    // For one who looks into a failure: run only the checks with this in their names.
    script.args(std::env::var_os("ONLY_CHECKS"));
    let outcome = place.start(&mut script).finish();
    let (said, log) = (
        outcome.stdout + &outcome.stderr,
        world.server.process.stderr(),
    );
    assert_eq!(outcome.code, Some(0), "{said}\nThe server said:\n{log}");
    world.server.until_in_flight(0);
}
