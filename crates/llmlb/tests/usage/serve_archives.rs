//! `serve` without a receiver: records are moved to the archive, which has limits.

use serde_json::Value;

use crate::support::UsageSandbox;
use testkit::{Finished, UsageReceiver};

#[test]
fn staged_records_are_archived_while_a_server_runs() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(150);
    let server = sandbox.serve(&[]);
    let usage = server.until("all records are archived", |usage| {
        usage["delivered"] == 150
    });
    assert_eq!(usage["to"], Value::Null);
    assert_eq!(
        (&usage["waiting"], &usage["failed"]),
        (&0.into(), &0.into())
    );
    assert_eq!(usage["error"], Value::Null);
    for field in ["last_run", "last_delivery"] {
        assert!(usage[field].as_str().unwrap().ends_with('Z'), "{usage}");
    }
    assert_eq!(sandbox.books()["archived"], 150);
    assert_eq!(sandbox.files("_staging"), [""; 0]);
}

#[test]
fn status_shows_archived_usage_as_text_and_as_json() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(1);
    let server = sandbox.serve(&[]);
    server.until("all records are archived", |usage| usage["delivered"] == 1);
    let ran = sandbox.status(&server, "");
    let line = ran.stdout.lines().find(|line| line.starts_with("  usage "));
    let line = line.unwrap_or_else(|| panic!("{ran:?}"));
    assert!(
        line.contains(" recorded, kept in archive/, last "),
        "{line}"
    );
    let document = sandbox.status(&server, "--json").json();
    assert_eq!(document["servers"][0]["usage"]["delivered"], 1);
}

#[test]
fn data_directory_is_not_touched_with_usage_disabled() {
    let sandbox = UsageSandbox::new();
    sandbox.stage(1);
    let server = sandbox.serve(&[("LLMLB_USAGE", "false")]);
    assert_eq!(server.usage(), Value::Null);
    let document = sandbox.status(&server, "--json").json();
    assert_eq!(document["servers"][0]["usage"], Value::Null);
    assert_eq!(sandbox.files("_staging").len(), 1);
    assert!(!sandbox.data().join("archive").exists());
}

#[test]
fn invalid_usage_settings_are_reported_and_prevent_the_start() {
    let sandbox = UsageSandbox::new();
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
            .env("LLMLB_DATA_DIR", sandbox.data())
            .env(name, value);
        let ran = Finished::run(&mut command);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(words), "{words}: {ran:?}");
        assert!(!ran.output().contains("s3cret"), "{ran:?}");
    }
    assert!(!sandbox.data().exists());
}

#[test]
fn unusable_data_directory_is_logged_once_and_the_server_recovers() {
    let sandbox = UsageSandbox::new();
    std::fs::write(sandbox.data(), "").unwrap();
    let server = sandbox.serve(&[("LLMLB_USAGE_EVERY", "1s")]);
    let usage = server.until("an error is reported", |usage| usage["error"].is_string());
    let next = |last: &Value| {
        server.until("another run has ended", |usage| {
            usage["last_run"] != last["last_run"]
        })
    };
    next(&next(&usage));
    std::fs::remove_file(sandbox.data()).unwrap();
    server.until("the error is over", |usage| usage["error"].is_null());
    let log = server
        .process
        .until_output("usage: the data directory is usable again, after ");
    let begins = log.lines().filter(|line| line.contains("warning: usage: "));
    let begins = begins.filter(|line| !line.contains("usage: problem persists"));
    assert_eq!(begins.count(), 1, "{log}");
}

#[cfg(target_os = "linux")]
#[test]
fn server_of_a_user_without_a_home_names_the_setting_of_the_data_directory() {
    let sandbox = UsageSandbox::new();
    let without_home = [("LLMLB_DATA_DIR", ""), ("HOME", ""), ("XDG_DATA_HOME", "")];
    let server = sandbox.serve(&without_home);
    let error = server.usage()["error"].take();
    assert!(
        error
            .as_str()
            .unwrap()
            .contains("set usage.data_dir or LLMLB_DATA_DIR"),
        "{error}"
    );
    server
        .process
        .until_output("warning: usage: no data directory: this user has no home");
}

