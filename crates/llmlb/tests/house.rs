//! Rules of the house that no compiler checks.

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

use std::fs;
use std::path::{Path, PathBuf};

/// Every source file, by its path under `src`.
fn sources() -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                walk(&path, found);
            } else {
                found.push(path);
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    walk(&root, &mut found);
    let named = |path: &PathBuf| {
        let name = path.strip_prefix(&root).unwrap().to_string_lossy();
        let text = fs::read_to_string(path).unwrap();
        (name.replace('\\', "/"), text)
    };
    found.iter().map(named).collect()
}

/// The files outside `allowed` that contain one of the texts.
fn offenders(texts: &[&str], allowed: &[&str]) -> Vec<String> {
    sources()
        .into_iter()
        .filter(|(name, _)| !allowed.iter().any(|prefix| name.starts_with(prefix)))
        .filter(|(name, _)| !name.contains("tests"))
        .filter(|(_, text)| texts.iter().any(|wanted| text.contains(wanted)))
        .map(|(name, _)| name)
        .collect()
}

#[test]
fn only_the_configuration_reads_the_environment() {
    let readers = offenders(
        &["env::var", "env::vars", "env::set_var"],
        &["config/env.rs"],
    );
    assert_eq!(readers, [""; 0]);
    assert!(
        !offenders(&["env::var"], &[]).is_empty(),
        "it is still read"
    );
}

#[test]
fn only_the_command_line_prints() {
    assert_eq!(
        offenders(&["io::stdout()", "io::stderr()"], &["cli/"]),
        [""; 0]
    );
}

#[test]
fn systems_differ_only_under_sys() {
    let differing = offenders(&["cfg(unix)", "cfg(windows)", "target_os"], &["sys/"]);
    assert_eq!(differing, [""; 0]);
}

#[test]
fn balancing_does_no_io() {
    let of_balance = |texts: &[&str]| -> Vec<String> {
        let mut names = offenders(texts, &[]);
        names.retain(|name| name.starts_with("balance/"));
        names.sort_unstable();
        names
    };
    let io = ["::net", "::fs", "::io", "hyper"];
    assert_eq!(of_balance(&io), [""; 0]);
    // A place is all that is waited for.
    let waiting = of_balance(&["async ", ".await"]);
    assert_eq!(waiting, ["balance/pool.rs", "balance/queue.rs"]);
}
