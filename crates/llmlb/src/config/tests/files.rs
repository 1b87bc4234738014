//! Tests of the selection of the configuration file, and of messages about a file that cannot be
//! read.

use std::path::{Path, PathBuf};

use super::*;

fn named(file: &str) -> Flags {
    Flags {
        config: Some(file.into()),
        ..Flags::default()
    }
}

#[test]
fn flag_names_the_file_else_the_variable_else_the_default() {
    let run = LoadCase::with_file("[server]\nport = 1\n")
        .file("env.toml", b"[server]\nport = 2\n")
        .file("flag.toml", b"[server]\nport = 3\n");
    let config = run.good();
    assert_eq!(
        (config.server.port, config.file),
        (1, Some(PathBuf::from("llmlb.toml")))
    );
    let run = run.env("LLMLB_CONFIG", "env.toml");
    assert_eq!(run.good().server.port, 2);
    let run = run.flags(named("flag.toml"));
    let config = run.good();
    assert_eq!(config.server.port, 3);
    assert_eq!(config.file.as_deref(), Some(Path::new("flag.toml")));
}

#[test]
fn named_file_must_exist() {
    let run = LoadCase::new().env("LLMLB_CONFIG", "a.toml");
    assert_eq!(
        run.problems(),
        "a.toml: the file does not exist (named by LLMLB_CONFIG)"
    );
    let run = run.flags(named("b.toml"));
    assert_eq!(
        run.problems(),
        "b.toml: the file does not exist (named by --config)"
    );
}

#[test]
fn unreadable_file_is_reported_with_its_reason() {
    let run = LoadCase::new().file("llmlb.toml", b"[server]\n# \xff\n");
    assert_eq!(run.problems(), "llmlb.toml: line 2 is not UTF-8 text");
    let run = LoadCase::new().file("llmlb.toml", &vec![b'#'; (1 << 20) + 1]);
    assert_eq!(
        run.problems(),
        "llmlb.toml: the file is too large; allowed: up to 1 MiB"
    );
    LoadCase::new()
        .file("llmlb.toml", &vec![b'#'; 1 << 20])
        .good();
    let run = LoadCase::new();
    fs::create_dir(run.directory.path().join("llmlb.toml")).unwrap();
    assert_eq!(
        run.problems(),
        "llmlb.toml: this is a directory, not a file"
    );
    let run = LoadCase::with_file("").flags(named("llmlb.toml/x"));
    assert!(!run.problems().contains("os error"));
}

#[test]
fn missing_file_does_not_hide_other_problems() {
    let run = LoadCase::new()
        .env("LLMLB_CONFIG", "a.toml")
        .env("LLMLB_PORT", "x");
    assert_eq!(run.problems().lines().count(), 2);
}

#[test]
fn empty_file_and_windows_line_ends_are_accepted() {
    LoadCase::with_file("").good();
    LoadCase::with_file("\u{feff}").good();
    let config = LoadCase::with_file("\u{feff}[server]\r\nport = 7\r\n").good();
    assert_eq!(config.server.port, 7);
    let reported = LoadCase::with_file("\r\n\r\n[server]\r\nport = 70000\r\n").problems();
    assert!(reported.starts_with("llmlb.toml:4: "), "{reported}");
}

#[test]
fn line_breaks_in_names_are_replaced() {
    let reported = LoadCase::new().flags(named("a\nb.toml")).problems();
    assert!(reported.starts_with("a?b.toml: the"), "{reported}");
    let run = LoadCase::with_file("[server]\nhost = \"a\\nb\"\n\"x\\ny\" = 1\n");
    assert_eq!(run.problems().lines().count(), 2);
}

#[cfg(unix)]
#[test]
fn dangling_link_is_an_error() {
    let run = LoadCase::new();
    std::os::unix::fs::symlink("nowhere", run.directory.path().join("llmlb.toml")).unwrap();
    assert_eq!(
        run.problems(),
        "llmlb.toml: the link points to a missing file"
    );
}
