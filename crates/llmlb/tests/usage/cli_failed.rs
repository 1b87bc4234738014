//! S7, S8: what cannot be delivered is set aside with a reason, shown, and can be resent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Place, numbers};
use testkit::{Reply, UsageReceiver};

/// A receiver that refuses every batch with record 7 in it, for as long as it is strict.
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
fn one_bad_record_stands_alone_and_can_be_resent_once_it_is_accepted() {
    let place = Place::new();
    let (receiver, is_strict) = strict();
    place.stage(20);
    let ran = place.usage(&["deliver", "--to", &receiver.url]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr
            .contains("llmlb: 1 record could not be delivered and moved to "),
        "{ran:?}"
    );
    assert!(
        ran.stderr
            .contains("hint: show the reasons with `llmlb usage failed`\n"),
        "{ran:?}"
    );

    let ran = place.usage(&["failed"]);
    assert_eq!(ran.code, Some(0));
    let told = "422 Unprocessable Entity: record 7 is bad  [31m";
    assert!(ran.stdout.contains(told), "{ran:?}");
    assert!(
        ran.stdout.contains("\n1 batch with 1 record in "),
        "{ran:?}"
    );

    let document = place.usage(&["failed", "--json"]).json();
    assert_eq!(document["version"], 1);
    let one = &document["failed"][0];
    assert_eq!(
        (&one["batch"], &one["ambiguous"]),
        (&true.into(), &false.into())
    );
    assert_eq!(one["records"], 1);
    assert!(one["at"].is_string() && one["reason"].is_string(), "{one}");
    assert_eq!(document["totals"]["records"], 1);
    let name = one["name"].as_str().unwrap();

    // Only a look.
    let ran = place.usage(&["resend"]);
    assert_eq!(ran.code, Some(0));
    assert!(
        ran.stdout.contains(name) && ran.stderr.contains("resend --all"),
        "{ran:?}"
    );
    let ran = place.usage(&["resend", "--all", "--dry-run"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 batch would be moved back into the spool\n")
    );
    assert_eq!(place.books()["failed"], 1);

    // It fails again for the same reason.
    let ran = place.usage(&["resend", name]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 batch moved back into the spool\n"),
        "{ran:?}"
    );
    assert_eq!(place.books()["pending"], 1);
    assert_eq!(
        place.usage(&["deliver", "--to", &receiver.url]).code,
        Some(1)
    );
    assert_eq!(place.books()["failed"], 1);

    // Until the receiver is mended.
    is_strict.store(false, Ordering::SeqCst);
    assert_eq!(place.usage(&["resend", "--all"]).code, Some(0));
    let ran = place.usage(&["deliver", "--to", &receiver.url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let books = place.books();
    assert_eq!(
        (&books["delivered"], &books["failed"]),
        (&20.into(), &0.into())
    );
    let ran = place.usage(&["failed"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "no failed files\n")
    );
    let ran = place.usage(&["resend"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "no batches can be resent\n")
    );
}

#[test]
fn what_is_not_there_cannot_be_resent() {
    let place = Place::new();
    place.stage(1);
    let ran = place.usage(&["resend", "nothing.json", "other.json"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(1), "0 batches moved back into the spool\n")
    );
    for name in ["nothing.json", "other.json"] {
        let told = format!("llmlb: {name} is neither in failed/ nor in archive/\n");
        assert!(ran.stderr.contains(&told), "{ran:?}");
    }
}

#[test]
fn a_dropped_file_that_is_no_record_is_set_aside_and_cannot_be_resent() {
    let place = Place::new();
    place.stage(1);
    let name = "01890a5d-ac96-774b-bcce-b302099a8057.json";
    std::fs::write(place.data().join("_staging").join(name), "half a rec").unwrap();
    let ran = place.usage(&["deliver", "--archive"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stdout.starts_with("1 record moved to "), "{ran:?}");
    let told = "llmlb: damaged files or lines: 1; moved to ";
    assert!(ran.stderr.contains(told), "{ran:?}");
    let ran = place.usage(&["failed"]);
    assert!(
        ran.stdout.contains("1 file that could not be read in "),
        "{ran:?}"
    );
    let document = place.usage(&["failed", "--json"]).json();
    let one = &document["failed"][0];
    assert_eq!(one["batch"], false, "{document}");
    assert!(
        one["reason"].as_str().unwrap().contains("not a record"),
        "{one}"
    );
    let name = one["name"].as_str().unwrap();
    let ran = place.usage(&["resend", name]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("cannot be resent: "), "{ran:?}");
}

#[test]
fn nothing_is_put_back_while_somebody_delivers() {
    let place = Place::new();
    place.stage(1);
    assert_eq!(place.usage(&["deliver", "--archive"]).code, Some(0));
    let name = place.files("archive").remove(0);
    let lock = spool::DeliveryLock::acquire(&place.data()).unwrap();
    let ran = place.usage(&["resend", &name]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
    let told = format!(
        "pid {} is using this data directory",
        std::process::id()
    );
    assert!(ran.stderr.contains(&told), "{ran:?}");
    assert!(ran.stderr.contains("hint: no batch was moved"), "{ran:?}");
    // Looking is free.
    let ran = place.usage(&["resend", "--dry-run", &name]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "1 batch would be moved back into the spool\n")
    );
    drop(lock);
    assert_eq!(place.usage(&["resend", &name]).code, Some(0));
}
