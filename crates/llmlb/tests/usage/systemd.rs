//! The units in `examples/systemd`, validated by systemd itself.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::process::Command;

use crate::support::UsageSandbox;
use testkit::Finished;

const UNITS: [(&str, &str); 3] = [
    (
        "llmlb.service",
        include_str!("../../../../examples/systemd/llmlb.service"),
    ),
    (
        "llmlb-usage.service",
        include_str!("../../../../examples/systemd/llmlb-usage.service"),
    ),
    (
        "llmlb-usage.timer",
        include_str!("../../../../examples/systemd/llmlb-usage.timer"),
    ),
];

#[test]
fn systemd_accepts_the_units_without_a_warning() {
    if !testkit::has_tool("systemd-analyze").unwrap() {
        return;
    }
    let sandbox = UsageSandbox::new();
    let files: Vec<_> = UNITS
        .iter()
        .map(|(name, text)| {
            let adapted = text.replace("/usr/local/bin/llmlb", env!("CARGO_BIN_EXE_llmlb"));
            sandbox.file(name, adapted)
        })
        .collect();
    let ran = Finished::run(Command::new("systemd-analyze").arg("verify").args(files));
    assert_eq!((ran.code, ran.output().as_str()), (Some(0), ""), "{ran:?}");
}

/// Returns the settings of a unit; a setting occurs once.
fn settings(unit: &str) -> BTreeMap<&str, &str> {
    let (_, text) = UNITS.iter().find(|(name, _)| *name == unit).unwrap();
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .collect()
}

/// Both services must have the same user and directory. Dynamic users with different names could
/// not use each other's files.
#[test]
fn both_services_have_the_same_user_and_directory() {
    let (serve, deliver) = (settings("llmlb.service"), settings("llmlb-usage.service"));
    for name in ["User", "DynamicUser", "StateDirectory"] {
        assert!(serve.contains_key(name), "{name}");
        assert_eq!(serve.get(name), deliver.get(name), "{name}");
    }
    let data = "LLMLB_DATA_DIR=/var/lib/llmlb";
    for unit in [serve, deliver] {
        assert!(
            unit["Environment"]
                .split(' ')
                .any(|variable| variable == data)
        );
    }
}

/// The commands of the units must be valid, otherwise the service would fail at its first start.
#[test]
fn commands_of_the_units_are_valid() {
    for unit in ["llmlb.service", "llmlb-usage.service"] {
        let settings = settings(unit);
        let words: Vec<&str> = settings["ExecStart"].split(' ').skip(1).collect();
        let mut command = Command::new(env!("CARGO_BIN_EXE_llmlb"));
        let ran = Finished::run(command.args(words).arg("--help"));
        assert_eq!(ran.code, Some(0), "{unit}: {ran:?}");
    }
}

#[test]
fn pages_show_the_units_as_they_are() {
    let page = |name: &str, text: &str| {
        let (_, unit) = UNITS.iter().find(|(unit, _)| *unit == name).unwrap();
        assert!(text.contains(unit), "{name} differs");
    };
    let production = include_str!("../../../../docs/production.md");
    page("llmlb.service", production);
    page("llmlb-usage.service", production);
}
