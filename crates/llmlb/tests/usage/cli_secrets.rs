//! The token of the receiver is never printed and never written to a file.

use std::fs;
use std::path::Path;

use crate::support::UsageSandbox;
use testkit::{Finished, Reply, UsageReceiver};

const TOKEN: &str = "s3cret-token";

/// Returns the files below a directory that contain the receiver's token.
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
fn token_in_a_response_of_the_receiver_is_not_shown() {
    for status in [200, 401, 422, 500, 302] {
        let sandbox = UsageSandbox::new();
        let receiver = UsageReceiver::judging(move |request| {
            let repeated = request.head.field("authorization").unwrap().to_owned();
            let location = format!("/{repeated}");
            let fields = [("location", location.as_str()), ("retry-after", &repeated)];
            Reply::response(status, &fields, format!("you sent {repeated}"))
        });
        sandbox.stage(3);
        let words = ["-v", "deliver", "--to", &receiver.url, "--max-wait", "1ms"];
        let mut command = sandbox.command(&words);
        let ran = Finished::run(command.env("LLMLB_USAGE_TOKEN", TOKEN));
        let mut output = ran.output();
        for verb in ["pending", "failed", "verify", "resend"] {
            output += &sandbox.usage(&["-v", verb]).output();
        }
        assert!(!output.contains(TOKEN), "{status}: {output}");
        assert_eq!(leaks(&sandbox.data()), [""; 0], "{status}");
    }
}

#[test]
fn invalid_token_is_not_shown() {
    let sandbox = UsageSandbox::new();
    let url = "http://127.0.0.1:1/";
    for token in ["s3cret token", "s3cret\ttoken", "s3cret\u{e9}"] {
        let mut command = sandbox.command(&["deliver", "--to", url]);
        let ran = Finished::run(command.env("LLMLB_USAGE_TOKEN", token));
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(
            ran.stderr.contains("\nLLMLB_USAGE_TOKEN: the token has "),
            "{ran:?}"
        );
        assert!(!ran.output().contains("s3cret"), "{ran:?}");
    }
    sandbox.file("token", "s3cret\ntwo lines\n");
    for (file, words) in [
        ("token", "token: the token has "),
        ("gone", "cannot read the token in gone: "),
    ] {
        let ran = sandbox.usage(&["deliver", "--to", url, "--token-file", file]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(
            ran.stderr.contains(words) && !ran.stderr.contains("s3cret"),
            "{ran:?}"
        );
    }
}

#[test]
fn key_in_the_url_is_sent_but_not_shown() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(200));
    sandbox.stage(1);
    let url = format!("{}?key={TOKEN}", receiver.url);
    let ran = sandbox.usage(&["-v", "deliver", "--to", &url]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.output().contains(TOKEN), "{ran:?}");
    let line = receiver.batches().remove(0).head.line.clone();
    assert_eq!(line, format!("POST /usage?key={TOKEN} HTTP/1.1"));
}
