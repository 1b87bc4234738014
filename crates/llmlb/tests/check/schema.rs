//! `llmlb check --schema`: the schema accepts valid files and rejects mistakes. (promise L12)
//!
//! `check.py` validates TOML files with the Python package jsonschema, which `scripts/install-test-tools`
//! installs.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Configuration files with a mistake, each of which the schema must reject.
const MISTAKES: &[&str] = &[
    "[server]\nport = 70000",
    "[server]\nport = \"80\"",
    "[server]\nprot = 80",
    "[serverr]\nport = 80",
    "port = 80",
    "server = 5",
    "[server]\nqueue = -1",
    "[server]\nallow_public = \"yes\"",
    "[server]\nunknown_endpoints = \"maybe\"",
    "[server]\ndrain_timeout = 30",
    "[server]\ndrain_timeout = \"30\"",
    "[server]\ndrain_timeout = \"1d\"",
    "[server]\nmax_body = \"32 MiB\"",
    "[server]\nmax_body = 0",
    "[server]\nhosts = \"a\"",
    "[server]\nhosts = [\"a\", \"a\"]",
    "[server]\nhost = \"my host\"",
    "[usage]\ntoken_env = \"sk-secret\"",
    "[usage]\nurl = \"ftp://b.example\"",
    "[usage]\narchive_max_age = 90",
    "[[backend]]\nname = \"a\"",
    "[[backend]]\nurl = \"gpu:8000\"",
    "[[backend]]\nurl = \"http://gpu\"\nweight = 0",
    "[[backend]]\nurl = \"http://gpu\"\nkind = \"unknown\"",
    "[[backend]]\nurl = \"http://gpu\"\nmodels = []",
    "[[backend]]\nurl = \"http://gpu\"\nonly_models = [\"a*b\"]",
    "[[backend]]\nurl = \"http://gpu\"\nweigth = 2",
    "[backend]\nurl = \"http://gpu\"",
    "[aliases]\na = []",
    "[aliases]\na = 5",
    "[[key]]\nsha256 = \"00\"\nname = \"k\"",
    "[[key]]\nrpm = 5",
    "[[key]]\nname = \"k\"\nrpm = 0",
    "[[key]]\nname = \"k\"\nper = \"year\"",
];

/// Configuration files that the schema must accept, in addition to the examples of the
/// documentation.
const VALID: &[&str] = &[
    "",
    "[server]\nmax_body = 1024\nidle_timeout = \"500ms\"\nhost = \"LocalHost\"",
    "[server]\nhost = \"::1\"\nhosts = []",
    "[[backend]]\nurl = \"HTTPS://gpu/v1\"\nonly_models = [\"*\", \"a*\"]",
    "[usage]\narchive_max_age = \"90d\"\narchive_max_size = \"500MB\"",
    "[aliases]\n\"a/b\" = \"m\"\nc = [\"m\", \"n\"]",
];

/// Returns for each file true if the schema accepts it; `None` if Python or the package is not installed.
fn accepted(schema: &str, files: &[&str]) -> Option<Vec<bool>> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("test-python/bin/python");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/check/check.py");
    let input = serde_json::json!({ "schema": schema, "files": files }).to_string();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("input.json");
    std::fs::write(&path, input).unwrap();
    let ran = Command::new(&python).arg(&script).arg(&path).output();
    let Ok(ran) = ran else {
        testkit::skip("the Python package jsonschema: scripts/install-test-tools").unwrap();
        return None;
    };
    let error = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{error}");
    Some(serde_json::from_slice(&ran.stdout).unwrap())
}

fn schema() -> String {
    let sandbox = testkit::sandbox!();
    let printed = sandbox.run("check --schema");
    printed.assert_code(0);
    printed.stdout
}

fn example(page: &str) -> String {
    let page = page.replace("\r\n", "\n");
    let (_, rest) = page.split_once("```toml\n").unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn schema_accepts_the_examples_of_the_documentation() {
    let pages = [
        include_str!("../../../../docs/configuration.md"),
        include_str!("../../../../docs/production.md"),
    ];
    let examples = pages.map(example);
    let files: Vec<&str> = examples.iter().map(String::as_str).collect();
    let files = [&files[..], VALID].concat();
    let Some(accepted) = accepted(&schema(), &files) else {
        return;
    };
    for (file, accepted) in files.iter().zip(accepted) {
        assert!(accepted, "rejected:\n{file}");
    }
}

#[test]
fn schema_rejects_mistakes_that_check_rejects() {
    let Some(accepted) = accepted(&schema(), MISTAKES) else {
        return;
    };
    let sandbox = testkit::sandbox!();
    for (file, accepted) in MISTAKES.iter().zip(accepted) {
        assert!(!accepted, "accepted:\n{file}");
        sandbox.file("llmlb.toml", file);
        sandbox.run("check").assert_code(1);
    }
}

#[test]
fn schema_is_a_document_of_its_own() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    assert_eq!(schema["additionalProperties"], false);
    let port = &schema["properties"]["server"]["properties"]["port"];
    assert_eq!(
        (&port["minimum"], &port["maximum"]),
        (&0.into(), &65535.into())
    );
}
