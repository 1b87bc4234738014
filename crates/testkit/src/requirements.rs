//! Tools and privileges that tests need, and tests that run as separate processes.

use std::fmt;
use std::io;
use std::process::{Command, Stdio};

/// Environment variable that makes skipped tests fail, for machines on which all tools are installed.
const REQUIRE: &str = "REQUIRE_TEST_TOOLS";

/// Error: a tool or privilege is missing although `REQUIRE_TEST_TOOLS` is set.
#[derive(Debug)]
pub struct Missing(String);

/// Prints that the calling test is skipped. Fails if `REQUIRE_TEST_TOOLS` is set, because a skipped
/// test would count as passed.
#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
pub fn skip(missing: &str) -> Result<(), Missing> {
    if std::env::var_os(REQUIRE).is_some() {
        return Err(Missing(missing.to_owned()));
    }
    eprintln!("skipped: {missing}");
    Ok(())
}

/// True if the program can be started. If not, the calling test is [skipped](skip).
pub fn has_tool(program: &str) -> Result<bool, Missing> {
    let mut command = Command::new(program);
    let command = command.arg("--version").stdin(Stdio::null());
    // Programs that do not know the option, such as OpenSSL 3.0, end with an error.
    let found = command.output().is_ok();
    if !found {
        skip(&format!("{program}: scripts/install-test-tools"))?;
    }
    Ok(found)
}

/// True if this process is root. If not, the calling test is [skipped](skip).
#[cfg(unix)]
pub fn has_root(purpose: &str) -> Result<bool, Missing> {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(&format!("root, {purpose}"))?;
    }
    Ok(is_root)
}

/// Runs one ignored test of the calling program under a wrapper such as `unshare`, and returns its
/// output. Fails unless exactly that test ran and passed: a test runner that finds no test of the
/// name succeeds.
pub fn run_role(wrapper: &mut Command, role: &str) -> io::Result<String> {
    let ran = wrapper
        .arg(std::env::current_exe()?)
        .args(["--exact", role, "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .output()?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let out = text(&ran.stdout);
    if ran.status.success() && out.contains("test result: ok. 1 passed") {
        return Ok(out);
    }
    let error = format!("{role}: {}\n{out}{}", ran.status, text(&ran.stderr));
    Err(io::Error::other(error))
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(missing) = self;
        write!(f, "{REQUIRE} is set, but this is missing: {missing}")
    }
}

impl std::error::Error for Missing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "run by another test as a process"]
    fn role() {}

    #[test]
    fn role_that_does_not_exist_is_a_failure() -> io::Result<()> {
        let run = |role: &str| run_role(&mut Command::new("env"), role);
        run("requirements::tests::role")?;
        let renamed = run("requirements::tests::renamed").map_err(|error| error.to_string());
        assert!(renamed.is_err_and(|error| error.contains("0 passed")));
        Ok(())
    }
}
