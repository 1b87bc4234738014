//! Tests of the section `[usage]`: receiver, token, and rejected values.

use std::time::Duration;

use super::super::usage::OnFailure;
use super::super::{Format, Origin};
use super::*;

const SECRET: &str = "hunter2";

#[test]
fn usage_is_recorded_and_archived_by_default() {
    let config = LoadCase::new().good();
    assert_eq!(config.usage_token, None);
    let usage = config.usage;
    assert!(usage.enabled);
    assert_eq!(usage.url, None);
    assert_eq!(usage.every, Duration::from_secs(60));
    assert_eq!(usage.format, Format::Json);
    assert_eq!(usage.on_failure, OnFailure::Serve);
    assert!(!usage.allow_http);
    assert!(usage.archive().is_unlimited() && usage.failed().is_unlimited());
}

#[test]
fn receiver_and_token_come_from_the_file_or_the_environment() {
    let file = "[usage]\nurl = \"https://a.example/u\"\ntoken_env = \"BILLING\"\n";
    let run = LoadCase::with_file(file).env("BILLING", "t1");
    let config = run.good();
    assert_eq!(config.usage.url.unwrap().url(), "https://a.example/u");
    let token = Some(spool::Token::new("t1").unwrap());
    assert_eq!(config.usage_token, token);

    let run = run.env("LLMLB_USAGE_URL", "https://b.example/");
    let config = run.good();
    assert_eq!(
        config.usage.url.as_ref().unwrap().shown(),
        "https://b.example/"
    );
    let origin = config.origins.origin("usage.url");
    assert_eq!(*origin, Origin::Variable("LLMLB_USAGE_URL".into()));

    // The variable `LLMLB_USAGE_TOKEN` may be missing: it is only the default name of the token's
    // variable.
    let run = LoadCase::new().env("LLMLB_USAGE_URL", "https://b.example/");
    assert_eq!(run.good().usage_token, None);
    let run = run.env("LLMLB_USAGE_TOKEN", "t2");
    assert_eq!(
        run.good().usage_token,
        Some(spool::Token::new("t2").unwrap())
    );
    // A variable that `usage.token_env` names may begin with `LLMLB_` and is not reported as an
    // unknown setting.
    let file = "[usage]\nurl = \"https://a.example/u\"\ntoken_env = \"LLMLB_BILLING\"\n";
    LoadCase::with_file(file).env("LLMLB_BILLING", "t").good();
}

#[test]
fn each_usage_problem_names_its_origin() {
    let every = "text like \"500ms\", \"30s\", \"5m\" or \"1h\", from \"1s\" to \"24h\"";
    let url = "https://HOST[:PORT][/PATH], or http://.. on this machine";
    for (line, reported) in [
        (
            "enabled = 1",
            "enabled: 1 is not true or false; allowed: true or false".to_owned(),
        ),
        (
            "url = \"billing\"",
            format!("url: the URL cannot be used: it does not start with https://; allowed: {url}"),
        ),
        (
            "url = \"\"",
            format!("url: the URL cannot be used: it does not start with https://; allowed: {url}"),
        ),
        (
            "url = [\"https://a/\"]",
            format!("url: a list is not a URL; allowed: {url}"),
        ),
        (
            "every = \"999ms\"",
            format!("every: \"999ms\" is out of range; allowed: {every}"),
        ),
        (
            "every = \"25h\"",
            format!("every: \"25h\" is out of range; allowed: {every}"),
        ),
        (
            "every = 60",
            format!("every: 60 has no unit; allowed: {every}"),
        ),
        (
            "format = \"cloudevent\"",
            "format: \"cloudevent\" is not known (did you mean cloudevents?); \
             allowed: json or cloudevents"
                .to_owned(),
        ),
        (
            "format = 7",
            "format: 7 is not a word; allowed: json or cloudevents".to_owned(),
        ),
        (
            "on_failure = \"stop\"",
            "on_failure: \"stop\" is not known; allowed: serve or refuse".to_owned(),
        ),
        (
            "allow_http = \"no\"",
            "allow_http: \"no\" is text, not true or false; allowed: true or false".to_owned(),
        ),
        (
            "token = \"t\"",
            "token: unknown key (did you mean token_env?); allowed: enabled, data_dir, url, token_env, \
             every, format, on_failure, allow_http, archive_max_age, archive_max_size, \
             failed_max_age, failed_max_size"
                .to_owned(),
        ),
        (
            "url = \"https://a/\"\ntoken_env = \"BILLING\"",
            "token_env: the variable BILLING is not set, or empty".to_owned(),
        ),
    ] {
        let number = 1 + line.lines().count();
        let reported = format!("llmlb.toml:{number}: usage.{reported}");
        let run = LoadCase::with_file(&format!("[usage]\n{line}\n"));
        assert_eq!(run.problems(), reported, "{line}");
    }
}

