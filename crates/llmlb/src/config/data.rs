//! Configuration of the commands that work on the data directory of `serve`: the sections `[usage]` and
//! `[fleet]`, from the same layers. Problems in other sections do not stop these commands.

use std::path::{Path, PathBuf};

use spool::Token;

use super::document::TomlDocument;
use super::env::Environment;
use super::layers::Layers;
use super::problems::{ProblemList, Problems};
use super::setting::Section;
use super::settings::{FleetConfig, UsageConfig};
use super::{Flags, file};

/// Sections of the configuration that the commands on a data directory use.
const SECTIONS: [&str; 2] = ["usage", "fleet"];

#[derive(Debug, Clone)]
pub(crate) struct DataConfig {
    pub(crate) usage: UsageConfig,
    pub(crate) fleet: FleetConfig,
}

/// Reads `[usage]` and `[fleet]` from the file, the environment and the flags. The error contains
/// all problems of the two sections, and all syntax errors of the file: after such an error a
/// section may be missing.
pub(crate) fn load(flags: &Flags) -> Result<DataConfig, Problems> {
    let env = Environment::from_process();
    read_with(flags, &env, Path::new(""), |_, _| ()).map(|(config, ())| config)
}

/// Returns the data directory that `LLMLB_DATA_DIR` names, without reading the configuration file.
pub(crate) fn directory_in_environment() -> Option<PathBuf> {
    Environment::from_process().path(super::settings::DATA_DIR)
}

/// Like [`load`], and also reads the token for the receiver of usage records. If the configuration
/// names the token's variable, the variable must be set.
pub(crate) fn load_with_token(flags: &Flags) -> Result<(DataConfig, Option<Token>), Problems> {
    let env = Environment::from_process();
    read_with(flags, &env, Path::new(""), |usage, layers| {
        usage.receiver_token(layers, &env)
    })
}

/// Reads `[usage]` and `[fleet]`, and further values that `also` reads from the same file,
/// environment and flags.
pub(super) fn read_with<T>(
    flags: &Flags,
    env: &Environment,
    directory: &Path,
    also: impl FnOnce(&UsageConfig, &mut Layers<'_>) -> T,
) -> Result<(DataConfig, T), Problems> {
    let mut problems = ProblemList::default();
    let source = file::find(flags, env, directory, &mut problems);
    let document = source.as_ref().map(TomlDocument::parse);
    if let Some(document) = &document {
        document.check_names(|section| SECTIONS.contains(&section), &mut problems);
    }
    let mut layers = Layers::new(document.as_ref(), env, flags, &mut problems);
    let usage = UsageConfig::read_from(&mut layers);
    let more = also(&usage, &mut layers);
    let fleet = FleetConfig::read(&mut layers);
    if let Some(document) = document {
        problems = document.all_problems(problems);
    }
    problems.into_result()?;
    Ok((DataConfig { usage, fleet }, more))
}
