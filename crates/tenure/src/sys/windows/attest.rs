//! Windows does not say who has a byte locked; the record's process identity stands in for it.

use std::io;

use super::file::{FileId, LockFile};
use crate::record::Record;
use crate::sys::by_identity;
use crate::sys::testimony::{Attested, Word};

pub(crate) fn peek(file: &LockFile) -> io::Result<Word> {
    Ok(if file.probe()? {
        Word::Free
    } else {
        Word::Held { taker: None }
    })
}

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