#[test]
fn plain_http_to_another_machine_is_rejected_without_allow_http() {
    let file = "[usage]\nurl = \"http://10.0.0.9/u?key=hunter2\"\n";
    let reported = LoadCase::with_file(file).problems();
    let start = "llmlb.toml:2: usage.url: http://10.0.0.9/u is on another machine: ";
    assert!(reported.starts_with(start), "{reported}");
    assert!(reported.contains("usage.allow_http = true"), "{reported}");
    LoadCase::with_file(&format!("{file}allow_http = true\n")).good();
    LoadCase::with_file(file)
        .env("LLMLB_USAGE_ALLOW_HTTP", "true")
        .good();
    for host in ["127.0.0.1:8080", "localhost", "[::1]"] {
        LoadCase::new()
            .env("LLMLB_USAGE_URL", &format!("http://{host}/"))
            .good();
    }
}

#[test]
fn data_directory_in_the_file_is_relative_to_the_file() {
    let file = "[usage]\ndata_dir = \"data\"\n";
    let run = LoadCase::with_file("").file("my.toml", file.as_bytes());
    let name = run.directory.path().join("my.toml");
    let run = run.flags(Flags {
        config: Some(name.clone()),
        ..Flags::default()
    });
    let dir = |run: &LoadCase| run.good().usage.data_dir.unwrap();
    assert_eq!(dir(&run), name.with_file_name("data"));
    // A relative path in `LLMLB_DATA_DIR` starts at the current directory, and overrides the path
    // in the file.
    let run = run.env("LLMLB_DATA_DIR", "other");
    assert_eq!(dir(&run), std::path::Path::new("other"));
    for (value, why) in [("\"\"", "\"\" is not a path"), ("7", "7 is not a path")] {
        let run = LoadCase::with_file(&format!("[usage]\ndata_dir = {value}\n"));
        let reported = run.problems();
        let start = format!("llmlb.toml:2: usage.data_dir: {why}; allowed: a path such as");
        assert!(reported.starts_with(&start), "{reported}");
    }
}

#[test]
fn token_is_not_needed_without_a_receiver() {
    let named = "[usage]\ntoken_env = \"BILLING\"\n";
    LoadCase::with_file(named).good();
    LoadCase::with_file(&format!(
        "{named}enabled = false\nurl = \"https://a.example/\"\n"
    ))
    .good();
}

#[test]
fn token_and_key_in_the_url_are_never_shown() {
    let url = "[usage]\nurl = \"https://a.example/?key=hunter2\"\n";
    let config = LoadCase::with_file(url)
        .env("LLMLB_USAGE_TOKEN", "hunter2")
        .good();
    let shown: Vec<String> = (config.effective().into_iter())
        .map(|line| line.value)
        .collect();
    let printed = format!("{config:?} {config:#?} {shown:?}");
    assert!(!printed.contains(SECRET), "{printed}");

    for file in [
        "[usage]\nurl = \"https://me:hunter2@a.example/\"\n",
        "[usage]\nurl = \"hunter2\"\n",
        "[usage]\nurl = \"https://a.example/#hunter2\"\n",
        "[usage]\ntoken = \"hunter2\"\n",
        "[usage]\ntoken_env = \"sk-hunter2\"\n",
        "[usage]\ntoken_env = \"hunter2\"\n",
        "[usage]\ntoken_env = [\"hunter2\"]\n",
    ] {
        let reported = LoadCase::with_file(file).problems();
        assert!(!reported.contains(SECRET), "{file}\n{reported}");
        assert!(reported.starts_with("llmlb.toml:2: usage."), "{reported}");
    }
    let run = LoadCase::with_file(url).env("LLMLB_USAGE_TOKEN", "two hunter2");
    let reported = run.problems();
    assert!(
        reported.starts_with("LLMLB_USAGE_TOKEN: the token has white space"),
        "{reported}"
    );
    assert!(!reported.contains(SECRET), "{reported}");
}
