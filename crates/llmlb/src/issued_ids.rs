//! Ids that backends issue for files, stored responses and batches. Only the backend that issued an
//! id knows it, so requests that name the id are routed to that backend.

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::endpoint::IssuedIds;
use crate::json;

/// Maximum number of bytes of a response that are searched for an issued id. Backends put ids at
/// the beginning, so the rest is not parsed.
const MAX_SEARCHED: usize = 16 << 10;
/// Maximum length of an id in bytes. Longer ids are ignored: requests that name them are not routed
/// by the id.
const MAX_ID: usize = 256;

/// Finder of the ids that a backend issues at the beginning of a response.
#[derive(Debug)]
pub(crate) struct IssuedIdFinder {
    /// Bytes of a response that must be searched again together with the next chunk, because an id
    /// may be split.
    buffered: Vec<u8>,
    remaining: usize,
    /// Name of a nested object in the response, such as `file`, whose id a backend also issues.
    /// Requests that name this id must go to the same backend, so the finder reports it like the
    /// top-level id.
    nested: Option<&'static str>,
}

impl IssuedIdFinder {
    /// Returns a finder for one response; `None` if the response contains no ids that later
    /// requests can name. The id of a completion can be named only if its request has `"store":
    /// true`.
    pub(crate) fn new(issues: IssuedIds, is_stored: bool) -> Option<Self> {
        let has_ids = match issues {
            IssuedIds::None => false,
            IssuedIds::IfStored => is_stored,
            IssuedIds::Own | IssuedIds::OwnAndFile => true,
        };
        has_ids.then(|| Self {
            buffered: Vec::new(),
            remaining: MAX_SEARCHED,
            nested: (issues == IssuedIds::OwnAndFile).then_some("file"),
        })
    }

    /// Searches the next chunk of the response. Calls `found` with the hash of each id.
    pub(crate) fn read(&mut self, data: &Bytes, mut found: impl FnMut(IdHash)) {
        self.search(data, &mut |id| found(IdHash::new(id)));
    }

    /// Only the fields in which backends issue ids are searched. Other fields, such as `metadata`,
    /// may repeat text of the client, which could claim the id of another client's file.
    fn search(&mut self, data: &[u8], found: &mut dyn FnMut(&[u8])) {
        if self.remaining == 0 {
            return;
        }
        let new = &data[..data.len().min(self.remaining)];
        self.remaining -= new.len();
        self.buffered.extend_from_slice(new);
        if self.buffered.trim_ascii_start().starts_with(b"{") {
            if ids(&self.buffered, self.nested, found) && self.nested.is_none() {
                self.remaining = 0;
            }
        } else {
            // The response is an event stream. Keep its last line for the next chunk, because the
            // line may be incomplete.
            for line in self.buffered.split(|byte| *byte == b'\n') {
                if let Some(event) = line.strip_prefix(b"data:") {
                    ids(event, Some("response"), found);
                }
            }
            let complete = memchr::memrchr(b'\n', &self.buffered).map_or(0, |end| end + 1);
            self.buffered.drain(..complete);
        }
        if self.remaining == 0 {
            self.buffered = Vec::new();
        }
    }
}

/// Hash of an issued id, half of a SHA-256, under which llmlb stores the backend that issued the
/// id.
///
/// Some backends let clients choose ids. A client that finds another id with the hash of a foreign
/// id could have it issued by a different backend, and so divert the requests of the other client.
/// A 64-bit hash that is fast to compute permits such a search; 128 bits of SHA-256 do not. Files
/// and Redis contain the hash instead of the id, because the id is often the only secret that
/// protects an object. Ids that backends generate are random, so they cannot be found by hashing
/// guesses; a key would add no protection, because it would have to be stored next to the hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IdHash(pub(crate) u128);

impl IdHash {
    pub(crate) fn new(id: &[u8]) -> Self {
        Self(u128::from_be_bytes(digest(b"llmlb issued id\0", id)))
    }
}

