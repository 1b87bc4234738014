//! Records that cannot be delivered are moved to `failed/` with a reason, shown, and can be resent.
//! (promises S7, S8)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{UsageSandbox, numbers};
use testkit::{Reply, UsageReceiver};

/// Starts a receiver that rejects every batch with record 7, and returns a flag; the receiver
/// accepts the record once the test clears the flag.
fn strict() -> (UsageReceiver, Arc<AtomicBool>) {
    let is_strict = Arc::new(AtomicBool::new(true));
    let strict = Arc::clone(&is_strict);
    let receiver = UsageReceiver::judging(move |request| {
        if strict.load(Ordering::SeqCst) && numbers(request).contains(&7) {
            let body = "record 7 is bad\n\u{1b}[31m";
            Reply::response(422, &[], body)
        } else {
            Reply::response(200, &[], "")
        }
    });
    (receiver, is_strict)
}

#[test]
fn rejected_record_is_isolated_and_can_be_resent() {
    let sandbox = UsageSandbox::new();
    let (receiver, is_strict) = strict();
    sandbox.stage(20);
    let ran = sandbox.usage(&["deliver", "--to", &receiver.url]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr
            .contains("llmlb: 1 record could not be delivered; moved to "),
        "{ran:?}"
    );
    assert!(
        ran.stderr
            .contains("hint: show the reasons with `llmlb usage failed`\n"),
        "{ran:?}"
    );

    let ran = sandbox.usage(&["failed"]);
    assert_eq!(ran.code, Some(0));
    let message = "422 Unprocessable Entity: record 7 is bad  [31m";
    assert!(ran.stdout.contains(message), "{ran:?}");
    assert!(
        ran.stdout.contains("\n1 batch with 1 record in "),
        "{ran:?}"
    );

    let document = sandbox.usage(&["failed", "--json"]).json();
    assert_eq!(document["version"], 1);
    let entry = &document["failed"][0];
    assert_eq!(
        (&entry["batch"], &entry["ambiguous"]),
        (&true.into(), &false.into())
    );
    assert_eq!(entry["records"], 1);
    assert!(
        entry["at"].is_string() && entry["reason"].is_string(),
        "{entry}"
    );
    assert_eq!(document["totals"]["records"], 1);
    let name = entry["name"].as_str().unwrap();

    // Without a name and without --all, `resend` only lists the batches in `failed/` and moves
    // none.
    let ran = sandbox.usage(&["resend"]);
    assert_eq!(ran.code, Some(0));
    assert!(
        ran.stdout.contains(name) && ran.stderr.contains("resend --all"),
        "{ran:?}"
    );
    let ran = sandbox.usage(&["resend", "--all", "--dry-run"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 batch would be moved back into the spool\n")
    );
    assert_eq!(sandbox.books()["failed"], 1);

    // The receiver still rejects the record: after `resend` and another delivery, the record is in
    // `failed/` again.
    let ran = sandbox.usage(&["resend", name]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 batch moved back into the spool\n"),
        "{ran:?}"
    );
    assert_eq!(sandbox.books()["pending"], 1);
    assert_eq!(
        sandbox.usage(&["deliver", "--to", &receiver.url]).code,
        Some(1)
    );
    assert_eq!(sandbox.books()["failed"], 1);

    // Let the receiver accept the record. After `resend`, the next delivery must deliver it.
    is_strict.store(false, Ordering::SeqCst);
    assert_eq!(sandbox.usage(&["resend", "--all"]).code, Some(0));
    let ran = sandbox.usage(&["deliver", "--to", &receiver.url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let books = sandbox.books();
    assert_eq!(
        (&books["delivered"], &books["failed"]),
        (&20.into(), &0.into())
    );
    let ran = sandbox.usage(&["failed"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "no failed files\n")
    );
    let ran = sandbox.usage(&["resend"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "no batches can be resent\n")
    );
}

#[test]
fn resend_of_an_unknown_file_fails() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(1);
    let ran = sandbox.usage(&["resend", "nothing.json", "other.json"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(1), "0 batches moved back into the spool\n")
    );
    for name in ["nothing.json", "other.json"] {
        let message = format!("llmlb: {name} is neither in failed/ nor in archive/\n");
        assert!(ran.stderr.contains(&message), "{ran:?}");
    }
}

#[test]
fn staged_file_that_is_no_record_is_quarantined_and_cannot_be_resent() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(1);
    let name = "01890a5d-ac96-774b-bcce-b302099a8057.json";
    std::fs::write(sandbox.data().join("_staging").join(name), "half a rec").unwrap();
    let ran = sandbox.usage(&["deliver", "--archive"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.starts_with("1 record moved to "), "{ran:?}");
    let message = "llmlb: damaged files or lines: 1; moved to ";
    assert!(ran.stderr.contains(message), "{ran:?}");
    let ran = sandbox.usage(&["failed"]);
    assert!(
        ran.stdout.contains("1 file that could not be read in "),
        "{ran:?}"
    );
    let document = sandbox.usage(&["failed", "--json"]).json();
    let entry = &document["failed"][0];
    assert_eq!(entry["batch"], false, "{document}");
    assert!(
        entry["reason"].as_str().unwrap().contains("not a record"),
        "{entry}"
    );
    let name = entry["name"].as_str().unwrap();
    let ran = sandbox.usage(&["resend", name]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("cannot be resent: "), "{ran:?}");
}

#[test]
fn resend_fails_while_a_delivery_runs() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(1);
    assert_eq!(sandbox.usage(&["deliver", "--archive"]).code, Some(0));
    let name = sandbox.files("archive").remove(0);
    let lock = spool::DeliveryLock::acquire(&sandbox.data()).unwrap();
    let ran = sandbox.usage(&["resend", &name]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    let message = format!("pid {} is using this data directory", std::process::id());
    assert!(ran.stderr.contains(&message), "{ran:?}");
    assert!(ran.stderr.contains("hint: no batch was moved"), "{ran:?}");
    // A dry run changes nothing, so it must succeed while a delivery holds the lock.
    let ran = sandbox.usage(&["resend", "--dry-run", &name]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 batch would be moved back into the spool\n")
    );
    drop(lock);
    assert_eq!(sandbox.usage(&["resend", &name]).code, Some(0));
}
