//! Text output of `llmlb status` about the configuration that a server uses.

use std::time::SystemTime;

use super::{plain, usage};
use crate::cli::status_client::ConfigStatus;

/// Formats a server's configuration: its file, the last file that it refused, and changed settings
/// that need a restart.
pub(super) fn lines(config: &ConfigStatus, now: SystemTime) -> Vec<String> {
    let path = config.path.as_deref().unwrap_or("no file");
    let hash = config.hash.as_ref();
    let hash = hash.map_or_else(String::new, |hash| format!(" {hash}"));
    let since = usage::ago(&config.since, now);
    let reloads = match config.reloads {
        0 => String::new(),
        1 => ", 1 reload".to_owned(),
        many => format!(", {many} reloads"),
    };
    let mut lines = vec![format!(
        "  {:<10} {}{} (since {since}{reloads})",
        "config",
        plain(path),
        plain(&hash)
    )];
    if let Some(refused) = &config.refused {
        let more = match refused.problems {
            0 | 1 => String::new(),
            many => format!(" and {} more", many - 1),
        };
        let when = usage::ago(&refused.at, now);
        lines.push(format!(
            "    changed file refused {when}: {}{more}",
            plain(&refused.error)
        ));
    }
    for change in &config.after_restart {
        lines.push(format!("    after restart: {}", plain(change)));
    }
    lines
}
