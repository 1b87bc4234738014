//! `serve` without a receiver: records are folded into the archive, and nothing piles up.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::support::Place;
use testkit::{Finished, UsageReceiver};

#[test]
fn what_is_staged_is_archived_and_its_totals_are_kept() {
    let place = Place::new();
    place.stage(150);
    let server = place.serve(&[]);
    let usage = server.until("it is archived", |usage| usage["delivered"] == 150);
    assert_eq!(usage["to"], Value::Null);
    assert_eq!(
        (&usage["waiting"], &usage["failed"]),
        (&0.into(), &0.into())
    );
    assert_eq!(usage["error"], Value::Null);
    for field in ["last_run", "last_delivery"] {
        assert!(usage[field].as_str().unwrap().ends_with('Z'), "{usage}");
    }
    assert_eq!(place.books()["archived"], 150);
    assert_eq!(place.files("_staging"), [""; 0]);
}

#[test]
fn status_shows_it_to_people_and_to_programs() {
    let place = Place::new();
    place.stage(1);
    let server = place.serve(&[]);
    server.until("it is archived", |usage| usage["delivered"] == 1);
    let ran = place.status(&server, "");
    let line = ran.stdout.lines().find(|line| line.starts_with("  usage "));
    let line = line.unwrap_or_else(|| panic!("{ran:?}"));
    assert!(
        line.contains(" recorded, kept in archive/, last "),
        "{line}"
    );
    let document = place.status(&server, "--json").json();
    assert_eq!(document["servers"][0]["usage"]["delivered"], 1);
}

#[test]
fn with_usage_off_nothing_is_touched() {
    let place = Place::new();
    place.stage(1);
    let server = place.serve(&[("LLMLB_USAGE", "false")]);
    assert_eq!(server.usage(), Value::Null);
    let document = place.status(&server, "--json").json();
    assert_eq!(document["servers"][0]["usage"], Value::Null);
    assert_eq!(place.files("_staging").len(), 1);
    assert!(!place.data().join("archive").exists());
}

#[test]
fn bad_settings_are_told_and_nothing_is_started() {
    let place = Place::new();
    for (name, value, words) in [
        (
            "LLMLB_USAGE",
            "maybe",
            "LLMLB_USAGE: \"maybe\" is not true or false",
        ),
        (
            "LLMLB_USAGE_EVERY",
            "10ms",
            "LLMLB_USAGE_EVERY: \"10ms\" is out of range",
        ),
        (
            "LLMLB_USAGE_FORMAT",
            "xml",
            "LLMLB_USAGE_FORMAT: \"xml\" is not known",
        ),
        (
            "LLMLB_USAGE_URL",
            "s3cret",
            "LLMLB_USAGE_URL: the URL cannot be used",
        ),
        (
            "LLMLB_USAGE_URL",
            "http://billing.example/?key=s3cret",
            "set usage.allow_http = true or LLMLB_USAGE_ALLOW_HTTP=true",
        ),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_llmlb"));
        command
            .args(["serve", "--demo", "-p", "0"])
            .env("LLMLB_DATA_DIR", place.data())
            .env(name, value);
        let ran = Finished::run(&mut command);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
        assert!(!ran.output().contains("s3cret"), "{ran:?}");
    }
    assert!(!place.data().exists());
}

