//! One process at a time delivers from a data directory, by a lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use testkit::{Gate, Reply, UsageReceiver, until};

use crate::world::World;

/// Returns a receiver that responds to its first batch only after the gate is open, and a flag that
/// is set when that batch has arrived.
fn gated_receiver() -> (UsageReceiver, Gate, Arc<AtomicBool>) {
    let (gate, has_first) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let (opened, arrived) = (gate.clone(), Arc::clone(&has_first));
    let receiver = UsageReceiver::judging(move |_| {
        if !arrived.swap(true, Ordering::SeqCst) {
            opened.wait();
        }
        Reply::response(200, &[], "")
    });
    (receiver, gate, has_first)
}

#[test]
fn run_that_finds_the_lease_held_is_skipped_and_names_the_host() {
    let Some(world) = World::new() else { return };
    let receiver = UsageReceiver::always(200);
    let deliver = ["deliver", "--to", &receiver.url];
    world.stage(1);
    world.usage(&deliver).assert_code(0);
    world.stage(2);
    let lease = world.acquire_lease();
    let host = lease.record().host().unwrap().to_owned();
    let holder = format!("PID {} on host {host} (other:1)", std::process::id());
    for words in [&deliver[..], &["consolidate"]] {
        let skipped = world.usage(words);
        skipped.assert_code(0);
        assert!(skipped.stdout.contains(&holder), "{}", skipped.output());
    }
    let resend = world.usage(&["resend", "--archived", "--all"]);
    assert!(resend.code == Some(0), "{}", resend.output());
    let json = world
        .usage(&["deliver", "--to", &receiver.url, "--json"])
        .json();
    assert_eq!(json["skipped"], true);
    assert_eq!(receiver.numbers(), [1]);
    lease.release().unwrap();
    let run = world.usage(&deliver);
    assert!(
        run.stdout.contains("delivered 2 records"),
        "{}",
        run.output()
    );
    assert!(!run.output().contains("hunter2"), "{}", run.output());
}

#[test]
fn next_process_delivers_after_the_holder_is_killed() {
    let Some(world) = World::new() else { return };
    // The process that holds the lease is killed after the receiver has accepted its first batch
    // and before the response arrives.
    let (receiver, gate, has_first) = gated_receiver();
    world.stage(5);
    let first = world.deliver_every(&receiver.url, "100ms");
    until("the first batch arrives", || {
        has_first.load(Ordering::SeqCst)
    });
    let second = world.deliver_every(&receiver.url, "100ms");
    second.until_output("is already delivering from");
    first.kill();
    gate.open();
    second.until_output("delivered 5 records");
    world.stage(1);
    until("the new record arrives", || {
        receiver.distinct_records().len() == 6
    });
    // It is unknown if the first batch was accepted, so the next process has sent it again with the
    // same idempotency key. The receiver got 11 records, 5 of them twice, and none under two keys.
    assert_eq!(receiver.repeated_records(), 0);
    assert_eq!(receiver.records().len(), 11);
    second.terminate().unwrap();
    assert_eq!(second.end(), Some(0), "{}", second.output());
    assert_eq!(world.usage(&["verify"]).code, Some(0));
}

#[test]
fn suspended_holder_sends_nothing_after_its_lease_has_ended() {
    let Some(world) = World::new() else { return };
    let (receiver, gate, has_first) = gated_receiver();
    world.stage(30);
    let words = ["deliver", "--to", &receiver.url, "--batch-size", "1"];
    let holder = world.sandbox.start(&mut world.command(&words));
    until("the first batch arrives", || {
        has_first.load(Ordering::SeqCst)
    });
    holder.signal(Signal::STOP).unwrap();
    // The lease of one second ends while its holder is suspended, so the store grants it to the
    // next `usage deliver`.
    until("the lease has ended", || {
        let skipped = world.usage(&["deliver", "--to", &receiver.url]);
        // The suspended process has lost its lease but still holds the local delivery lock, so a
        // run of another process is skipped.
        skipped
            .stdout
            .contains(&format!("PID {} is already", holder.pid()))
    });
    gate.open();
    until("the response is sent", || receiver.batches().len() == 1);
    holder.signal(Signal::CONT).unwrap();
    let ended = holder.finish();
    ended.assert_code(1);
    assert!(
        ended.stderr.contains("was lost during the run"),
        "{}",
        ended.output()
    );
    assert!(ended.stderr.contains("fleet.store"), "{}", ended.output());
    assert_eq!(
        receiver.batches().len(),
        1,
        "nothing was sent after the loss"
    );
    let run = world.usage(&["deliver", "--to", &receiver.url]);
    run.assert_code(0);
    assert_eq!(receiver.distinct_records().len(), 30);
    assert_eq!(world.usage(&["verify"]).code, Some(0));
}

