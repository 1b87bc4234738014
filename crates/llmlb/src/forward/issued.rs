//! Ids that a backend issues: of files, of stored answers, of batches. Only it knows them, so
//! requests that name one go there.

use foldhash::fast::FixedState;
use std::hash::BuildHasher;

use bytes::Bytes;
use memchr::memmem;

use crate::balance::{Backend, Pool};

/// How much of an answer is looked at: ids come early.
const LOOKED_AT: usize = 16 << 10;
/// The longest id.
const LONGEST: usize = 256;

/// Watches the beginning of an answer.
#[derive(Debug)]
pub(super) struct Watch {
    /// What may be the beginning of an id whose end has not come.
    kept: Vec<u8>,
    left: usize,
}

impl Watch {
    /// `path` is what follows `/v1/`. Nobody asks for a completion by its id, and there are many.
    pub(super) fn of(path: &str) -> Option<Self> {
        let unused = ["chat/completions", "completions", "embeddings", "messages"];
        (!unused.contains(&path)).then_some(Self {
            kept: Vec::new(),
            left: LOOKED_AT,
        })
    }

    pub(super) fn see(&mut self, data: &Bytes, pool: &Pool, backend: &Backend) {
        if self.left == 0 {
            return;
        }
        let new = &data[..data.len().min(self.left)];
        self.left -= new.len();
        self.kept.extend_from_slice(new);
        let done = ids(&self.kept, |id| pool.issued(hash(id), backend));
        self.kept.drain(..done);
        if self.left == 0 {
            self.kept = Vec::new();
        }
    }
}

/// How an id is remembered.
pub(crate) fn hash(id: &[u8]) -> u64 {
    FixedState::default().hash_one(id)
}

/// Tells every `"id": "..."`; returns how much of the text need not be looked at again.
fn ids(text: &[u8], mut tell: impl FnMut(&[u8])) -> usize {
    let mut done = 0;
    for at in memmem::find_iter(text, b"\"id\"") {
        let rest = &text[at + 4..];
        let Some(value) = value(rest) else {
            if rest.len() < LONGEST {
                return at;
            }
            continue;
        };
        if !value.is_empty() {
            tell(value);
        }
        done = at + 4;
    }
    // A name may begin in the last bytes.
    done.max(text.len().saturating_sub(3))
}

/// The text after a colon; `None` if its end is not here; empty if it is not an id.
fn value(rest: &[u8]) -> Option<&[u8]> {
    let rest = rest.trim_ascii_start();
    let Some(rest) = rest.strip_prefix(b":") else {
        return (!rest.is_empty()).then_some(&[]);
    };
    let rest = rest.trim_ascii_start();
    let Some(rest) = rest.strip_prefix(b"\"") else {
        return (!rest.is_empty()).then_some(&[]);
    };
    let end = memchr::memchr2(b'"', b'\\', &rest[..rest.len().min(LONGEST)])?;
    Some(if rest[end] == b'"' { &rest[..end] } else { &[] })
}

/// The id in a path after `/v1/`: the first part that is no word, after what it is the id of.
pub(crate) fn in_path(path: &str) -> Option<&str> {
    path.split('/')
        .skip(1)
        .find(|part| part.contains(['-', '_']) || part.bytes().any(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_wherever_the_answer_is_split() {
        let text = br#"{"object":"file","id" : "file-1","x":{"id":"msg_2"},"id":5,"id":"a\"b","idx":"no"}"#;
        for split in 0..text.len() {
            let mut found = Vec::new();
            let mut kept = text[..split].to_vec();
            let done = ids(&kept, |id| {
                found.push(String::from_utf8_lossy(id).into_owned());
            });
            kept.drain(..done);
            kept.extend_from_slice(&text[split..]);
            ids(&kept, |id| {
                found.push(String::from_utf8_lossy(id).into_owned());
            });
            assert_eq!(found, ["file-1", "msg_2"], "{split}");
        }
    }

    #[test]
    fn the_id_in_a_path_is_the_part_that_is_no_word() {
        for (path, id) in [
            ("files/file-abc", Some("file-abc")),
            ("files/file-abc/content", Some("file-abc")),
            ("responses/resp_1/input_items", Some("resp_1")),
            ("fine_tuning/jobs/ftjob-1/cancel", Some("ftjob-1")),
            ("vector_stores/vs1", Some("vs1")),
            ("files", None),
            ("chat/completions", None),
        ] {
            assert_eq!(in_path(path), id, "{path}");
        }
    }
}
