//! Fuzz target of the parser of `keys.json`.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a panic is how a fuzz target reports a broken property"
)]

use super::KeyTable;
use super::SecretMemo;
use super::file::StoredKeys;

/// Checks that `keys.json`, if it is accepted, has the same meaning after it is rewritten, that a
/// server with the file needs keys, and that no message about it contains a hash.
pub fn keys_file(data: &[u8]) {
    let keys = match StoredKeys::parse(data) {
        Ok(keys) => keys,
        Err(why) => {
            assert!(!why.is_empty());
            return;
        }
    };
    let text = keys.format().expect("accepted keys can be written");
    let again = StoredKeys::parse(&text).expect("a written file is valid");
    assert_eq!(again.format().expect("keys can be written"), text);
    let shown = format!("{again:?}");
    assert_eq!(shown, format!("{keys:?}"));
    let active = keys.keys.iter().filter(|key| key.revoked.is_none()).count();
    let hashes = keys.keys.iter().map(|key| key.hash.0);
    // A file can contain its own hashes as names, which are shown.
    let rights = keys.keys.iter().map(|key| format!("{:?}", key.rights));
    let rights: String = rights.collect();
    for hash in hashes.map(|hash| crate::config::bytes_to_hex(&hash)) {
        assert!(!shown.contains(&hash) || rights.contains(&hash), "{shown}");
    }
    let is_empty = keys.keys.is_empty();
    let table = KeyTable::new(Vec::new(), Some(keys)).expect("the system has random bytes");
    assert_eq!(table.is_required(), !is_empty);
    assert_eq!(table.report().count, active);
    assert!(
        table
            .find(b"sk-0123456789abcdef", &SecretMemo::default())
            .is_err()
    );
}