#[test]
fn unreachable_store_stops_delivery_and_loses_nothing() {
    let Some(world) = World::new() else { return };
    let receiver = UsageReceiver::always(200);
    world.stage(1);
    let mut command = world.command(&["deliver", "--to", &receiver.url]);
    let port = testkit::free_port();
    command.env(
        "LLMLB_FLEET_STORE",
        format!("redis://:hunter2@127.0.0.1:{port}"),
    );
    let failed = testkit::Finished::run(&mut command);
    failed.assert_code(1);
    assert!(
        failed.stderr.contains(&port.to_string()),
        "{}",
        failed.output()
    );
    assert!(
        failed.stderr.contains("no record is lost"),
        "{}",
        failed.output()
    );
    assert!(!failed.output().contains("hunter2"), "{}", failed.output());
    assert!(receiver.batches().is_empty());
}

#[test]
fn process_with_another_store_or_none_is_refused() {
    let Some(world) = World::new() else { return };
    let receiver = UsageReceiver::always(200);
    let deliver = ["deliver", "--to", &receiver.url];
    world.stage(1);
    world.usage(&deliver).assert_code(0);
    for (store, expected) in [
        (
            Some("redis://:hunter2@127.0.0.2:1"),
            "not redis://127.0.0.2:1",
        ),
        (None, "fleet.store is not set"),
    ] {
        let mut command = world.command(&deliver);
        match store {
            Some(store) => command.env("LLMLB_FLEET_STORE", store),
            None => command.env_remove("LLMLB_FLEET_STORE"),
        };
        let refused = testkit::Finished::run(&mut command);
        refused.assert_code(1);
        let text = refused.output();
        assert!(
            text.contains(expected) && text.contains(&world.redis.shown()),
            "{text}"
        );
        assert!(text.contains("rm ") && !text.contains("hunter2"), "{text}");
    }
}

#[test]
fn stores_that_differ_in_their_prefix_are_different_stores() {
    let Some(world) = World::new() else { return };
    let receiver = UsageReceiver::always(200);
    let deliver = |options: &str| {
        let mut command = world.command(&["deliver", "--to", &receiver.url]);
        let url = format!("{}{options}", world.redis.url());
        testkit::Finished::run(command.env("LLMLB_FLEET_STORE", url))
    };
    world.stage(1);
    deliver("?prefix=a").assert_code(0);
    deliver("?prefix=a").assert_code(0);
    for other in ["", "?prefix=b"] {
        let refused = deliver(other);
        refused.assert_code(1);
        let text = refused.output();
        let expected = format!("is {}?prefix=a, not", world.redis.shown());
        assert!(text.contains(&expected), "{text}");
    }
}

#[test]
fn servers_of_a_fleet_deliver_each_record_once() {
    let Some(world) = World::new() else { return };
    let backend = testkit::backends::backend(testkit::backends::ok);
    let receiver = UsageReceiver::always(200);
    let url = world.redis.url();
    let settings = [
        ("LLMLB_FLEET_STORE", url.as_str()),
        ("LLMLB_FLEET_TTL", "1s"),
        ("LLMLB_USAGE_URL", &receiver.url),
        ("LLMLB_USAGE_EVERY", "1s"),
    ];
    let servers =
        [(); 2].map(|()| testkit::backends::serve(&world.sandbox, &[&backend], &settings));
    for server in servers.iter().cycle().take(6) {
        let answer = server.post(testkit::backends::CHAT, testkit::backends::ASK);
        assert_eq!(answer.status(), 200);
    }
    until("all records arrive", || {
        receiver.distinct_records().len() == 6
    });
    assert_eq!(receiver.repeated_records(), 0);
    let instances: std::collections::BTreeSet<String> = receiver
        .distinct_records()
        .iter()
        .map(|record| record["instance"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(instances.len(), 2, "{instances:?}");
}
