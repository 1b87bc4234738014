//! The official client works as it is. (L5, L14)

use std::path::Path;
use std::process::Command;

use crate::support::Place;

#[test]
fn the_official_python_client_works_unmodified() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("test-python/bin/python");
    if !python.exists() {
        assert!(
            std::env::var_os("REQUIRE_TEST_TOOLS").is_none(),
            "{} is missing; scripts/install-test-tools makes it",
            python.display()
        );
        eprintln!("skipped: scripts/install-test-tools installs the client");
        return;
    }
    let place = Place::new();
    let server = place.serve("--demo");
    let mut command = Command::new(python);
    command
        .arg(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/serve/openai_client.py"
        ))
        .arg(format!("http://{}/v1", server.address));
    let outcome = place.start(&mut command).finish();
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.out, outcome.err);
    assert_eq!(outcome.out.trim_end(), "all good");
    server.until_in_flight(0);
}
