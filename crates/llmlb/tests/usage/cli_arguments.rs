//! Arguments of `llmlb usage`, and the default data directory.

use crate::support::UsageSandbox;

#[test]
fn wrong_arguments_exit_2() {
    let sandbox = UsageSandbox::new();
    for words in [
        &["nonsense"] as &[&str],
        &["--since", "soon"],
        &["--since", "today", "--until", "yesterday"],
        &["--by", "colour"],
        &["--by", "model,"],
        &["--json", "--csv"],
        &["--json", "pending"],
        &["--since", "7d", "deliver"],
        &["stage", "--power"],
        &["deliver", "--every", "often"],
        &["deliver", "--every", "60"],
        &["deliver", "--timeout", "0s"],
        &["deliver", "--batch-size", "0"],
        &["deliver", "--archive", "--to", "https://billing.example/"],
        &["resend", "--all", "x.json"],
        &["pending", "extra"],
    ] {
        let ran = sandbox.usage(words);
        assert_eq!(ran.code, Some(2), "{words:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{words:?}");
    }
    assert!(
        !sandbox.data().exists(),
        "the data directory was not created"
    );
}

#[test]
fn invalid_receiver_is_refused_before_the_data_directory_is_created() {
    let sandbox = UsageSandbox::new();
    for (url, words) in [
        ("billing.example", "it does not start with https://"),
        ("http://billing.example/", "`--allow-http`"),
        ("https://me:s3cret@billing.example/", "a user or a password"),
        ("", "it does not start with https://"),
    ] {
        let ran = sandbox.usage(&["deliver", "--to", url]);
        assert_eq!(ran.code, Some(1), "{url}: {ran:?}");
        assert!(ran.stderr.contains(words), "{url}: {ran:?}");
        assert!(!ran.output().contains("s3cret"), "{ran:?}");
    }
    assert!(
        !sandbox.data().exists(),
        "the data directory was not created"
    );
}

#[test]
fn reading_commands_do_not_create_the_data_directory() {
    let sandbox = UsageSandbox::new();
    for words in [
        &["pending"] as &[&str],
        &["failed"],
        &["verify"],
        &["resend"],
        &["resend", "--all"],
    ] {
        let ran = sandbox.usage(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{words:?}");
        assert!(ran.stderr.contains("data does not exist\n"), "{ran:?}");
        assert!(ran.stderr.contains("hint: "), "{ran:?}");
    }
    assert!(!sandbox.data().exists());
    // A scheduled run may start before the first record exists. It must succeed, otherwise the
    // scheduler would report a failure.
    for words in [&["consolidate"] as &[&str], &["deliver", "--archive"]] {
        let ran = sandbox.usage(words);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(
            ran.stdout.starts_with("no ") && ran.stdout.contains("does not exist"),
            "{ran:?}"
        );
    }
    assert!(!sandbox.data().exists());
    std::fs::write(sandbox.data(), "").unwrap();
    for words in [
        &["pending"] as &[&str],
        &["stage"],
        &["deliver", "--archive"],
    ] {
        let ran = sandbox.usage(words);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("data is not a directory\n"), "{ran:?}");
    }
}

#[test]
fn hints_repeat_the_data_flag() {
    let sandbox = UsageSandbox::new();
    let ran = sandbox.usage_with(&["stage", "--data", "my data"], "{}\n");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let words = [
        "deliver",
        "--data",
        "my data",
        "--to",
        "http://127.0.0.1:1/",
        "--max-wait",
        "1ms",
    ];
    let ran = sandbox.usage(&words);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr
            .contains("`llmlb usage --data 'my data' pending`"),
        "{ran:?}"
    );
    assert!(
        !sandbox.data().exists(),
        "the flag takes precedence over the environment"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn data_directory_is_in_the_home_of_the_user_by_default() {
    use testkit::Finished;

    let sandbox = UsageSandbox::new();
    let home = sandbox.file("x", "").parent().unwrap().join("home");
    let stage = |variables: &[(&str, &str)]| {
        let mut command = sandbox.command(&["stage"]);
        command
            .env_remove("LLMLB_DATA_DIR")
            .env_remove("XDG_DATA_HOME")
            .env("HOME", &home)
            .envs(variables.iter().copied());
        Finished::run(&mut command)
    };
    assert_eq!(stage(&[]).code, Some(0));
    assert!(home.join(".local/share/llmlb/_staging").is_dir());
    let xdg = home.join("xdg");
    assert_eq!(
        stage(&[("XDG_DATA_HOME", xdg.to_str().unwrap())]).code,
        Some(0)
    );
    assert!(xdg.join("llmlb/_staging").is_dir());
    // A relative `XDG_DATA_HOME` and an empty `HOME` count as not set. If neither is set, there is
    // no default data directory, and the command fails with a hint.
    assert_eq!(stage(&[("XDG_DATA_HOME", "relative")]).code, Some(0));
    let ran = stage(&[("HOME", "")]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr
            .contains("hint: name a data directory: `--data DIR`"),
        "{ran:?}"
    );
}

#[test]
fn completions_contain_the_verbs() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_llmlb"))
        .args(["completions", "bash"])
        .output()
        .unwrap();
    let script = String::from_utf8(output.stdout).unwrap();
    for word in ["usage", "consolidate", "--give-up-after", "resend"] {
        assert!(script.contains(word), "{word}");
    }
}
