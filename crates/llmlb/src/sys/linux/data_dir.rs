//! The directory for data of programs, as freedesktop.org has it.

use std::path::PathBuf;

/// `read` gives a directory that the environment names.
pub(crate) fn data_dir(read: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    read("XDG_DATA_HOME").or_else(|| Some(read("HOME")?.join(".local/share")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_user_set_or_lies_in_the_home_directory() {
        let both = |name: &str| Some(PathBuf::from(format!("/{name}")));
        assert_eq!(data_dir(both), Some(PathBuf::from("/XDG_DATA_HOME")));
        let home = |name: &str| (name == "HOME").then(|| PathBuf::from("/h"));
        assert_eq!(data_dir(home), Some(PathBuf::from("/h/.local/share")));
        assert_eq!(data_dir(|_| None), None);
    }
}
