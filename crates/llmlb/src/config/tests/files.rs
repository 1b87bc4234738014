//! Which file is read, and what is said of one that cannot be.

use std::path::{Path, PathBuf};

use super::*;

fn named(file: &str) -> Flags {
    Flags {
        config: Some(file.into()),
        ..Flags::default()
    }
}

#[test]
fn the_flag_names_the_file_else_the_variable_else_it_is_the_usual_one() {
    let run = Run::with_file("[server]\nport = 1\n")
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
fn a_file_that_is_named_must_be_there() {
    let run = Run::new().env("LLMLB_CONFIG", "a.toml");
    assert_eq!(
        run.problems(),
        "a.toml: there is no such file (named by LLMLB_CONFIG)"
    );
    let run = run.flags(named("b.toml"));
    assert_eq!(
        run.problems(),
        "b.toml: there is no such file (named by --config)"
    );
}

#[test]
fn what_is_no_text_file_is_told_in_plain_words() {
    let run = Run::new().file("llmlb.toml", b"[server]\n# \xff\n");
    assert_eq!(run.problems(), "llmlb.toml: line 2 is not UTF-8 text");
    let run = Run::new().file("llmlb.toml", &vec![b'#'; (1 << 20) + 1]);
    assert_eq!(
        run.problems(),
        "llmlb.toml: the file is too large; allowed: up to 1 MiB"
    );
    Run::new().file("llmlb.toml", &vec![b'#'; 1 << 20]).good();
    let run = Run::new();
    fs::create_dir(run.directory.path().join("llmlb.toml")).unwrap();
    assert_eq!(
        run.problems(),
        "llmlb.toml: this is a directory, not a file"
    );
    let run = Run::with_file("").flags(named("llmlb.toml/x"));
    assert!(!run.problems().contains("os error"));
}

#[test]
fn a_missing_file_does_not_hide_what_else_is_wrong() {
    let run = Run::new()
        .env("LLMLB_CONFIG", "a.toml")
        .env("LLMLB_PORT", "x");
    assert_eq!(run.problems().lines().count(), 2);
}

#[test]
fn an_empty_file_and_one_from_windows_are_good() {
    Run::with_file("").good();
    Run::with_file("\u{feff}").good();
    let config = Run::with_file("\u{feff}[server]\r\nport = 7\r\n").good();
    assert_eq!(config.server.port, 7);
    let told = Run::with_file("\r\n\r\n[server]\r\nport = 70000\r\n").problems();
    assert!(told.starts_with("llmlb.toml:4: "), "{told}");
}

#[test]
fn a_name_of_many_lines_is_told_on_one() {
    let told = Run::new().flags(named("a\nb.toml")).problems();
    assert!(told.starts_with("a?b.toml: the"), "{told}");
    let run = Run::with_file("[server]\nhost = \"a\\nb\"\n\"x\\ny\" = 1\n");
    assert_eq!(run.problems().lines().count(), 2);
}

#[cfg(unix)]
#[test]
fn a_link_to_nowhere_is_not_taken_for_no_file() {
    let run = Run::new();
    std::os::unix::fs::symlink("nowhere", run.directory.path().join("llmlb.toml")).unwrap();
    assert_eq!(
        run.problems(),
        "llmlb.toml: this links to a file that is not there"
    );
}