#[test]
fn a_directory_that_cannot_be_used_is_told_once_and_requests_go_on() {
    let place = Place::new();
    std::fs::write(place.data(), "").unwrap();
    let server = place.serve(&[("LLMLB_USAGE_EVERY", "1s")]);
    let usage = server.until("the trouble", |usage| usage["error"].is_string());
    let next = |last: &Value| server.until("a run", |usage| usage["last_run"] != last["last_run"]);
    next(&next(&usage));
    std::fs::remove_file(place.data()).unwrap();
    server.until("its end", |usage| usage["error"].is_null());
    let said = server
        .process
        .until_output("usage: the data directory is usable again, after ");
    let begins = said
        .lines()
        .filter(|line| line.contains("warning: usage: "));
    let begins = begins.filter(|line| !line.contains("usage: still,"));
    assert_eq!(begins.count(), 1, "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_user_without_a_home_is_told_where_to_name_a_directory() {
    let place = Place::new();
    let nowhere = [("LLMLB_DATA_DIR", ""), ("HOME", ""), ("XDG_DATA_HOME", "")];
    let server = place.serve(&nowhere);
    let error = server.usage()["error"].take();
    assert!(
        error.as_str().unwrap().contains("set LLMLB_DATA_DIR"),
        "{error}"
    );
    server
        .process
        .until_output("warning: usage: no data directory: this user has no home");
}

/// Whatever the environment names is for real usage. (L14)
#[test]
fn demo_never_writes_into_the_real_data_nor_to_the_real_receiver() {
    let (place, receiver) = (Place::new(), UsageReceiver::always(200));
    place.stage(1);
    let settings = [
        ("LLMLB_USAGE_URL", receiver.url.as_str()),
        ("LLMLB_USAGE_EVERY", "1s"),
    ];
    let server = place.serve_demo(&settings);
    let told = "usage.url (http://127.0.0.1:";
    server.process.until_output(told);
    let body = r#"{"model":"demo","max_tokens":2,"messages":[{"role":"user","content":"Hi"}]}"#;
    server.ask("POST /v1/chat/completions", body);
    let usage = server.until("it is archived", |usage| usage["delivered"] == 1);
    assert_eq!(usage["to"], Value::Null);
    let requests = |words: &[&str]| place.usage(words).json()["total"]["requests"].clone();
    assert_eq!(requests(&["--json"]), 1, "the one that was staged");
    assert_eq!(requests(&["--demo", "--json"]), 1, "the demo's");
    assert_eq!(place.files("_staging").len(), 1);
    assert!(!place.data().join("archive").exists());
    assert_eq!(receiver.batches().len(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn demo_of_a_user_has_a_directory_beside_the_real_one() {
    let place = Place::new();
    let data = place.data();
    let dir = data.parent().unwrap();
    let home = dir.join("home");
    let file = "[usage]\nurl = \"http://127.0.0.1:9/\"\n";
    std::fs::write(dir.join("llmlb.toml"), file).unwrap();
    let at_home = [
        ("LLMLB_DATA_DIR", ""),
        ("XDG_DATA_HOME", ""),
        ("HOME", home.to_str().unwrap()),
    ];
    let server = place.serve_demo(&at_home);
    let told = "usage.url (http://127.0.0.1:9/";
    server.process.until_output(told);
    assert_eq!(server.usage()["to"], Value::Null);
    let theirs = home.join(".local/share");
    assert!(theirs.join("llmlb-demo/_staging").is_dir());
    assert!(!theirs.join("llmlb").exists());
}

#[test]
fn archive_is_kept_within_the_bounds_that_are_set_and_whole_without() {
    let place = Place::new();
    place.stage(3);
    assert_eq!(place.usage(&["deliver", "--archive"]).code, Some(0));
    let old = place.files("archive");
    for name in &old {
        let path = place.data().join("archive").join(name);
        let file = std::fs::File::options().write(true).open(path).unwrap();
        let day = Duration::from_secs(24 * 3600);
        file.set_modified(SystemTime::now() - 2 * day).unwrap();
    }
    let server = place.serve(&[]);
    let usage = server.until("the sizes", |usage| usage["kept"].is_object());
    assert_eq!(usage["kept"]["archive"]["files"], 1, "{usage}");
    assert_eq!(usage["kept"]["large"], serde_json::json!([]), "{usage}");
    drop(server);
    assert_eq!(place.files("archive"), old);

    let server = place.serve(&[("LLMLB_USAGE_ARCHIVE_MAX_AGE", "36h")]);
    let usage = server.until("the sizes", |usage| usage["kept"].is_object());
    assert_eq!(usage["kept"]["archive"]["files"], 0, "{usage}");
    server
        .process
        .until_output("in 1 file from archive/: usage.archive_max_age or ");
    drop(server);
    assert_eq!(place.files("archive"), [""; 0]);
    assert_eq!(place.books()["archived"], 3);
}
