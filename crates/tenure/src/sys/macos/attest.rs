//! macOS does not say who has a `flock`; the record's process identity stands in for it.

use std::io;

use super::super::by_identity;
use super::super::testimony::{Attested, Word};
use super::super::unix::file::{FileId, LockFile};
use crate::record::Record;

/// Looks whether the lock is held, by taking a shared one for an instant.
pub(crate) fn peek(file: &LockFile) -> io::Result<Word> {
    Ok(if file.probe()? {
        Word::Free
    } else {
        Word::Held { taker: None }
    })
}

/// A file that we may not open cannot be asked about.
pub(crate) fn peek_closed(_id: FileId) -> Word {
    Word::Free
}

pub(crate) fn taker(_file: &LockFile) -> Option<u32> {
    None
}

pub(crate) fn attest(_file: &LockFile, _taker: Option<u32>, record: &Record) -> Attested {
    by_identity::attest(record)
}

pub(crate) fn record_of_lost_file(_pid: u32, _key: &str) -> Option<Record> {
    None
}
