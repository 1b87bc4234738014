//! Budgets: the limiter and the usage records have the same number of tokens, also after `kill
//! -9`. (promises L9, L11)

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use testkit::{FakeLlm, LlmlbServer, until};

use crate::world::{World, chat, limits, send, tokens_in_report, until_idle};

/// Tokens of one request, as the fake backend reports them in its usage.
const EACH: u64 = 150;

fn spent(server: &LlmlbServer) -> u64 {
    limits(server)["spent"]["day"].as_u64().unwrap()
}

#[test]
fn spend_is_exact_across_kill_nine() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::answering("m").unwrap();
    let mut world = World::new(
        &sandbox,
        &[&backend],
        "budget_tokens = 100000000\nper = \"day\"",
    );
    world.server = "instance = \"a:1\"";
    for _ in 0..3 {
        let server = world.start();
        let before = tokens_in_report(&sandbox);
        assert_eq!(spent(&server), before, "replayed from the records");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        // The kill of the server cuts some requests, so errors are expected here.
                        let _ = server.send(&chat(""));
                    }
                });
            }
            until("requests were served", || {
                backend.count() > 0 && spent(&server) >= before + 20 * EACH
            });
            server.process.kill();
            is_over.store(true, Ordering::Relaxed);
        });
    }
    let server = world.start();
    let recorded = tokens_in_report(&sandbox);
    // A request that was admitted but not recorded when the server was killed did not reach its
    // client completely. So the restored spend must equal the recorded tokens.
    assert!(recorded >= 30 * EACH, "{recorded}");
    assert_eq!(spent(&server), recorded);
    // Consolidation moves records from staging to the totals. The spend after a restart is read
    // from both, so it must not change.
    for _ in 0..3 {
        assert_eq!(send(&server, &chat("")).status(), 200);
    }
    until_idle(&server);
    assert_eq!(spent(&server), recorded + 3 * EACH);
    sandbox.run("usage consolidate").assert_code(0);
    assert_eq!(tokens_in_report(&sandbox), recorded + 3 * EACH);
    drop(server);
    let server = world.start();
    assert_eq!(spent(&server), recorded + 3 * EACH);
}

#[test]
fn exhausted_budget_is_refused_until_the_period_ends() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::answering("m").unwrap();
    let mut world = World::new(
        &sandbox,
        &[&backend],
        "budget_tokens = 400\nper = \"month\"",
    );
    world.server = "instance = \"a:1\"";
    let server = world.start();
    let with_maximum = || send(&server, &chat(r#","max_tokens":120"#));
    assert_eq!(with_maximum().status(), 200);
    until_idle(&server);
    assert_eq!(with_maximum().status(), 200);
    until_idle(&server);
    // 300 tokens of the budget are spent, so that a maximum of 120 tokens and the prompt would
    // exceed it.
    let refused = with_maximum();
    assert_eq!(refused.status(), 429);
    let error = &refused.json()["error"];
    assert_eq!(error["type"], "insufficient_quota");
    assert_eq!(error["code"], "insufficient_quota");
    assert_eq!(
        refused.head.header("x-should-retry").as_deref(),
        Some("false")
    );
    let wait: u64 = refused.head.header("retry-after").unwrap().parse().unwrap();
    assert!(wait <= 31 * 24 * 3600, "{wait}");
    assert_eq!(limits(&server)["refused"]["budget"], 1);
    drop(server);
    // A restart must not restore the budget: the spend is read from the usage records.
    let server = world.start();
    assert_eq!(send(&server, &chat(r#","max_tokens":120"#)).status(), 429);
    assert_eq!(send(&server, &chat(r#","max_tokens":60"#)).status(), 200);
}

#[test]
fn records_of_other_servers_and_programs_count() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::answering("m").unwrap();
    let key = "budget_tokens = 1000\nper = \"day\"";
    let mut other = World::new(&sandbox, &[&backend], key);
    other.server = "instance = \"b:1\"";
    let server = other.start();
    assert_eq!(send(&server, &chat("")).status(), 200);
    until_idle(&server);
    drop(server);
    let mut stage = sandbox.command("usage stage");
    let record = "{\"key\":\"alice\",\"tokens\":700}\n";
    testkit::Finished::run_with(&mut stage, record).assert_code(0);
    let mut world = World::new(&sandbox, &[&backend], key);
    world.server = "instance = \"a:1\"";
    let server = world.start();
    assert_eq!(spent(&server), EACH + 700);
    assert_eq!(send(&server, &chat(r#","max_tokens":200"#)).status(), 429);
    // Another program stages a record while the server runs. The server must add it to the spend
    // within seconds.
    let record = "{\"key\":\"alice\",\"tokens\":10}\n";
    testkit::Finished::run_with(&mut sandbox.command("usage stage"), record).assert_code(0);
    until("the record counts", || spent(&server) == EACH + 710);
}

/// Totals limit the number of groups, and clients can invent names of models. Tokens of the groups
/// that are merged must still count for their key.
#[test]
fn spend_of_a_key_does_not_depend_on_the_number_of_groups() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::answering("m").unwrap();
    let lines = (0..5000).map(|number| {
        format!("{{\"key\":\"alice\",\"model\":\"invented-{number}\",\"tokens\":1}}\n")
    });
    let lines: String = lines.collect();
    testkit::Finished::run_with(&mut sandbox.command("usage stage"), lines).assert_code(0);
    sandbox.run("usage consolidate").assert_code(0);
    let server = World::new(&sandbox, &[&backend], "").start();
    assert_eq!(spent(&server), 5000);
}
