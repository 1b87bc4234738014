//! What cannot be read is set aside with a reason, never dropped.

use std::path::Path;

use serde_json::json;

use crate::data_dir::place;
use crate::disk::Disk;
use crate::error::Error;

/// Keeps these bytes in `failed/` under this name, with the reason beside them. Doing it again
/// changes nothing.
pub(crate) fn set_aside(
    disk: &dyn Disk,
    failed: &Path,
    name: &str,
    bytes: &[u8],
    reason: &str,
) -> Result<(), Error> {
    let path = failed.join(name);
    if path.exists() {
        return Ok(());
    }
    tracing::warn!(path = %path.display(), reason, "set aside");
    // The reason first: what is there has one.
    let text = json!({ "version": 1, "name": name, "reason": reason }).to_string() + "\n";
    place(
        disk,
        failed,
        &format!("{name}.reason.json"),
        text.as_bytes(),
    )?;
    place(disk, failed, name, bytes)?;
    disk.sync_dir(failed)
        .map_err(|error| Error::new("sync", failed, error))
}
