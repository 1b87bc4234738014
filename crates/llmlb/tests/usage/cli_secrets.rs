//! The token is never printed and never written, whatever happens.

use std::fs;
use std::path::Path;

use crate::receiver::Receiver;
use crate::support::{Place, Ran};

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
    for status in [
        "200 OK",
        "401 Unauthorized",
        "422 Unprocessable Entity",
        "500 Oops",
        "302 Found",
    ] {
        let place = Place::new();
        let receiver = Receiver::new(move |request| {
            let repeated = request.header("authorization").unwrap().to_owned();
            let headers = format!("Location: /{repeated}\r\nRetry-After: {repeated}\r\n");
            (status, headers, format!("you sent {repeated}"))
        });
        place.stage(3);
        let words = ["-v", "deliver", "--to", &receiver.url, "--max-wait", "1ms"];
        let mut command = place.command(&words);
        let ran = Ran::of(command.env("LLMLB_USAGE_TOKEN", TOKEN));
        let mut told = ran.all();
        for verb in ["pending", "failed", "verify", "resend"] {
            told += &place.usage(&["-v", verb]).all();
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
        let ran = Ran::of(command.env("LLMLB_USAGE_TOKEN", token));
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(
            ran.err.contains("llmlb: LLMLB_USAGE_TOKEN: the token has "),
            "{ran:?}"
        );
        assert!(!ran.all().contains("s3cret"), "{ran:?}");
    }
    place.file("token", "s3cret\ntwo lines\n");
    for (file, words) in [
        ("token", "token: the token has "),
        ("gone", "cannot read the token in gone: "),
    ] {
        let ran = place.usage(&["deliver", "--to", url, "--token-file", file]);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(
            ran.err.contains(words) && !ran.err.contains("s3cret"),
            "{ran:?}"
        );
    }
}

#[test]
fn a_key_in_the_url_is_sent_but_not_shown() {
    let (place, receiver) = (Place::new(), Receiver::always("200 OK"));
    place.stage(1);
    let url = format!("{}?key={TOKEN}", receiver.url);
    let ran = place.usage(&["-v", "deliver", "--to", &url]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.all().contains(TOKEN), "{ran:?}");
    let head = receiver.requests().remove(0).head;
    assert!(
        head.starts_with(&format!("POST /usage?key={TOKEN} HTTP/1.1\r\n")),
        "{head}"
    );
}
