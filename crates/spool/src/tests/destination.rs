//! The destination file of a data directory, damaged or of another version.

use std::fs;

use super::test_data_dir::{TestDataDir, batches_of, names};
use crate::manager::{DeliveryState, SpoolManager};
use crate::{change_destination, claim_destination, consolidate, destination};

const OLD: &str = "https://old.example/";

/// A program must not overwrite a destination file of a newer version, whose content it cannot
/// interpret: records could then go to another receiver.
#[test]
fn destination_file_of_a_newer_version_is_refused_and_left_alone() {
    let data = TestDataDir::new();
    claim_destination(data.path(), Some(OLD)).unwrap();
    let path = data.path().join("destination.json");
    let text = fs::read_to_string(&path).unwrap();
    let text = text
        .split_once(",\"crc\"")
        .unwrap()
        .0
        .replace(r#""version":1"#, r#""version":9"#);
    let newer = crate::line::with_checksum(text.into_bytes());
    fs::write(&path, &newer).unwrap();
    for to in [None, Some("https://new.example/")] {
        let error = change_destination(&SpoolManager::new(data.path()), to)
            .unwrap_err()
            .to_string();
        assert!(error.contains("the file has version 9"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), newer, "{to:?}");
    }
    assert!(destination(data.path()).is_err());
}

/// The damaged file does not show the old destination, which may have the batch. Sending the batch
/// to another one could bill it twice.
#[test]
fn batch_of_unknown_outcome_fails_if_a_damaged_destination_file_is_removed() {
    let data = TestDataDir::new();
    claim_destination(data.path(), Some(OLD)).unwrap();
    data.entry(1, true);
    consolidate(data.path(), &batches_of(1)).unwrap();
    let store = SpoolManager::new(data.path());
    let name = store.pending(None, 1).unwrap().remove(0);
    let state = DeliveryState {
        unknown: true,
        ..DeliveryState::default()
    };
    store.set_state(&name, &state).unwrap();
    fs::write(data.path().join("destination.json"), "damaged").unwrap();
    let changed = change_destination(&store, None).unwrap();
    assert_eq!((changed.from, changed.ambiguous), (None, 1));
    assert!(names(&data.path().join("failed")).contains(&name));
}
