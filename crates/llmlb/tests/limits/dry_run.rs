//! Dry-run mode serves every request and counts those that would be refused.

use testkit::FakeLlm;

use crate::world::{World, chat, limits, send};

#[test]
fn dry_run_serves_requests_and_counts_those_beyond_the_limit() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::answering("m").unwrap();
    let mut world = World::new(&sandbox, &[&backend], "rpm = 2");
    world.server = "limits = \"dry-run\"";
    let server = world.start();
    for _ in 0..5 {
        assert_eq!(send(&server, &chat("")).status(), 200);
    }
    assert_eq!(server.status()["limits"]["mode"], "dry-run");
    let status = limits(&server);
    assert_eq!(status["would_refuse"]["requests"], 3, "{status}");
    assert_eq!(status["refused"]["requests"], 0);
    assert_eq!(status["spent"]["day"], 5 * 150);
    let log = server.log();
    assert!(
        log.contains("`alice` exceeds its limit on requests per min"),
        "{log}"
    );
    assert!(!log.contains(crate::world::SECRET));
}
