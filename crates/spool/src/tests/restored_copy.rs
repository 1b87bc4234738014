//! A backup copy of a data directory that is used after the original was consolidated. (promise S6)

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::test_data_dir::{TestDataDir, names};
use crate::consolidate::{Options, consolidate};
use crate::record::Record;

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let (from, to) = (file.path(), to.join(file.file_name()));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

fn keys(test_dir: &TestDataDir) -> BTreeSet<String> {
    test_dir.receiver.keys().into_keys().collect()
}

#[test]
fn restored_copy_keeps_the_keys_of_batches_and_the_ids_of_staged_records() {
    let (original, restored) = (TestDataDir::new(), TestDataDir::new());
    original.entry(150, true);
    consolidate(original.path(), &Options::default()).unwrap();
    let batches = names(&original.data().spool);
    original.entry(20, true);
    copy(original.path(), restored.path());
    // The staged records are batched alone in the original, and with another entry in the copy.
    consolidate(original.path(), &Options::default()).unwrap();
    original.deliver_all();
    let more: Vec<_> = restored.entry(5, true).iter().map(Record::id).collect();
    consolidate(restored.path(), &Options::default()).unwrap();
    let is_kept = |name: &String| restored.data().spool.join(name).is_file();
    assert!(batches.iter().all(is_kept), "{batches:?}");
    restored.deliver_all();
    assert_eq!(batches.len(), 2);
    let same = keys(&original).intersection(&keys(&restored)).count();
    assert_eq!(same, 2, "keys of the batches in the copy");
    let mut ids: BTreeSet<_> = original.receiver.billed().into_keys().collect();
    ids.extend(more);
    assert_eq!(
        restored
            .receiver
            .billed()
            .into_keys()
            .collect::<BTreeSet<_>>(),
        ids
    );
}
