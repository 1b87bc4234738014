//! Python and Node with the official clients, where `scripts/install-test-tools` put them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a script of this directory with Python; `None` if there is none.
pub(crate) fn python(script: &str) -> Option<Command> {
    let python = installed("bin/python")?;
    Some(command(&python, &["python", script]))
}

/// Runs a script of this directory with Node; `None` if there is none.
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

#[expect(
    clippy::print_stderr,
    reason = "who runs the tests learns what they did not see"
)]
fn missing<T>(what: &str) -> Option<T> {
    assert!(
        std::env::var_os("REQUIRE_TEST_TOOLS").is_none(),
        "{what} is missing; scripts/install-test-tools makes it"
    );
    eprintln!("skipped: scripts/install-test-tools installs the clients");
    None
}

/// With nothing in its environment that clients look at: proxies, keys, addresses.
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
