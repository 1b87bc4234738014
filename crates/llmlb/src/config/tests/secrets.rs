//! L11: tests that messages never show keys and passwords.

use super::super::BackendUrl;
use super::*;

const SECRET: &str = "hunter2";

#[test]
fn debug_output_of_a_configuration_contains_no_key() {
    let file = "[[backend]]\nurl = \"http://a\"\napi_key_env = \"GPU_KEY\"\n";
    let config = LoadCase::with_file(file).env("GPU_KEY", SECRET).good();
    let printed = format!("{config:?} {config:#?}");
    assert!(!printed.contains(SECRET), "{printed}");
    assert!(printed.contains("***"), "{printed}");
}

#[test]
fn messages_about_the_file_contain_no_key_or_password() {
    let url = |url: &str| format!("[[backend]]\nurl = \"{url}\"\n");
    let key = |key: &str| format!("[[backend]]\nurl = \"http://a\"\n{key}\n");
    for file in [
        url("http://user:hunter2@host"),
        url("https://user:hunter2@host"),
        url("user:hunter2@host"),
        url("http://user:hunter2/x@host"),
        url("http://user:hunter2"),
        url("http://host/?key=hunter2"),
        url("http://host/#hunter2"),
        url("http://host:80:hunter2"),
        key("api_key = \"hunter2\""),
        key("api_key_env = \"sk-hunter2\""),
        key("api_key_env = \"hunter2\""),
        key("api_key_env = [\"hunter2\"]"),
        key("api_key_env = hunter2"),
        key("api_key_env = \"hunter2"),
        key("api_key_env = \"hunter2\" x"),
    ] {
        let reported = LoadCase::with_file(&file).problems();
        assert!(!reported.contains(SECRET), "{file}\n{reported}");
        assert!(reported.starts_with("llmlb.toml:"), "{reported}");
    }
}

#[test]
fn messages_about_variables_and_flags_contain_no_key_or_password() {
    for text in [
        "http://u:hunter2@h",
        "http://u:hunter2 h",
        "https://u:hunter2@h",
    ] {
        let reported = LoadCase::new().env("LLMLB_BACKENDS", text).problems();
        assert!(!reported.contains(SECRET), "{reported}");
        let reported = LoadCase::new()
            .flags(flags_with_backends(&[text]))
            .problems();
        assert!(!reported.contains(SECRET), "{reported}");
        assert!(!BackendUrl::parse(text).unwrap_err().contains(SECRET));
    }
    let reported = LoadCase::new().env("LLMLB_API_KEY", SECRET).problems();
    assert!(!reported.contains(SECRET), "{reported}");
    let file = "[[backend]]\nurl = \"http://a\"\napi_key_env = \"GPU_KEY\"\n";
    let reported = LoadCase::with_file(file)
        .env("GPU_KEY", "hunter2\n")
        .problems();
    assert_eq!(
        reported,
        "llmlb.toml:3: backend.api_key_env: the value of the variable GPU_KEY cannot be a key; \
         allowed: visible ASCII characters"
    );
}

#[test]
fn password_of_the_lease_store_is_never_shown() {
    for (url, shown) in [
        ("redis://:hunter2@h:1/2?prefix=x", Some("redis://h:1/2")),
        ("rediss://u:a?hunter2/b@h", Some("rediss://h")),
        ("etcd://u:hunter2@h:1,i:2/p", Some("etcd://h:1,i:2/p")),
        ("dynamodb://t?region=hunter2", Some("dynamodb://t")),
        ("redis:hunter2@h", None),
        ("http://u:hunter2@h", None),
        ("redis://u:hunter2 @h", None),
    ] {
        let run = LoadCase::new().env("LLMLB_FLEET_STORE", url);
        let Some(shown) = shown else {
            let reported = run.problems();
            assert!(!reported.contains(SECRET), "{reported}");
            assert!(reported.starts_with("LLMLB_FLEET_STORE: "), "{reported}");
            continue;
        };
        let config = run.good();
        let store = config.fleet.store.as_ref().unwrap();
        assert_eq!((store.url(), store.shown()), (url, shown));
        let printed: Vec<_> = config
            .effective()
            .iter()
            .map(|line| line.value.clone())
            .collect();
        let printed = format!("{config:?} {printed:?}");
        assert!(!printed.contains(SECRET), "{printed}");
    }
}
