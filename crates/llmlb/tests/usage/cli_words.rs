//! What can be typed, and where data lies if nobody says so.

use crate::support::Place;
use testkit::Finished;

#[test]
fn wrong_words_exit_2() {
    let place = Place::new();
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
        let ran = place.usage(words);
        assert_eq!(ran.code, Some(2), "{words:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{words:?}");
    }
    assert!(!place.data().exists(), "nothing was made");
}

#[test]
fn a_receiver_that_cannot_be_used_is_refused_before_anything_is_touched() {
    let place = Place::new();
    for (url, words) in [
        ("billing.example", "it does not start with https://"),
        ("http://billing.example/", "`--allow-http`"),
        ("https://me:s3cret@billing.example/", "a user or a password"),
        ("", "it does not start with https://"),
    ] {
        let ran = place.usage(&["deliver", "--to", url]);
        assert_eq!(ran.code, Some(1), "{url}: {ran:?}");
        assert!(ran.stderr.contains(words), "{url}: {ran:?}");
        assert!(!ran.output().contains("s3cret"), "{ran:?}");
    }
    assert!(!place.data().exists(), "nothing was made");
}

#[test]
fn a_directory_that_is_not_there_is_not_made_by_looking_at_it() {
    let place = Place::new();
    for words in [
        &["pending"] as &[&str],
        &["failed"],
        &["verify"],
        &["resend"],
        &["resend", "--all"],
    ] {
        let ran = place.usage(words);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{words:?}");
        assert!(ran.stderr.contains("data does not exist\n"), "{ran:?}");
        assert!(ran.stderr.contains("hint: "), "{ran:?}");
    }
    assert!(!place.data().exists());
    // A scheduled run that comes before the first record is no failure.
    for words in [&["consolidate"] as &[&str], &["deliver", "--archive"]] {
        let ran = place.usage(words);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(
            ran.stdout.starts_with("no ") && ran.stdout.contains("does not exist"),
            "{ran:?}"
        );
    }
    assert!(!place.data().exists());
    std::fs::write(place.data(), "").unwrap();
    for words in [
        &["pending"] as &[&str],
        &["stage"],
        &["deliver", "--archive"],
    ] {
        let ran = place.usage(words);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains("data is not a directory\n"), "{ran:?}");
    }
}

#[test]
fn a_directory_that_was_named_is_named_in_what_to_type_next() {
    let place = Place::new();
    let ran = place.usage_with(&["stage", "--data", "my data"], "{}\n");
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
    let ran = place.usage(&words);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr
            .contains("`llmlb usage --data 'my data' pending`"),
        "{ran:?}"
    );
    assert!(!place.data().exists(), "the flag wins over the environment");
}

#[cfg(target_os = "linux")]
#[test]
fn data_lies_in_the_users_own_directory_unless_told_otherwise() {
    use Finished;

    let place = Place::new();
    let home = place.file("x", "").parent().unwrap().join("home");
    let stage = |variables: &[(&str, &str)]| {
        let mut command = place.command(&["stage"]);
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
    // A relative one is as good as none, and an empty one too.
    assert_eq!(stage(&[("XDG_DATA_HOME", "relative")]).code, Some(0));
    let ran = stage(&[("HOME", "")]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("hint: name one: `--data DIR`"),
        "{ran:?}"
    );
}

#[test]
fn completions_know_the_verbs() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_llmlb"))
        .args(["completions", "bash"])
        .output()
        .unwrap();
    let script = String::from_utf8(output.stdout).unwrap();
    for word in ["usage", "consolidate", "--give-up-after", "resend"] {
        assert!(script.contains(word), "{word}");
    }
}
