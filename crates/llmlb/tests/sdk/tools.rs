//! Python and Node with the official clients, where `scripts/install-test-tools` put them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the command that runs a script of `python/`; `None` if Python is not installed.
pub(crate) fn python(script: &str) -> Option<Command> {
    let python = installed("bin/python")?;
    Some(command(&python, &["python", script]))
}

/// Returns the command that runs a script of `node/`; `None` if Node is not installed.
pub(crate) fn node(script: &str) -> Option<Command> {
    let node = installed("bin/node")?;
    if !here(&["node", "node_modules", "installed.json"]).exists() {
        return missing("crates/llmlb/tests/sdk/node/node_modules");
    }
    Some(command(&node, &["node", script]))
}

fn installed(name: &str) -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let program = target.join("test-python").join(name);
    if program.exists() {
        return Some(program);
    }
    missing(&program.to_string_lossy())
}

#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
fn missing<T>(tool: &str) -> Option<T> {
    assert!(
        std::env::var_os("REQUIRE_TEST_TOOLS").is_none(),
        "{tool} is missing; run scripts/install-test-tools"
    );
    eprintln!("skipped: {tool} is missing; run scripts/install-test-tools");
    None
}

/// Returns a command with an empty environment except `PATH`. Variables of the machine, such as
/// proxies or keys, would change the clients' behaviour.
fn command(program: &Path, script: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .arg(here(script))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn here(path: &[&str]) -> PathBuf {
    let mut here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk");
    here.extend(path);
    here
}
