//! A data directory has one destination. (promise S11)

use std::process::Command;

use crate::support::UsageSandbox;
use testkit::{Finished, UsageReceiver};

/// Runs `llmlb serve`, which is expected to fail at its start.
fn serve_refused(sandbox: &UsageSandbox, settings: &[(&str, &str)]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmlb"));
    command
        .args(["serve", "-p", "0", "--backend", "http://127.0.0.1:9"])
        .env_remove("LLMLB_USAGE_URL")
        .env("LLMLB_DATA_DIR", sandbox.data())
        .env("LLMLB_LOCK_DIR", sandbox.data().with_extension("locks"))
        .envs(settings.iter().copied());
    Finished::run(&mut command)
}

#[test]
fn records_staged_for_a_receiver_are_neither_archived_nor_sent_to_another() {
    let (sandbox, other) = (UsageSandbox::new(), UsageReceiver::always(200));
    // Stage records for a receiver that is down. They stay in the directory after the server has
    // ended.
    let down = UsageReceiver::always(503);
    let server = sandbox.serve(&[("LLMLB_USAGE_URL", &down.url)]);
    server.until("the first run has ended", |usage| {
        usage["last_run"].is_string()
    });
    sandbox.stage(3);
    drop(server);

    let none = serve_refused(&sandbox, &[]);
    let another = serve_refused(&sandbox, &[("LLMLB_USAGE_URL", &other.url)]);
    let by_hand = sandbox.usage(&["deliver", "--to", &other.url]);
    let archive = sandbox.usage(&["deliver", "--archive"]);
    for ran in [&none, &another, &by_hand, &archive] {
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(&down.url), "{ran:?}");
        assert!(ran.stderr.contains("--change-destination"), "{ran:?}");
    }
    for ran in [&another, &by_hand] {
        assert!(ran.stderr.contains(&other.url), "{ran:?}");
    }
    assert_eq!(other.batches().len(), 0);
    let books = sandbox.books();
    assert_eq!(
        (&books["pending"], &books["archived"]),
        (&3.into(), &0.into())
    );
}

#[test]
fn changed_destination_receives_the_pending_batches() {
    let sandbox = UsageSandbox::new();
    let (old, new) = (UsageReceiver::always(429), UsageReceiver::always(200));
    sandbox.stage(150);
    let ran = sandbox.usage(&["deliver", "--to", &old.url]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let words = ["deliver", "--to", &new.url, "--change-destination"];
    let ran = sandbox.usage(&words);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let message = format!("destination changed from {} to {}", old.url, new.url);
    assert!(ran.stderr.contains(&message), "{ran:?}");
    assert_eq!(new.numbers().len(), 150);
    assert_eq!(sandbox.usage(&["deliver", "--to", &old.url]).code, Some(1));
    assert_eq!(sandbox.usage(&["deliver", "--to", &new.url]).code, Some(0));
    // Changing the destination from a receiver to the archive must be possible too, if the user
    // says so.
    sandbox.stage(1);
    let ran = sandbox.usage(&["deliver", "--archive", "--change-destination"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(sandbox.books()["archived"], 1);
}

#[test]
fn batch_that_the_old_destination_may_have_is_not_sent_to_the_new_one() {
    let sandbox = UsageSandbox::new();
    let (old, new) = (UsageReceiver::always(500), UsageReceiver::always(200));
    sandbox.stage(2);
    assert_eq!(sandbox.usage(&["deliver", "--to", &old.url]).code, Some(1));
    let ran = sandbox.usage(&["deliver", "--to", &new.url, "--change-destination"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(new.batches().len(), 0);
    let failed = sandbox.usage(&["failed", "--json"]).json();
    assert_eq!(failed["failed"][0]["ambiguous"], true, "{failed}");
    assert_eq!(sandbox.books()["failed"], 2);
}

#[test]
fn unknown_version_of_the_destination_file_is_refused_and_kept() {
    let sandbox = UsageSandbox::new();
    let receiver = UsageReceiver::always(200);
    sandbox.stage(1);
    let file = sandbox.data().join("destination.json");
    std::fs::write(&file, "{\"version\":2}\n").unwrap();
    let ran = sandbox.usage(&["deliver", "--to", &receiver.url]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("destination.json"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"version\":2}\n");
    assert_eq!(receiver.batches().len(), 0);
}
