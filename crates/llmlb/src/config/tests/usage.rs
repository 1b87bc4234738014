//! `[usage]`: where records go, and what is refused.

use std::time::Duration;

use super::super::usage::OnFailure;
use super::super::{Format, Origin, settings};
use super::*;

const SECRET: &str = "hunter2";

#[test]
fn usage_is_recorded_and_kept_unless_told_otherwise() {
    let usage = Run::new().good().usage;
    assert!(usage.enabled);
    assert_eq!(usage.url, None);
    assert_eq!(usage.token, None);
    assert_eq!(usage.every, Duration::from_secs(60));
    assert_eq!(usage.format, Format::Json);
    assert_eq!(usage.on_failure, OnFailure::Serve);
    assert!(!usage.allow_http);
    assert!(usage.archive.is_unlimited() && usage.failed.is_unlimited());
}

#[test]
fn a_receiver_and_its_token_are_named_in_the_file_or_the_environment() {
    let file = "[usage]\nurl = \"https://a.example/u\"\ntoken_env = \"BILLING\"\n";
    let run = Run::with_file(file).env("BILLING", "t1");
    let usage = run.good().usage;
    assert_eq!(usage.url.unwrap().url(), "https://a.example/u");
    assert_eq!(usage.token, Some(spool::Token::new("t1").unwrap()));

    let run = run.env("LLMLB_USAGE_URL", "https://b.example/");
    let config = run.good();
    assert_eq!(
        config.usage.url.as_ref().unwrap().shown(),
        "https://b.example/"
    );
    let origin = config.origins.of(&settings::USAGE_URL);
    assert_eq!(*origin, Origin::Variable("LLMLB_USAGE_URL".into()));

    // The usual variable need not be named, nor be set.
    let run = Run::new().env("LLMLB_USAGE_URL", "https://b.example/");
    assert_eq!(run.good().usage.token, None);
    let run = run.env("LLMLB_USAGE_TOKEN", "t2");
    assert_eq!(
        run.good().usage.token,
        Some(spool::Token::new("t2").unwrap())
    );
    // One that is named may look like ours.
    let file = "[usage]\nurl = \"https://a.example/u\"\ntoken_env = \"LLMLB_BILLING\"\n";
    Run::with_file(file).env("LLMLB_BILLING", "t").good();
}

#[test]
fn each_mistake_is_told_with_its_place() {
    let every = "text like \"500ms\", \"30s\", \"5m\" or \"1h\", from \"1s\" to \"24h\"";
    let url = "https://HOST[:PORT][/PATH], or http://.. on this machine";
    for (line, told) in [
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
            "token: unknown key (did you mean token_env?); allowed: enabled, url, token_env, \
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
        let told = format!("llmlb.toml:{number}: usage.{told}");
        let run = Run::with_file(&format!("[usage]\n{line}\n"));
        assert_eq!(run.problems(), told, "{line}");
    }
}

#[test]
fn plain_http_to_another_machine_is_refused_unless_it_is_meant() {
    let file = "[usage]\nurl = \"http://10.0.0.9/u?key=hunter2\"\n";
    let told = Run::with_file(file).problems();
    let start = "llmlb.toml:2: usage.url: http://10.0.0.9/u is on another machine: ";
    assert!(told.starts_with(start), "{told}");
    assert!(told.contains("usage.allow_http = true"), "{told}");
    Run::with_file(&format!("{file}allow_http = true\n")).good();
    Run::with_file(file)
        .env("LLMLB_USAGE_ALLOW_HTTP", "true")
        .good();
    for host in ["127.0.0.1:8080", "localhost", "[::1]"] {
        Run::new()
            .env("LLMLB_USAGE_URL", &format!("http://{host}/"))
            .good();
    }
}

#[test]
fn a_token_is_not_needed_where_nothing_is_sent() {
    let named = "[usage]\ntoken_env = \"BILLING\"\n";
    Run::with_file(named).good();
    Run::with_file(&format!(
        "{named}enabled = false\nurl = \"https://a.example/\"\n"
    ))
    .good();
}

#[test]
fn neither_a_token_nor_a_key_in_the_url_is_ever_shown() {
    let url = "[usage]\nurl = \"https://a.example/?key=hunter2\"\n";
    let config = Run::with_file(url)
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
        let told = Run::with_file(file).problems();
        assert!(!told.contains(SECRET), "{file}\n{told}");
        assert!(told.starts_with("llmlb.toml:2: usage."), "{told}");
    }
    let run = Run::with_file(url).env("LLMLB_USAGE_TOKEN", "two hunter2");
    let told = run.problems();
    assert!(
        told.starts_with("LLMLB_USAGE_TOKEN: the token has white space"),
        "{told}"
    );
    assert!(!told.contains(SECRET), "{told}");
}
