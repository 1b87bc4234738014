//! Ids that backends issue for files, stored responses and batches. Only the backend that issued an
//! id knows it, so requests that name the id are routed to that backend.

use foldhash::fast::FixedState;
use std::hash::BuildHasher;

use bytes::Bytes;

use crate::endpoint::IssuedIds;
use crate::json;

/// How much of an answer is looked at: ids come early.
const LOOKED_AT: usize = 16 << 10;
/// The longest id.
const LONGEST: usize = 256;

/// Finds the ids at the beginning of a response.
#[derive(Debug)]
pub(crate) struct IssuedIdFinder {
    /// What has come, and may have to be looked at again with what follows.
    kept: Vec<u8>,
    left: usize,
    /// The object in the answer whose id counts as well as the answer's own.
    within: Option<&'static str>,
}

impl IssuedIdFinder {
    /// Returns `None` if the endpoint issues no ids that clients can use. Completions are frequent,
    /// and their ids can be used only if the request has `"store": true`.
    pub(crate) fn new(issues: IssuedIds, is_stored: bool) -> Option<Self> {
        let is_kept = match issues {
            IssuedIds::None => false,
            IssuedIds::IfStored => is_stored,
            IssuedIds::Own | IssuedIds::OwnAndFile => true,
        };
        is_kept.then(|| Self {
            kept: Vec::new(),
            left: LOOKED_AT,
            within: (issues == IssuedIds::OwnAndFile).then_some("file"),
        })
    }

    /// Reads the next piece of the response. Calls `found` with the hash of each id.
    pub(crate) fn read(&mut self, data: &Bytes, mut found: impl FnMut(u64)) {
        self.look(data, &mut |id| found(hash(id)));
    }

    /// Only where the backend itself puts its ids: what a client wrote, as in `metadata`, may come
    /// back anywhere else.
    fn look(&mut self, data: &[u8], tell: &mut dyn FnMut(&[u8])) {
        if self.left == 0 {
            return;
        }
        let new = &data[..data.len().min(self.left)];
        self.left -= new.len();
        self.kept.extend_from_slice(new);
        if self.kept.trim_ascii_start().starts_with(b"{") {
            if ids(&self.kept, self.within, tell) && self.within.is_none() {
                self.left = 0;
            }
        } else {
            // Events. The last line may not be all there.
            for line in self.kept.split(|byte| *byte == b'\n') {
                if let Some(event) = line.strip_prefix(b"data:") {
                    ids(event, Some("response"), tell);
                }
            }
            let whole = memchr::memrchr(b'\n', &self.kept).map_or(0, |end| end + 1);
            self.kept.drain(..whole);
        }
        if self.left == 0 {
            self.kept = Vec::new();
        }
    }
}

/// Hash under which the backend of an id is stored.
pub(crate) fn hash(id: &[u8]) -> u64 {
    FixedState::default().hash_one(id)
}

/// Tells the id of the object that this is, as far as it is here, and that of the object `within`
/// it. Returns whether it has one.
fn ids(text: &[u8], within: Option<&str>, tell: &mut dyn FnMut(&[u8])) -> bool {
    let mut has_one = false;
    // It may end anywhere.
    let _ = json::beginnings(text, |name, at| {
        if name == b"id" {
            if let Some(id) = quoted(&text[at..]) {
                has_one = true;
                tell(id);
            }
        } else if within.is_some_and(|within| name == within.as_bytes()) {
            ids(&text[at..], None, tell);
        }
    });
    has_one
}

/// What is between quotation marks, if that can be an id, and its end is here.
fn quoted(text: &[u8]) -> Option<&[u8]> {
    let text = text.strip_prefix(b"\"")?;
    let end = memchr::memchr2(b'"', b'\\', &text[..text.len().min(LONGEST)])?;
    (text[end] == b'"' && end > 0).then(|| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ids in an answer that comes in these pieces.
    fn found<'a>(issues: IssuedIds, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut found = Vec::new();
        let mut watch = IssuedIdFinder::new(issues, true).unwrap();
        for piece in pieces {
            watch.look(piece, &mut |id| {
                let id = String::from_utf8_lossy(id).into_owned();
                // What is not all there is looked at again.
                if !found.contains(&id) {
                    found.push(id);
                }
            });
        }
        found
    }

    #[test]
    fn ids_are_found_wherever_the_answer_is_split() {
        let more = "x".repeat(2 * LOOKED_AT);
        for (issues, text, expected) in [
            (
                IssuedIds::Own,
                " {\"object\":\"file\",\"x\":{\"id\":\"no\"},\"id\" : \"file-1\",\"idx\":\"no\"}",
                vec!["file-1"],
            ),
            (
                IssuedIds::Own,
                "{\"metadata\":{\"id\":\"no\"},\"response\":{\"id\":\"no\"},\"id\":\"resp_1\"}",
                vec!["resp_1"],
            ),
            (
                IssuedIds::Own,
                "{\"data\":[{\"id\":\"no\"}],\"id\":5}",
                vec![],
            ),
            (
                IssuedIds::Own,
                "{\"id\":\"a\\\"b\",\"x\":\"\\\"id\\\":\\\"no\\\"\"}",
                vec![],
            ),
            (
                IssuedIds::OwnAndFile,
                "{\"id\":\"u-1\",\"file\":{\"x\":[],\"id\":\"file-1\"}}",
                vec!["u-1", "file-1"],
            ),
            (
                IssuedIds::Own,
                "event: a\ndata: {\"type\":\"a\",\"response\":{\"x\":{\"id\":\"no\"},\"id\":\"resp_1\",\
                 \"y\":{\"id\":\"no\"}}}\n\ndata: {\"item\":{\"id\":\"no\"}}\n\n",
                vec!["resp_1"],
            ),
            (
                IssuedIds::Own,
                "data:{\"id\":\"thread_1\"}\r\n\r\ndata: {\"id\":\"run_1\"}\r\n\r\ndata: [DONE]\r\n\r\n",
                vec!["thread_1", "run_1"],
            ),
        ] {
            for split in 0..text.len() {
                let (one, two) = text.as_bytes().split_at(split);
                assert_eq!(found(issues, [one, two]), expected, "{text} {split}");
            }
            assert_eq!(found(issues, text.as_bytes().chunks(1)), expected, "{text}");
        }
        let long = format!("data: {{\"response\":{{\"id\":\"resp_1\",\"x\":\"{more}");
        assert_eq!(
            found(IssuedIds::Own, long.as_bytes().chunks(99)),
            ["resp_1"]
        );
        let late = format!("{{\"x\":\"{more}\",\"id\":\"late\"}}");
        assert!(found(IssuedIds::Own, late.as_bytes().chunks(99)).is_empty());
    }

    #[test]
    fn completions_are_watched_only_if_they_are_stored() {
        assert!(IssuedIdFinder::new(IssuedIds::None, true).is_none());
        assert!(IssuedIdFinder::new(IssuedIds::IfStored, false).is_none());
        assert!(IssuedIdFinder::new(IssuedIds::IfStored, true).is_some());
        assert!(IssuedIdFinder::new(IssuedIds::Own, false).is_some());
    }
}
