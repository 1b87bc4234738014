//! `llmlb usage pending` and `verify`, as text and as JSON. (promise S12)

use std::fs;

use crate::support::UsageSandbox;
use testkit::UsageReceiver;

#[test]
fn pending_batch_is_shown_with_its_attempts_and_last_error() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(500));
    sandbox.stage(3);
    let words = ["deliver", "--to", &receiver.url, "--max-wait", "1ms"];
    assert_eq!(sandbox.usage(&words).code, Some(1));
    let ran = sandbox.usage(&["pending"]);
    assert_eq!(ran.code, Some(0));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("BATCH "), "{ran:?}");
    assert!(lines[1].contains("500 Internal Server Error"), "{ran:?}");
    assert!(
        lines[1].ends_with("(the receiver may already have this batch)"),
        "{ran:?}"
    );
    assert_eq!(lines[2], "1 batch with 3 records pending", "{ran:?}");

    let document = sandbox.usage(&["pending", "--json"]).json();
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
fn staged_entries_are_shown_as_pending() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(3);
    let ran = sandbox.usage(&["pending"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 staged entry not consolidated yet\n")
    );
    assert_eq!(sandbox.usage(&["consolidate"]).code, Some(0));
    sandbox.stage(1);
    sandbox.stage(1);
    let ran = sandbox.usage(&["pending"]);
    let message = "\n1 batch with 3 records pending; 2 staged entries not consolidated yet\n";
    assert!(ran.stdout.ends_with(message), "{ran:?}");
    let document = sandbox.usage(&["pending", "--json"]).json();
    assert_eq!(document["totals"]["staged_entries"], 2, "{document}");
}

#[test]
fn verify_reports_balanced_books() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(200));
    sandbox.stage(5);
    assert_eq!(
        sandbox.usage(&["deliver", "--to", &receiver.url]).code,
        Some(0)
    );
    sandbox.stage(2);
    let ran = sandbox.usage(&["verify"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    let message = "the books balance: 7 staged = 5 delivered + 0 archived + 2 pending + 0 failed\n";
    assert_eq!(ran.stdout, message);
    let books = sandbox.books();
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
fn verify_reports_a_changed_record() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(2);
    assert_eq!(sandbox.usage(&["consolidate"]).code, Some(0));
    let name = sandbox.files("spool").remove(0);
    let path = sandbox.data().join("spool").join(&name);
    let text = fs::read_to_string(&path)
        .unwrap()
        .replace("\"n\":2", "\"n\":3");
    fs::write(&path, text).unwrap();
    let ran = sandbox.usage(&["verify"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains(&name), "{ran:?}");
    assert!(
        ran.stderr.contains("llmlb: the books do not balance: "),
        "{ran:?}"
    );
    let ran = sandbox.usage(&["verify", "--json"]);
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

/// A batch that cannot be read is listed and makes the command fail. (promise S9)
#[test]
fn pending_exits_1_if_a_batch_cannot_be_read() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(1);
    assert_eq!(sandbox.usage(&["consolidate"]).code, Some(0));
    assert_eq!(sandbox.usage(&["pending"]).code, Some(0));
    let batch = sandbox.files("spool").remove(0);
    let state = batch.replace(".json", ".state.json");
    fs::create_dir(sandbox.data().join("spool").join(&state))
        .expect("a directory in place of the file");
    let ran = sandbox.usage(&["pending"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.contains(&state), "{ran:?}");
    let ran = sandbox.usage(&["pending", "--json"]);
    let document = ran.json();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(document["totals"]["unreadable"], 1, "{document}");
}
