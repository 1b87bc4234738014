//! One data directory has one destination. (S11)

use std::process::Command;

use crate::support::Place;
use testkit::{Finished, UsageReceiver};

/// `llmlb serve` that is expected to be refused.
fn refused(place: &Place, settings: &[(&str, &str)]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llmlb"));
    command
        .args(["serve", "-p", "0", "--backend", "http://127.0.0.1:9"])
        .env_remove("LLMLB_USAGE_URL")
        .env("LLMLB_DATA_DIR", place.data())
        .env("LLMLB_LOCK_DIR", place.data().with_extension("locks"))
        .envs(settings.iter().copied());
    Finished::run(&mut command)
}

#[test]
fn records_staged_for_a_receiver_are_neither_archived_nor_sent_to_another() {
    let (place, other) = (Place::new(), UsageReceiver::always(200));
    // There are records for a receiver that is down, and their server has ended.
    let down = UsageReceiver::always(503);
    let server = place.serve(&[("LLMLB_USAGE_URL", &down.url)]);
    server.until("its first run", |usage| usage["last_run"].is_string());
    place.stage(3);
    drop(server);

    let none = refused(&place, &[]);
    let another = refused(&place, &[("LLMLB_USAGE_URL", &other.url)]);
    let by_hand = place.usage(&["deliver", "--to", &other.url]);
    let archive = place.usage(&["deliver", "--archive"]);
    for ran in [&none, &another, &by_hand, &archive] {
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(&down.url), "{ran:?}");
        assert!(ran.stderr.contains("--change-destination"), "{ran:?}");
    }
    for ran in [&another, &by_hand] {
        assert!(ran.stderr.contains(&other.url), "{ran:?}");
    }
    assert_eq!(other.batches().len(), 0);
    let books = place.books();
    assert_eq!(
        (&books["pending"], &books["archived"]),
        (&3.into(), &0.into())
    );
}

#[test]
fn the_destination_can_be_changed_on_purpose_and_pending_batches_go_to_the_new_one() {
    let place = Place::new();
    let (old, new) = (UsageReceiver::always(429), UsageReceiver::always(200));
    place.stage(150);
    let ran = place.usage(&["deliver", "--to", &old.url]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let words = ["deliver", "--to", &new.url, "--change-destination"];
    let ran = place.usage(&words);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told = format!("destination changed from {} to {}", old.url, new.url);
    assert!(ran.stderr.contains(&told), "{ran:?}");
    assert_eq!(new.numbers().len(), 150);
    assert_eq!(place.usage(&["deliver", "--to", &old.url]).code, Some(1));
    assert_eq!(place.usage(&["deliver", "--to", &new.url]).code, Some(0));
    // And back to none.
    place.stage(1);
    let ran = place.usage(&["deliver", "--archive", "--change-destination"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(place.books()["archived"], 1);
}

#[test]
fn a_batch_that_the_old_destination_may_have_does_not_go_to_the_new_one() {
    let place = Place::new();
    let (old, new) = (UsageReceiver::always(500), UsageReceiver::always(200));
    place.stage(2);
    assert_eq!(place.usage(&["deliver", "--to", &old.url]).code, Some(1));
    let ran = place.usage(&["deliver", "--to", &new.url, "--change-destination"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(new.batches().len(), 0);
    let failed = place.usage(&["failed", "--json"]).json();
    assert_eq!(failed["failed"][0]["ambiguous"], true, "{failed}");
    assert_eq!(place.books()["failed"], 2);
}

#[test]
fn a_destination_that_cannot_be_understood_is_refused_and_kept() {
    let place = Place::new();
    let receiver = UsageReceiver::always(200);
    place.stage(1);
    let file = place.data().join("destination.json");
    std::fs::write(&file, "{\"version\":2}\n").unwrap();
    let ran = place.usage(&["deliver", "--to", &receiver.url]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("destination.json"), "{ran:?}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "{\"version\":2}\n");
    assert_eq!(receiver.batches().len(), 0);
}
