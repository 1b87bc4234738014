//! What differs between systems, under the same names.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::{create, is_same_file, make_dir, open, sync_dir, write_at};
#[cfg(windows)]
pub(crate) use windows::{
    create, is_same_file, make_dir, open, overwrite_in_place, sync_dir, write_at,
};

#[cfg(target_os = "linux")]
pub(crate) use linux::overwrite_in_place;
#[cfg(all(unix, not(target_os = "linux")))]
pub(crate) use unix::overwrite_in_place;

/// The error for something that has the name of a file of ours, and is none.
pub(crate) fn not_a_file() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file")
}
