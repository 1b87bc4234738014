//! Fuzz target of the lock record, which any program may have written.

#![expect(
    clippy::expect_used,
    reason = "a panic is how a fuzz target reports a broken property"
)]

use serde_json::Value;

use crate::record::{CHECKSUM, Record, find_last};
use crate::text;

/// Panics unless a decoded lock record has only texts that are safe to print, is unchanged after
/// encoding and decoding, and is rejected if any byte in front of its checksum changes.
pub fn lock_record(data: &[u8]) {
    let Ok(mut record) = Record::decode(data) else {
        return;
    };
    let shown = [
        record.key(),
        record.host(),
        record.user(),
        record.program(),
        record.verb(),
        record.stop_command(),
        record.command_program(),
    ];
    for shown in shown.into_iter().flatten() {
        assert!(!shown.contains(text::is_unsafe), "{shown:?}");
    }

    let encoded = record.encode();
    let again = Record::decode(&encoded).expect("a record that we wrote is readable");
    assert_eq!(
        again.encode(),
        encoded,
        "the record changed when it was written again"
    );
    let end = find_last(&encoded, CHECKSUM.as_bytes()).expect("every record has a checksum");
    for at in (0..end).step_by(1 + end / 16) {
        let mut damaged = encoded.clone();
        damaged[at] ^= 0x01;
        assert!(
            Record::decode(&damaged).is_err(),
            "damage at byte {at} is unnoticed"
        );
    }

    record.sanitize_foreign();
    assert_eq!(record.stop_command(), None);
    assert_safe(&record.to_json());
}

/// Panics if a field name or text in the JSON of a lock record contains a character that is unsafe
/// to print, such as a terminal control character.
fn assert_safe(value: &Value) {
    match value {
        Value::String(text) => assert!(!text.contains(text::is_unsafe), "{text:?}"),
        Value::Array(values) => values.iter().for_each(assert_safe),
        Value::Object(fields) => {
            for (name, value) in fields {
                assert!(!name.contains(text::is_unsafe), "{name:?}");
                assert_safe(value);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_inputs_and_variations_violate_no_property_of_lock_records() {
        testkit::corpus::replay("lock_record", super::lock_record);
    }
}
