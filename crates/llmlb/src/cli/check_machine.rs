//! Checks of `llmlb check` that concern this machine: the directories that a server would use, and
//! the server's address.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::config::{Config, OnFailure, Receiver};
use crate::{data_dir, lock, sys};

/// Minimum free space on the disk of the data directory. Less is reported, because staging would
/// soon fail.
const MIN_FREE: u64 = 64 << 20;

/// Returns the reasons why a server with this configuration would not start, or would record no usage.
pub(super) fn problems(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    let own = SocketAddr::new(config.server.host, config.server.port);
    for (backend, origin) in config.backends.iter().zip(&config.origins.backends) {
        if own.port() != 0 && backend.leads_to(own) {
            let (name, url) = (&backend.name, &backend.url);
            problems.push(format!(
                "{origin}: backend {name} at {url} is this server itself"
            ));
        }
    }
    problems.extend(unknown_models(config));
    if config.usage.enabled {
        problems.extend(data_directory(config));
    }
    let locks = lock::lock_dir();
    problems
        .extend(directory(&locks).map(|why| format!("lock directory {}: {why}", locks.display())));
    problems
}

/// Returns a problem for each alias that no backend serves, if the configuration lists the models
/// of all backends.
fn unknown_models(config: &Config) -> Vec<String> {
    let listed: Option<Vec<&Vec<String>>> = config
        .backends
        .iter()
        .map(|one| one.models.as_ref())
        .collect();
    let Some(listed) = listed.filter(|listed| !listed.is_empty()) else {
        return Vec::new();
    };
    let is_served = |name: &String| listed.iter().any(|models| models.contains(name));
    let aliases = config.aliases.iter().zip(&config.origins.aliases);
    let unserved = aliases.filter(|(alias, _)| !alias.models.iter().any(is_served));
    unserved
        .map(|(alias, origin)| {
            let (name, models) = (&alias.name, alias.models.join(", "));
            format!("{origin}: aliases.{name}: no backend lists {models} in its models")
        })
        .collect()
}

fn data_directory(config: &Config) -> Option<String> {
    let Some(dir) = data_dir::find(config.usage.data_dir.as_deref(), false) else {
        let refuses = config.usage.on_failure == OnFailure::Refuse;
        return refuses.then(|| {
            "no data directory: this user has no home directory; set LLMLB_DATA_DIR".to_owned()
        });
    };
    let why = directory(&dir)
        .or_else(|| destination(config, &dir))
        .or_else(|| {
            let free = sys::disk_free(&existing(&dir)?)?;
            let mebibytes = free >> 20;
            (free < MIN_FREE)
                .then(|| format!("the disk of this directory has only {mebibytes} MiB left"))
        })?;
    Some(format!("data directory {}: {why}", dir.display()))
}

/// Returns the reason why a server could not use or create this directory; `None` if it could.
fn directory(dir: &Path) -> Option<String> {
    let found = match std::fs::metadata(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if dir.is_symlink() {
                return Some("the link points to a missing directory".to_owned());
            }
            let parent = existing(dir)?;
            let is_usable = parent.is_dir() && sys::is_writable(&parent);
            let parent = parent.display();
            return (!is_usable)
                .then(|| format!("this user cannot create the directory in {parent}"));
        }
        Err(error) => return Some(error.kind().to_string()),
    };
    if !found.is_dir() {
        return Some("this is not a directory".to_owned());
    }
    if !sys::is_writable(dir) {
        let owner = sys::users::owner_of(dir);
        let owner = owner.map_or_else(String::new, |owner| format!(", which belongs to {owner}"));
        return Some(format!("this user may not write the directory{owner}"));
    }
    None
}

/// Returns the nearest parent that exists of a directory which may be missing.
fn existing(dir: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(dir).ok()?;
    absolute
        .ancestors()
        .find(|one| one.exists())
        .map(Path::to_owned)
}

/// Returns a problem if the records in the data directory go to another destination than the
/// configured one.
fn destination(config: &Config, dir: &Path) -> Option<String> {
    let wanted = config.usage.url.as_ref().map(Receiver::shown);
    let claimed = spool::destination(dir).ok()??;
    (Some(claimed.as_str()) != wanted && !(wanted.is_none() && claimed.is_empty())).then(|| {
        let wanted = wanted.unwrap_or("none");
        format!("the records in this directory go to {claimed} (usage.url: {wanted})")
    })
}
