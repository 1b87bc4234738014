//! The token is never printed and never written, whatever happens.

use std::fs;
use std::path::Path;

use crate::support::Place;
use testkit::{Finished, Reply, UsageReceiver};

const TOKEN: &str = "s3cret-token";

/// Every file under a directory that contains the token.
fn leaks(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for file in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = file.path();
        if path.is_dir() {
            found.extend(leaks(&path));
        } else if String::from_utf8_lossy(&fs::read(&path).unwrap()).contains(TOKEN) {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn a_receiver_that_repeats_the_token_does_not_make_us_show_it() {
    for status in [200, 401, 422, 500, 302] {
        let place = Place::new();
        let receiver = UsageReceiver::judging(move |request| {
            let repeated = request.head.field("authorization").unwrap().to_owned();
            let location = format!("/{repeated}");
            let fields = [("location", location.as_str()), ("retry-after", &repeated)];
            Reply::response(status, &fields, format!("you sent {repeated}"))
        });
        place.stage(3);
        let words = ["-v", "deliver", "--to", &receiver.url, "--max-wait", "1ms"];
        let mut command = place.command(&words);
        let ran = Finished::run(command.env("LLMLB_USAGE_TOKEN", TOKEN));
        let mut told = ran.output();
        for verb in ["pending", "failed", "verify", "resend"] {
            told += &place.usage(&["-v", verb]).output();
        }
        assert!(!told.contains(TOKEN), "{status}: {told}");
        assert_eq!(leaks(&place.data()), [""; 0], "{status}");
    }
}

#[test]
fn a_token_that_cannot_be_used_is_not_shown_either() {
    let place = Place::new();
    let url = "http://127.0.0.1:1/";
    for token in ["s3cret token", "s3cret\ttoken", "s3cret\u{e9}"] {
        let mut command = place.command(&["deliver", "--to", url]);
        let ran = Finished::run(command.env("LLMLB_USAGE_TOKEN", token));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(
            ran.stderr
                .contains("llmlb: LLMLB_USAGE_TOKEN: the token has "),
            "{ran:?}"
        );
        assert!(!ran.output().contains("s3cret"), "{ran:?}");
    }
    place.file("token", "s3cret\ntwo lines\n");
    for (file, words) in [
        ("token", "token: the token has "),
        ("gone", "cannot read the token in gone: "),
    ] {
        let ran = place.usage(&["deliver", "--to", url, "--token-file", file]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(
            ran.stderr.contains(words) && !ran.stderr.contains("s3cret"),
            "{ran:?}"
        );
    }
}

#[test]
fn a_key_in_the_url_is_sent_but_not_shown() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(200));
    place.stage(1);
    let url = format!("{}?key={TOKEN}", receiver.url);
    let ran = place.usage(&["-v", "deliver", "--to", &url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.output().contains(TOKEN), "{ran:?}");
    let line = receiver.batches().remove(0).head.line.clone();
    assert_eq!(line, format!("POST /usage?key={TOKEN} HTTP/1.1"));
}
