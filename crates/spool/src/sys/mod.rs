//! What differs between systems, under the same names.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::{create, make_dir, sync_dir, write_at};
#[cfg(windows)]
pub(crate) use windows::{create, make_dir, sync_dir, write_at};
