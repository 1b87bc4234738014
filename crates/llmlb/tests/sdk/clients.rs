//! One test for each official client.

use std::process::Command;

use crate::tools;
use crate::world::World;
use testkit::{Sandbox, ollama};

#[test]
fn openai_for_python_works_unmodified() {
    assert_passes(tools::python("openai_checks.py"));
}

#[test]
fn openai_for_python_works_over_https() {
    assert_passes_over_https(tools::python("openai_checks.py"));
}

#[test]
fn openai_for_node_works_unmodified() {
    assert_passes(tools::node("openai_checks.mjs"));
}

#[test]
fn openai_for_node_works_over_https() {
    assert_passes_over_https(tools::node("openai_checks.mjs"));
}

#[test]
fn anthropic_for_python_works_unmodified() {
    assert_passes(tools::python("anthropic_checks.py"));
}

#[test]
fn anthropic_for_python_works_over_https() {
    assert_passes_over_https(tools::python("anthropic_checks.py"));
}

#[test]
fn anthropic_for_node_works_unmodified() {
    assert_passes(tools::node("anthropic_checks.mjs"));
}

#[test]
fn anthropic_for_node_works_over_https() {
    assert_passes_over_https(tools::node("anthropic_checks.mjs"));
}

#[test]
fn quick_start_script_works_with_the_demo() {
    let Some(mut script) = tools::python("demo.py") else {
        return;
    };
    let sandbox = testkit::sandbox!();
    let server = sandbox.serve("--demo");
    script.arg(format!("http://{}/v1", server.address));
    let outcome = sandbox.start(&mut script).finish();
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
    let sandbox = testkit::sandbox!();
    let ollama = ollama("llama3:latest");
    let server = sandbox.serve(&format!("--backend {}", ollama.url()));
    script.arg(format!("http://{}", server.address));
    let outcome = sandbox.start(&mut script).finish();
    assert_eq!(
        outcome.code,
        Some(0),
        "{}{}",
        outcome.stdout,
        outcome.stderr
    );
    server.until_in_flight(0);
}

/// Runs a script, unless its tool is missing, and fails unless all its checks pass.
fn assert_passes(script: Option<Command>) {
    let Some(script) = script else {
        return;
    };
    let sandbox = testkit::sandbox!();
    let world = World::start(&sandbox);
    assert_passes_in(&sandbox, &world, script);
}

/// Like [`assert_passes`], but the server serves https with a certificate of a private authority. The clients
/// learn of it from the variables that their users set.
fn assert_passes_over_https(script: Option<Command>) {
    let Some(mut script) = script else {
        return;
    };
    let sandbox = testkit::sandbox!();
    let Some(world) = World::start_https(&sandbox) else {
        return;
    };
    let authority = world.authority.as_ref().unwrap();
    script
        .env("SSL_CERT_FILE", &authority.certificate)
        .env("NODE_EXTRA_CA_CERTS", &authority.certificate);
    assert_passes_in(&sandbox, &world, script);
}

fn assert_passes_in(sandbox: &Sandbox, world: &World<'_>, mut script: Command) {
    script.arg(world.description().to_string());
    // For debugging, the variable `ONLY_CHECKS` selects the checks whose names contain its text.
    script.args(std::env::var_os("ONLY_CHECKS"));
    let outcome = sandbox.start(&mut script).finish();
    let (output, log) = (
        outcome.stdout + &outcome.stderr,
        world.server.process.stderr(),
    );
    assert_eq!(outcome.code, Some(0), "{output}\nLog of the server:\n{log}");
    world.until_idle();
}
