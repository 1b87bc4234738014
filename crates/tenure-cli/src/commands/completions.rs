//! `tenure completions SHELL`

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::args::Args;
use crate::exit::{self, Failure};

pub(crate) fn completions(shell: Shell) -> Result<i32, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "tenure", &mut script);
    io::stdout()
        .write_all(&script)
        .map_err(|error| Failure::new(exit::FAILED, format!("cannot print the script: {error}")))?;
    Ok(exit::DONE)
}
