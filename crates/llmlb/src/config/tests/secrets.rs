//! L11: keys and passwords are never shown.

use super::super::BackendUrl;
use super::*;

const SECRET: &str = "hunter2";

#[test]
fn a_key_is_not_in_anything_that_is_printed_of_a_configuration() {
    let file = "[[backend]]\nurl = \"http://a\"\napi_key_env = \"GPU_KEY\"\n";
    let config = Run::with_file(file).env("GPU_KEY", SECRET).good();
    let printed = format!("{config:?} {config:#?}");
    assert!(!printed.contains(SECRET), "{printed}");
    assert!(printed.contains("***"), "{printed}");
}

#[test]
fn no_message_repeats_a_key_or_a_password() {
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
        let told = Run::with_file(&file).problems();
        assert!(!told.contains(SECRET), "{file}\n{told}");
        assert!(told.starts_with("llmlb.toml:"), "{told}");
    }
}

#[test]
fn nor_does_one_about_a_variable_or_a_flag() {
    for text in [
        "http://u:hunter2@h",
        "http://u:hunter2 h",
        "https://u:hunter2@h",
    ] {
        let told = Run::new().env("LLMLB_BACKENDS", text).problems();
        assert!(!told.contains(SECRET), "{told}");
        let told = Run::new().flags(flags_with_backends(&[text])).problems();
        assert!(!told.contains(SECRET), "{told}");
        assert!(!BackendUrl::parse(text).unwrap_err().contains(SECRET));
    }
    let told = Run::new().env("LLMLB_API_KEY", SECRET).problems();
    assert!(!told.contains(SECRET), "{told}");
    let file = "[[backend]]\nurl = \"http://a\"\napi_key_env = \"GPU_KEY\"\n";
    let told = Run::with_file(file).env("GPU_KEY", "hunter2\n").problems();
    assert_eq!(
        told,
        "llmlb.toml:3: backend.api_key_env: the variable GPU_KEY holds what cannot be a key; \
         allowed: visible ASCII characters"
    );
}