/// Identity of a backend that survives a restart and does not depend on the order of the
/// configuration: a hash of its URL. Only operators choose URLs, so 64 bits suffice. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackendKey(pub(crate) u64);

impl BackendKey {
    /// Returns the key of a backend's URL. The URL of a loopback address means another backend on
    /// each host, so servers that share issued ids also pass the name of their `host`.
    pub(crate) fn new(url: &str, host: Option<&str>) -> Self {
        let named = format!("{url}\0{}", host.unwrap_or_default());
        let [first @ .., _, _, _, _, _, _, _, _] = digest(b"llmlb backend\0", named.as_bytes());
        Self(u64::from_be_bytes(first).max(1))
    }
}

/// Returns the first half of a SHA-256. The prefix differs for each kind of text, such as ids and
/// URLs, so that a text of one kind never has the hash of a text of another kind.
fn digest(prefix: &[u8], text: &[u8]) -> [u8; 16] {
    let hash = Sha256::new().chain_update(prefix).chain_update(text);
    let mut half = [0; 16];
    half.copy_from_slice(&hash.finalize()[..16]);
    half
}

/// Calls `found` with the id of a JSON object, which may be truncated, and with the id of its
/// `nested` object. Returns true if the object has an id at its top level, so that the search can
/// end.
fn ids(text: &[u8], nested: Option<&str>, found: &mut dyn FnMut(&[u8])) -> bool {
    let mut has_id = false;
    // Ignore an error: the text may be truncated, and the ids in front of its end count.
    let _ = json::beginnings(text, |name, at| {
        if name == b"id" {
            if let Some(id) = quoted(&text[at..]) {
                has_id = true;
                found(id);
            }
        } else if nested.is_some_and(|nested| name == nested.as_bytes()) {
            ids(&text[at..], None, found);
        }
    });
    has_id
}

/// Returns the text of a JSON string if it is complete and can be an id.
fn quoted(text: &[u8]) -> Option<&[u8]> {
    let text = text.strip_prefix(b"\"")?;
    let end = memchr::memchr2(b'"', b'\\', &text[..text.len().min(MAX_ID)])?;
    (text[end] == b'"' && end > 0).then(|| &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(issues: IssuedIds, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let mut found = Vec::new();
        let mut finder = IssuedIdFinder::new(issues, true).unwrap();
        for piece in pieces {
            finder.search(piece, &mut |id| {
                let id = String::from_utf8_lossy(id).into_owned();
                // Remove duplicates: the beginning of an incomplete object is searched again with
                // the next chunk, so the same id can be found twice.
                if !found.contains(&id) {
                    found.push(id);
                }
            });
        }
        found
    }

    #[test]
    fn ids_are_found_however_the_response_is_split() {
        let more = "x".repeat(2 * MAX_SEARCHED);
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
    fn hashes_are_those_of_earlier_releases() {
        // Files and Redis contain these hashes. With other hashes, all ids would be forgotten at an
        // upgrade.
        let id = IdHash::new(b"file-abc").0;
        assert_eq!(id, 0x936f_d447_f6b2_6982_6d74_72d9_6115_4c8e);
        let url = "http://127.0.0.1:11434";
        let keys = [None, Some("gpu-1"), Some("gpu-2")].map(|host| BackendKey::new(url, host).0);
        assert_eq!(
            keys,
            [
                0xba7c_b5a8_0c48_31b9,
                0x93f6_051e_c579_7f80,
                0x269f_41ba_c3f5_5fd0
            ]
        );
    }

    #[test]
    fn ids_of_completions_are_searched_only_if_they_are_stored() {
        assert!(IssuedIdFinder::new(IssuedIds::None, true).is_none());
        assert!(IssuedIdFinder::new(IssuedIds::IfStored, false).is_none());
        assert!(IssuedIdFinder::new(IssuedIds::IfStored, true).is_some());
        assert!(IssuedIdFinder::new(IssuedIds::Own, false).is_some());
    }
}
