//! The llmlb program under attack, and the start of attacks in a network namespace of their own.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::Sandbox;

use crate::{Outcome, Verdict};

/// llmlb program under attack.
#[derive(Clone, Debug)]
pub struct Target {
    llmlb: PathBuf,
    is_isolated: bool,
}

impl Target {
    /// Returns a target for this llmlb program.
    pub fn new(llmlb: &Path) -> Self {
        Self {
            llmlb: llmlb.to_owned(),
            is_isolated: false,
        }
    }

    /// Returns a target for attacks in a process that already has a network of its own, so that
    /// attacks are not started in another process once more.
    pub fn isolated(llmlb: &Path) -> Self {
        Self {
            is_isolated: true,
            ..Self::new(llmlb)
        }
    }

    /// True if this process runs in a network of its own. Attacks that change settings of the
    /// network may run only there.
    pub(crate) fn is_isolated(&self) -> bool {
        self.is_isolated
    }

    /// Returns a new sandbox, in which an attack runs this llmlb program with empty directories.
    pub(crate) fn sandbox(&self) -> io::Result<Sandbox> {
        Sandbox::try_new(&self.llmlb)
    }

    /// Runs an attack again in a process with a network of its own, which has only a loopback
    /// interface, and returns its verdict.
    pub(crate) fn run_isolated(&self, name: &str) -> Outcome {
        let mut command = Command::new("unshare");
        command
            .args(["--net", "sh", "-c"])
            .arg("ip link set lo up && exec \"$0\" --isolated --only \"$1\" --llmlb-bin \"$2\"")
            .arg(std::env::current_exe()?)
            .arg(name)
            .arg(&self.llmlb);
        let sandbox = self.sandbox()?;
        let finished = sandbox.try_finish(&mut command)?;
        let output = finished.stdout;
        let mut lines = output.lines();
        let line = lines.next().unwrap_or_default();
        let evidence = line.split_once(name).map(|(_, evidence)| evidence.trim());
        let Some(evidence) = evidence else {
            return Err(format!("no verdict: {output}{}", finished.stderr).into());
        };
        Ok(match line.split_whitespace().next() {
            Some("HOLDS") => Verdict::Holds(evidence.to_owned()),
            Some("SKIPPED") => Verdict::Skipped(evidence.to_owned()),
            _ => Verdict::Fails(evidence.to_owned()),
        })
    }
}
