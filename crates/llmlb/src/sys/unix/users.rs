//! Users, for people to read.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::text;

/// The owner of a file or, if that cannot be seen, of the nearest directory above it that can.
pub(crate) fn owner_of(path: &Path) -> Option<String> {
    let about = path.ancestors().find_map(|path| path.metadata().ok())?;
    Some(shown(about.uid()))
}

/// `alice (uid 1000)`, or `uid 1000`. The name comes from `/etc/passwd` alone: asking the name
/// service may block on a network.
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
    fn a_user_is_shown_by_name_and_number() {
        assert_eq!(shown(0), "root (uid 0)");
        assert_eq!(shown(3_999_999_999), "uid 3999999999");
    }
}
