//! S12: `pending` and `verify`, for people and for programs.

use std::fs;

use crate::support::Place;
use testkit::UsageReceiver;

#[test]
fn what_waits_is_shown_with_its_attempts_and_its_last_error() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(500));
    place.stage(3);
    let words = ["deliver", "--to", &receiver.url, "--max-wait", "1ms"];
    assert_eq!(place.usage(&words).code, Some(1));
    let ran = place.usage(&["pending"]);
    assert_eq!(ran.code, Some(0));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("BATCH "), "{ran:?}");
    assert!(lines[1].contains("500 Internal Server Error"), "{ran:?}");
    assert!(lines[1].ends_with("(the receiver may have it)"), "{ran:?}");
    assert_eq!(lines[2], "1 batch with 3 records pending", "{ran:?}");

    let document = place.usage(&["pending", "--json"]).json();
    assert_eq!(document["version"], 1);
    assert_eq!(document["totals"]["batches"], 1);
    assert_eq!(document["totals"]["records"], 3);
    let batch = &document["batches"][0];
    assert_eq!(batch["name"].as_str(), lines[1].split(' ').next());
    assert_eq!(
        (&batch["records"], &batch["outcome_unknown"]),
        (&3.into(), &true.into())
    );
    assert!(batch["attempts"].as_u64() >= Some(1), "{batch}");
    for field in ["rounds", "first_attempt", "not_before", "last_error"] {
        assert!(batch.get(field).is_some(), "{field} in {batch}");
    }
    assert!(document.get("paused").is_some(), "{document}");
}

#[test]
fn what_is_staged_waits_too() {
    let place = Place::new();
    place.stage(3);
    let ran = place.usage(&["pending"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 staged entry not consolidated yet\n")
    );
    assert_eq!(place.usage(&["consolidate"]).code, Some(0));
    place.stage(1);
    place.stage(1);
    let ran = place.usage(&["pending"]);
    let told = "\n1 batch with 3 records pending; 2 staged entries not consolidated yet\n";
    assert!(ran.stdout.ends_with(told), "{ran:?}");
    let document = place.usage(&["pending", "--json"]).json();
    assert_eq!(document["totals"]["staged_entries"], 2, "{document}");
}

#[test]
fn the_books_balance_and_say_so() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(200));
    place.stage(5);
    assert_eq!(
        place.usage(&["deliver", "--to", &receiver.url]).code,
        Some(0)
    );
    place.stage(2);
    let ran = place.usage(&["verify"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let told = "the books balance: 7 staged = 5 delivered + 0 archived + 2 pending + 0 failed\n";
    assert_eq!(ran.stdout, told);
    let books = place.books();
    assert_eq!(
        (&books["version"], &books["balanced"]),
        (&1.into(), &true.into())
    );
    assert_eq!(
        (&books["repeated"], &books["busy"]),
        (&0.into(), &().into())
    );
    assert_eq!(books["problems"], serde_json::json!([]));
}

#[test]
fn a_flipped_byte_is_found_and_named() {
    let place = Place::new();
    place.stage(2);
    assert_eq!(place.usage(&["consolidate"]).code, Some(0));
    let name = place.files("spool").remove(0);
    let path = place.data().join("spool").join(&name);
    let text = fs::read_to_string(&path)
        .unwrap()
        .replace("\"n\":2", "\"n\":3");
    fs::write(&path, text).unwrap();
    let ran = place.usage(&["verify"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains(&name), "{ran:?}");
    assert!(
        ran.stderr.contains("llmlb: the books do not balance: "),
        "{ran:?}"
    );
    let ran = place.usage(&["verify", "--json"]);
    assert_eq!(ran.code, Some(1));
    let books = ran.json();
    assert_eq!(books["balanced"], false);
    let problem = &books["problems"][0];
    assert!(
        problem["path"].as_str().unwrap().ends_with(&name),
        "{problem}"
    );
    assert!(
        problem["what"].is_string() && problem.get("record").is_some(),
        "{problem}"
    );
}

/// S9: what cannot be read is shown, and the exit code says so.
#[test]
fn pending_exits_1_if_a_batch_cannot_be_read() {
    let place = Place::new();
    place.stage(1);
    assert_eq!(place.usage(&["consolidate"]).code, Some(0));
    assert_eq!(place.usage(&["pending"]).code, Some(0));
    let batch = place.files("spool").remove(0);
    let state = batch.replace(".json", ".state.json");
    fs::create_dir(place.data().join("spool").join(&state)).expect("in place of a file");
    let ran = place.usage(&["pending"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains(&state), "{ran:?}");
    let ran = place.usage(&["pending", "--json"]);
    let document = ran.json();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(document["totals"]["unreadable"], 1, "{document}");
}
