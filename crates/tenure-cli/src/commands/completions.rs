//! `tenure completions SHELL`

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::exit::{self, Failure};
use crate::output;

pub(crate) fn completions(shell: Shell) -> Result<i32, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "tenure", &mut script);
    output::data(&String::from_utf8_lossy(&script))?;
    Ok(exit::DONE)
}
