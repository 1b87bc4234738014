//! Base directory in which programs store data on Linux, by the XDG Base Directory Specification.

use std::path::PathBuf;

/// Returns the directory in which programs of this user store data; llmlb's default data directory
/// is its subdirectory `llmlb`. `read` returns the directory that an environment variable names.
pub(crate) fn data_dir(read: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    read("XDG_DATA_HOME").or_else(|| Some(read("HOME")?.join(".local/share")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_dir_is_xdg_data_home_or_in_the_home_directory() {
        let both = |name: &str| Some(PathBuf::from(format!("/{name}")));
        assert_eq!(data_dir(both), Some(PathBuf::from("/XDG_DATA_HOME")));
        let home = |name: &str| (name == "HOME").then(|| PathBuf::from("/h"));
        assert_eq!(data_dir(home), Some(PathBuf::from("/h/.local/share")));
        assert_eq!(data_dir(|_| None), None);
    }
}
