//! The data directory and the delivery settings of `llmlb usage`, from the same file as those of `serve`.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use testkit::{Finished, UsageReceiver, eventually};

use crate::support::UsageSandbox;

/// Runs `llmlb usage` in the directory of the sandbox, without `LLMLB_DATA_DIR`.
fn usage(sandbox: &UsageSandbox, words: &[&str]) -> Finished {
    usage_with(sandbox, words, "")
}

fn usage_with(sandbox: &UsageSandbox, words: &[&str], input: &str) -> Finished {
    let mut command = sandbox.command(words);
    command.env_remove("LLMLB_DATA_DIR");
    Finished::run_with(&mut command, input)
}

fn own(sandbox: &UsageSandbox, text: &str) -> PathBuf {
    sandbox.file("llmlb.toml", text)
}

#[test]
fn verbs_use_the_data_directory_of_the_file() {
    let sandbox = UsageSandbox::new();
    let file = own(&sandbox, "[usage]\ndata_dir = \"own/data\"\n");
    usage_with(&sandbox, &["stage"], "{\"model\":\"m\",\"tokens\":7}\n").assert_code(0);
    let dir = file.parent().unwrap().join("own/data");
    assert!(dir.join("_staging").is_dir(), "{}", dir.display());
    assert!(!sandbox.data().exists());

    for words in [
        &["--json"] as &[&str],
        &["--json", "--config", "llmlb.toml"],
        &["--json", "--data", "own/data"],
    ] {
        let ran = usage(&sandbox, words);
        ran.assert_code(0);
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["total"]["tokens"], 7, "{ran:?}");
    }
    usage(&sandbox, &["consolidate"]).assert_code(0);
    usage(&sandbox, &["pending"]).assert_code(0);
    usage(&sandbox, &["verify"]).assert_code(0);

    // `LLMLB_DATA_DIR` overrides the directory of the configuration file, and `--data` overrides
    // both.
    let ran = sandbox.usage(&["verify"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.stderr.contains("data does not exist"), "{ran:?}");
    let ran = usage(&sandbox, &["verify", "--data", "elsewhere"]);
    assert!(ran.stderr.contains("elsewhere does not exist"), "{ran:?}");
}

#[test]
fn relative_directory_of_a_named_file_is_relative_to_that_file() {
    let sandbox = UsageSandbox::new();
    let file = own(&sandbox, "[usage]\ndata_dir = \"wrong\"\n");
    fs::create_dir(file.parent().unwrap().join("etc")).unwrap();
    let other = sandbox.file("etc/my.toml", "[usage]\ndata_dir = \"records\"\n");
    let words = ["stage", "--config", other.to_str().unwrap()];
    usage_with(&sandbox, &words, "{}\n").assert_code(0);
    assert!(other.parent().unwrap().join("records/_staging").is_dir());
}

