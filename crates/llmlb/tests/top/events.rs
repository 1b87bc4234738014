//! `GET /dashboard/events`: one snapshot per second for all viewers, whose number is bounded.

use serde_json::Value;
use testkit::{Connection, read_chunk};

use crate::world::World;

/// Maximum number of viewers.
const MAX_VIEWERS: usize = 64;

fn viewer(world: &World) -> Connection {
    let mut viewer = Connection::open(world.server.address);
    viewer.send_get("/dashboard/events");
    viewer
}

/// Reads the next snapshot of a stream; `None` at its end.
fn next(viewer: &mut Connection) -> Option<Value> {
    loop {
        let chunk = read_chunk(&mut viewer.reader)??;
        let text = String::from_utf8(chunk).unwrap();
        if let Some(event) = text.strip_prefix("data: ") {
            return Some(serde_json::from_str(event).unwrap());
        }
    }
}

#[test]
fn viewers_share_snapshots_and_see_requests_without_asking() {
    let world = World::start();
    let mut viewers = [viewer(&world), viewer(&world)];
    for viewer in &mut viewers {
        let head = viewer.head();
        assert_eq!(head.status(), 200);
        assert_eq!(head.field("content-type"), Some("text/event-stream"));
        assert_eq!(next(viewer).unwrap()["requests"], 0);
    }
    assert_eq!(world.chat("m"), 200);
    let seen = viewers.each_mut().map(|viewer| {
        loop {
            let snapshot = next(viewer).unwrap();
            if snapshot["requests"] == 1 {
                return snapshot["at"].clone();
            }
        }
    });
    assert_eq!(seen[0], seen[1], "one snapshot for all");
}

#[test]
fn viewers_are_bounded_and_do_not_delay_a_drain() {
    let world = World::start();
    let mut viewers: Vec<_> = (0..MAX_VIEWERS).map(|_| viewer(&world)).collect();
    for viewer in &mut viewers {
        assert_eq!(viewer.head().status(), 200);
    }
    let refused = world.server.get("/dashboard/events");
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.json()["error"]["code"], "too_many_viewers");
    drop(viewers.pop());
    testkit::until("a viewer that leaves makes room", || {
        let mut viewer = viewer(&world);
        viewer.head().status() == 200
    });
    assert_eq!(world.server.stop(), Some(0));
    let log = world.server.log();
    assert!(log.contains("no requests in flight"), "{log}");
    for viewer in &mut viewers {
        while next(viewer).is_some() {}
    }
}

#[test]
fn other_machines_see_no_snapshot_without_an_admin_key() {
    let world = World::start();
    for path in ["/dashboard/snapshot", "/dashboard/events"] {
        let request = testkit::Request::get(path).field("x-forwarded-for", "192.0.2.7");
        let refused = world.server.send(&request).unwrap();
        assert_eq!(
            (refused.status(), refused.error_code()),
            (403, "forbidden".to_owned())
        );
    }
}