/// The data directory and the receiver of the environment are for real usage, not for the demo.
/// (promise L14)
#[test]
fn demo_uses_neither_the_configured_data_directory_nor_the_receiver() {
    let (sandbox, receiver) = (UsageSandbox::new(), UsageReceiver::always(200));
    sandbox.stage(1);
    let settings = [
        ("LLMLB_USAGE_URL", receiver.url.as_str()),
        ("LLMLB_USAGE_EVERY", "1s"),
    ];
    let server = sandbox.serve_demo(&settings);
    let warning = "usage.url (http://127.0.0.1:";
    server.process.until_output(warning);
    let body = r#"{"model":"demo","max_tokens":2,"messages":[{"role":"user","content":"Hi"}]}"#;
    server.fetch("POST /v1/chat/completions", body);
    let usage = server.until("all records are archived", |usage| usage["delivered"] == 1);
    assert_eq!(usage["to"], Value::Null);
    let requests = |words: &[&str]| sandbox.usage(words).json()["total"]["requests"].clone();
    assert_eq!(requests(&["--json"]), 1, "the staged record");
    assert_eq!(requests(&["--demo", "--json"]), 1, "the record of the demo");
    assert_eq!(sandbox.files("_staging").len(), 1);
    assert!(!sandbox.data().join("archive").exists());
    assert_eq!(receiver.batches().len(), 0);
}

#[cfg(target_os = "linux")]
#[test]
fn demo_has_a_data_directory_of_its_own_in_the_home() {
    let sandbox = UsageSandbox::new();
    let data = sandbox.data();
    let dir = data.parent().unwrap();
    let home = dir.join("home");
    let file = "[usage]\nurl = \"http://127.0.0.1:9/\"\n";
    std::fs::write(dir.join("llmlb.toml"), file).unwrap();
    let with_home = [
        // The demo does not search for a configuration file, so name the file. Its data directory
        // must not apply to the demo.
        ("LLMLB_CONFIG", "llmlb.toml"),
        ("LLMLB_DATA_DIR", ""),
        ("XDG_DATA_HOME", ""),
        ("HOME", home.to_str().unwrap()),
    ];
    let server = sandbox.serve_demo(&with_home);
    let warning = "usage.url (http://127.0.0.1:9/";
    server.process.until_output(warning);
    assert_eq!(server.usage()["to"], Value::Null);
    let share = home.join(".local/share");
    assert!(share.join("llmlb-demo/_staging").is_dir());
    assert!(!share.join("llmlb").exists());
}

#[test]
fn serve_applies_the_limits_of_the_archive_if_there_are_any() {
    let sandbox = UsageSandbox::new();
    let old = sandbox.old_archive(3);
    let server = sandbox.serve(&[]);
    let usage = server.until("the size of the archive is known", |usage| {
        usage["kept"].is_object()
    });
    assert_eq!(usage["kept"]["archive"]["files"], 1, "{usage}");
    assert_eq!(usage["kept"]["large"], serde_json::json!([]), "{usage}");
    drop(server);
    assert_eq!(sandbox.files("archive"), old);

    let server = sandbox.serve(&[("LLMLB_USAGE_ARCHIVE_MAX_AGE", "36h")]);
    let usage = server.until("the size of the archive is known", |usage| {
        usage["kept"].is_object()
    });
    assert_eq!(usage["kept"]["archive"]["files"], 0, "{usage}");
    server
        .process
        .until_output("in 1 file from archive/ beyond usage.archive_max_age or ");
    drop(server);
    assert_eq!(sandbox.files("archive"), [""; 0]);
    assert_eq!(sandbox.books()["archived"], 3);
}
