//! Functions that differ between operating systems, with the same names on each.

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

/// Error for a path of a spool file that is a link, a directory or a device.
pub(crate) fn not_a_file() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file")
}
