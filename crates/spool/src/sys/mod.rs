//! What differs between systems, under the same names.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::{create, make_dir, open, sync_dir, write_at};
#[cfg(windows)]
pub(crate) use windows::{create, make_dir, open, sync_dir, write_at};

/// The error for something that has the name of a file of ours, and is none.
fn not_a_file() -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file")
}
