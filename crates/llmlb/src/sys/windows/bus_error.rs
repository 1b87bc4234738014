//! Accesses to mapped files whose bytes are gone. They cannot occur on Windows, which refuses to
//! truncate a mapped file.

use std::io;
use std::ops::Range;

#[derive(Debug)]
pub(crate) struct Guarded(());

impl Guarded {
    /// Does nothing, because Windows refuses to truncate a mapped file.
    #[expect(clippy::unnecessary_wraps, reason = "same signature on every system")]
    pub(crate) fn new(_addresses: Range<usize>) -> io::Result<Self> {
        Ok(Self(()))
    }
}
