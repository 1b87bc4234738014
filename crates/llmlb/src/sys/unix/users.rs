//! Names of users, for messages about files and ports of other users.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::text;

/// Returns the owner of a file or, if the file is not accessible, of the nearest ancestor that is.
pub(crate) fn owner_of(path: &Path) -> Option<String> {
    let about = path.ancestors().find_map(|path| path.metadata().ok())?;
    Some(shown(about.uid()))
}

/// Formats a user as `alice (uid 1000)`, or `uid 1000` without a name. The name comes from
/// `/etc/passwd` only: a lookup by the name service (NSS) could block on the network.
pub(crate) fn shown(uid: u32) -> String {
    let name = fs::read_to_string("/etc/passwd").ok().and_then(|passwd| {
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(uid)).then(|| text::plain(name).into_owned())
        })
    });
    match name {
        Some(name) => format!("{name} (uid {uid})"),
        None => format!("uid {uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_shown_with_name_and_uid() {
        assert_eq!(shown(0), "root (uid 0)");
        assert_eq!(shown(3_999_999_999), "uid 3999999999");
    }
}
