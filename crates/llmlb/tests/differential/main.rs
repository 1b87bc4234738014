//! The usage record of a request has the endpoint and the model that independent servers parse from
//! the same request: Werkzeug, Starlette, aiohttp, Express and Go. (promises L5, L9)
//!
//! This is a small run of `scripts/differential`, which sends 10,000 requests. `run.py` is the
//! driver, `generate.py` makes the requests, `readers` has the servers.

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments of `run.py` for a small run: 500 requests, half of which are hostile. The default
/// share is a fifth, which would be few hostile requests in so small a run.
const RUN: [&str; 6] = ["--requests", "500", "--seed", "1", "--hostile", "0.5"];

#[test]
fn usage_record_equals_the_reading_of_every_independent_server() {
    let Some((python, node)) = tools() else {
        return;
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential");
    let outcome = Command::new(python)
        .arg("-B")
        .arg(here.join("run.py"))
        .args(RUN)
        .args(["--llmlb-bin", env!("CARGO_BIN_EXE_llmlb")])
        .arg("--node")
        .arg(node)
        .arg("--cache")
        .arg(target().join("differential"))
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&outcome.stdout);
    let err = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.status.code(), Some(0), "{out}{err}");
}

fn target() -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    temporary.parent().unwrap().to_owned()
}

/// Returns Python and Node with the packages of the servers, or `None` if one is missing.
#[expect(clippy::print_stderr, reason = "a skipped test is reported")]
fn tools() -> Option<(PathBuf, PathBuf)> {
    let installed = target().join("test-python");
    let readers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/differential/readers");
    let needed = [
        installed.join("bin/python"),
        installed.join("bin/node"),
        readers.join("node/node_modules/installed.json"),
    ];
    let has_go = Command::new("go").arg("version").output().is_ok();
    let missing = needed.iter().find(|path| !path.exists());
    if missing.is_none() && has_go {
        let [python, node, _] = needed;
        return Some((python, node));
    }
    assert!(
        std::env::var_os("REQUIRE_TEST_TOOLS").is_none(),
        "{} is missing\nRun: scripts/install-test-tools",
        missing.map_or("go".into(), |path| path.to_string_lossy())
    );
    eprintln!("skipped: scripts/install-test-tools installs Python, Node and Go");
    None
}
