//! `llmlb completions SHELL`: prints a completion script.

use clap::CommandFactory;
use clap_complete::Shell;

use super::args::Args;
use super::exit::{self, Failure};
use super::output;

pub(super) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "llmlb", &mut script);
    output::data(String::from_utf8_lossy(&script).trim_end())?;
    Ok(exit::DONE)
}