#[test]
fn serve_and_deliver_use_directory_and_receiver_of_the_file() {
    let sandbox = UsageSandbox::new();
    let receiver = UsageReceiver::accepting().unwrap();
    let text = format!(
        "[usage]\ndata_dir = \"own\"\nurl = \"{}\"\nevery = \"24h\"\ntoken_env = \"BILLING\"\n",
        receiver.url
    );
    own(&sandbox, &text);
    usage_with(&sandbox, &["stage"], "{\"n\":1}\n{\"n\":2}\n").assert_code(0);
    // The configuration file names a variable for the receiver's token. Without the variable a
    // delivery must fail instead of sending no token.
    let ran = usage(&sandbox, &["deliver"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let problem = "llmlb.toml:5: usage.token_env: the variable BILLING is not set, or empty";
    assert!(ran.stderr.contains(problem), "{ran:?}");
    // `consolidate` sends nothing, so it must work without the receiver's token.
    usage(&sandbox, &["consolidate"]).assert_code(0);

    let mut command = sandbox.command(&["deliver"]);
    command.env_remove("LLMLB_DATA_DIR");
    command.env("BILLING", "s3cret");
    let ran = Finished::run_with(&mut command, "");
    ran.assert_code(0);
    assert!(
        ran.stdout.starts_with("delivered 2 records in 1 batch"),
        "{ran:?}"
    );
    assert!(!ran.output().contains("s3cret"), "{ran:?}");
}

#[test]
fn problems_of_other_sections_do_not_stop_usage_verbs() {
    let sandbox = UsageSandbox::new();
    own(
        &sandbox,
        "[server]\nport = 70000\n[usage]\ndata_dir = \"own\"\n[[backend]]\nurl = 7\n",
    );
    usage_with(&sandbox, &["stage"], "{}\n").assert_code(0);
    usage(&sandbox, &["verify"]).assert_code(0);

    for (text, problem) in [
        (
            "[usage]\ndata_dir = 7\n",
            "llmlb.toml:2: usage.data_dir: 7 is not a path",
        ),
        (
            "[usage]\ndata_dir = \"\"\n",
            "llmlb.toml:2: usage.data_dir: \"\" is not a path",
        ),
        (
            "[usage]\ndata_dir = \"~/x\"\n",
            "llmlb.toml:2: usage.data_dir: \"~/x\" begins with ~, which llmlb does not replace",
        ),
        (
            "[usage]\ndata_dirs = \"x\"\n",
            "llmlb.toml:2: usage.data_dirs: unknown key (did you mean data_dir?)",
        ),
        (
            "[usgae]\ndata_dir = \"x\"\n",
            "llmlb.toml:1: usgae: unknown section (did you mean usage?)",
        ),
        (
            "[fleet]\nttl = 7\n",
            "llmlb.toml:2: fleet.ttl: 7 has no unit",
        ),
        ("[usage\ndata_dir = \"x\"\n", "llmlb.toml:1:"),
    ] {
        own(&sandbox, text);
        let ran = usage(&sandbox, &["verify"]);
        assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{text}: {ran:?}");
        assert!(ran.stderr.contains(problem), "{text}: {ran:?}");
        // The command in the hint must work: with `--data` the invalid file is not needed and not
        // read.
        assert!(ran.stderr.contains("`--data DIR`"), "{ran:?}");
        usage(&sandbox, &["verify", "--data", "own"]).assert_code(0);
        // A delivery needs the settings of the file, so `--data` does not make the file unnecessary
        // and its errors must be reported.
        let ran = usage(&sandbox, &["deliver", "--archive", "--data", "own"]);
        assert!(
            ran.code == Some(1) && ran.stderr.contains(problem),
            "{text}: {ran:?}"
        );
    }
    let ran = usage(&sandbox, &["verify", "--config", "missing.toml"]);
    assert!(
        ran.stderr.contains("missing.toml: the file does not exist"),
        "{ran:?}"
    );
}

#[cfg(unix)]
#[test]
fn file_that_others_may_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;

    let sandbox = UsageSandbox::new();
    let file = own(&sandbox, "[usage]\ndata_dir = \"own\"\n");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let ran = usage_with(&sandbox, &["stage"], "{}\n");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.contains("every user may write the file"),
        "{ran:?}"
    );
    let words = ["stage", "--config", "llmlb.toml", "--allow-shared-config"];
    usage_with(&sandbox, &words, "{}\n").assert_code(0);
}

#[test]
fn server_records_into_the_directory_of_its_file() {
    let sandbox = UsageSandbox::new();
    let file = own(&sandbox, "[usage]\ndata_dir = \"own\"\n");
    let words = "serve -p 0 --backend http://127.0.0.1:9";
    let mut command = sandbox.llmlb(words);
    command.env_remove("LLMLB_DATA_DIR");
    let server = sandbox.serve_command(&mut command);
    eventually("the server creates the directory", || {
        let staging = file.parent().unwrap().join("own/_staging");
        staging.is_dir().then_some(())
    });
    drop(server);
    assert!(!sandbox.data().exists());
}
