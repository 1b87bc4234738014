//! Compares the help screens of a command with a file in the repository, so that every change of a
//! help text shows in a review.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Compares the help screens of a program and of all its subcommands with a file. With
/// `UPDATE_PAGES=1` in the environment, writes the file instead.
pub fn assert_screens(program: &str, file: &Path) {
    let mut actual = String::new();
    collect(program, &[], &mut actual);
    if std::env::var_os("UPDATE_PAGES").is_some() {
        return fs::write(file, actual).expect("the file is writable");
    }
    let expected = fs::read_to_string(file).unwrap_or_default();
    assert!(
        actual == expected.replace("\r\n", "\n"),
        "the help screens differ from {}; check the change, then run this test with UPDATE_PAGES=1:\n{actual}",
        file.display()
    );
}

fn collect(program: &str, subcommand: &[&str], screens: &mut String) {
    let output = Command::new(program)
        .args(subcommand)
        .arg("--help")
        .env("COLUMNS", "100")
        .env_remove("NO_COLOR")
        .output()
        .expect("the program starts");
    let name = Path::new(program).file_stem().unwrap_or_default();
    let words = [name.to_str().unwrap_or_default()].into_iter();
    let command = words
        .chain(subcommand.iter().copied())
        .collect::<Vec<_>>()
        .join(" ");
    assert!(output.status.success(), "{command} --help: {output:?}");
    let screen = String::from_utf8(output.stdout).expect("help is UTF-8");
    let screen = screen.replace("\r\n", "\n").replace(".exe", "");
    let _ = writeln!(screens, "$ {command} --help\n{screen}");
    for name in subcommands(&screen) {
        let path: Vec<_> = subcommand.iter().copied().chain([name]).collect();
        collect(program, &path, screens);
    }
}

/// Names in the list of commands of a help screen, without `help` itself.
fn subcommands(screen: &str) -> Vec<&str> {
    let list = screen
        .split_once("\nCommands:\n")
        .map_or("", |(_, rest)| rest);
    let lines = list.lines().take_while(|line| !line.is_empty());
    lines
        .filter_map(|line| line.strip_prefix("  ")?.split_once(' '))
        .map(|(name, _)| name)
        .filter(|name| !matches!(*name, "" | "help"))
        .collect()
}
