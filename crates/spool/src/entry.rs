//! Names of entries: the files of the staging directory.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::record::parse_id;

/// Type of an entry, which follows from the ending of its file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum EntryKind {
    /// `{uuid}.json`: one record, written by any program.
    Single,
    /// `{uuid}.jsonl`: many records, and no writer adds more.
    Sealed,
    /// `{uuid}.jsonl.open`: many records; its writer may add more.
    Open,
}

/// File name of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct EntryName {
    pub(crate) id: Uuid,
    pub(crate) kind: EntryKind,
}

impl EntryName {
    /// Parses a file name. Returns `None` if no entry can have it.
    pub(crate) fn parse(name: &OsStr) -> Option<Self> {
        let (stem, ending) = name.to_str()?.split_once('.')?;
        let kind = match ending {
            "json" => EntryKind::Single,
            "jsonl" => EntryKind::Sealed,
            "jsonl.open" => EntryKind::Open,
            _ => return None,
        };
        let id = parse_id(stem).ok()?;
        // A UUID has several spellings, for example with capital letters. Only the standard one is
        // accepted, so that no two files are the same entry.
        (id.to_string() == stem).then_some(Self { id, kind })
    }

    pub(crate) fn path_in(self, staging: &Path) -> PathBuf {
        let ending = match self.kind {
            EntryKind::Single => "json",
            EntryKind::Sealed => "jsonl",
            EntryKind::Open => "jsonl.open",
        };
        staging.join(format!("{}.{ending}", self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_parsed_as_it_was_written() {
        let id = Uuid::now_v7();
        for kind in [EntryKind::Single, EntryKind::Sealed, EntryKind::Open] {
            let name = EntryName { id, kind };
            let path = name.path_in(Path::new("/s"));
            assert_eq!(EntryName::parse(path.file_name().unwrap()), Some(name));
        }
    }

    #[test]
    fn names_of_other_files_are_not_entry_names() {
        for name in [
            "",
            ".consolidation.lock",
            "x.json",
            "01890a5d-ac96-774b-bcce-b302099a8057",
            "01890a5d-ac96-774b-bcce-b302099a8057.tmp",
            "01890A5D-AC96-774B-BCCE-B302099A8057.json",
            "01890a5dac96774bbcceb302099a8057.json",
            "936da01f-9abd-4d9d-80c7-02af85c822a8.json",
            ".01890a5d-ac96-774b-bcce-b302099a8057.json.tmp",
        ] {
            assert_eq!(EntryName::parse(OsStr::new(name)), None, "{name}");
        }
    }
}
