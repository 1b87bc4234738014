//! A kernel handle that is closed when dropped.

use std::io;

use windows_sys::Win32::Foundation::{CloseHandle, HANDLE};

#[derive(Debug)]
pub(crate) struct Handle(HANDLE);

// SAFETY: a handle is a number that any thread of the process may use.
unsafe impl Send for Handle {}
// SAFETY: the kernel synchronizes calls on a handle.
unsafe impl Sync for Handle {}

impl Handle {
    /// Takes ownership of a handle that a system call returned. Null means that the call failed.
    pub(crate) fn new(raw: HANDLE) -> io::Result<Self> {
        if raw.is_null() {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self(raw))
        }
    }

    pub(crate) fn raw(&self) -> HANDLE {
        self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this value owns the handle, which is closed only here.
        unsafe { CloseHandle(self.0) };
    }
}

/// Returns the text in UTF-16 with a zero at the end, as Windows functions expect strings.
pub(crate) fn wide(text: impl AsRef<std::ffi::OsStr>) -> Vec<u16> {
    use std::os::windows::ffi::OsStrExt;
    text.as_ref()
        .encode_wide()
        .chain(std::iter::once(0))
        .collect()
}
