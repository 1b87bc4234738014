//! Fuzz targets of the files in a data directory, which other programs and failing disks may change.

#![expect(
    clippy::expect_used,
    reason = "a panic is how a fuzz target reports a broken property"
)]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::batch::Batch;
use crate::entry_journal::{ConsolidatedEntry, EntrySums};
use crate::entry_reader::{EntryReader, MAX_RECORDS};
use crate::journal;
use crate::line::{self, Line, PreparedLine};
use crate::manager::{BatchEvent, OutcomeSums};
use crate::record::Record;

/// Checks that a parsed record is a JSON object on one line with its id, and that its fields are
/// unchanged. Parsing its text again must give the same record.
pub fn record(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(record) = Record::parse(text) else {
        return;
    };
    assert!(!record.json().contains('\n'), "{:?}", record.json());
    assert_eq!(Record::parse(record.json()).as_ref(), Ok(&record));
    let fields: BTreeMap<String, &RawValue> =
        serde_json::from_str(record.json()).expect("a record is JSON");
    let id: String = serde_json::from_str(fields["id"].get()).expect("a record has an id");
    assert_eq!(id.parse(), Ok(record.id()));
    let mut original: BTreeMap<String, &RawValue> =
        serde_json::from_str(text).expect("the original is JSON");
    original.insert("id".to_owned(), fields["id"]);
    assert!(original.keys().eq(fields.keys()), "a field was renamed");
    for (name, value) in original {
        assert_same(value, fields[&name]);
    }
}

/// Panics unless both JSON values have the same meaning, and every string in them is Unicode.
/// Numbers are compared as text: a `Value` rounds long ones and rejects those like 1e400, which a
/// record preserves.
fn assert_same(a: &RawValue, b: &RawValue) {
    let (a, b) = (a.get(), b.get());
    let both = "both values have the same type and are valid";
    match a.as_bytes().first() {
        Some(b'{') => {
            let a: BTreeMap<String, &RawValue> = serde_json::from_str(a).expect(both);
            let b: BTreeMap<String, &RawValue> = serde_json::from_str(b).expect(both);
            assert!(a.keys().eq(b.keys()), "a field was renamed");
            a.values()
                .zip(b.values())
                .for_each(|(a, b)| assert_same(a, b));
        }
        Some(b'[') => {
            let a: Vec<&RawValue> = serde_json::from_str(a).expect(both);
            let b: Vec<&RawValue> = serde_json::from_str(b).expect(both);
            assert_eq!(a.len(), b.len(), "an element was added or removed");
            a.iter().zip(&b).for_each(|(a, b)| assert_same(a, b));
        }
        Some(b'"') => {
            let a: String = serde_json::from_str(a).expect(both);
            let b: String = serde_json::from_str(b).expect(both);
            assert_eq!(a, b, "a string was changed");
        }
        _ => assert_eq!(a, b, "a number or a literal was changed"),
    }
}

/// Checks that a parsed line of an entry is the same after it is written and parsed again, and that
/// a changed byte is detected. The input gets a valid checksum, so that the fuzzer reaches the
/// parser behind the checksum.
pub fn entry_line(data: &[u8]) {
    let _ = line::read(data);
    let text = line::with_checksum(data.to_vec());
    let text = text
        .strip_suffix(b"\n")
        .expect("a line ends with a newline");
    let Ok(parsed) = line::read(text) else {
        return;
    };
    let mut written = Vec::new();
    match &parsed {
        Line::Entry { id, version } if *version == line::VERSION => {
            line::write_entry(&mut written, *id);
        }
        Line::Entry { .. } => return,
        Line::Record { number, record } => PreparedLine::new(record).write(&mut written, *number),
        Line::Sealed { records } => line::write_sealed(&mut written, *records),
    }
    let written = written
        .strip_suffix(b"\n")
        .expect("a line ends with a newline");
    assert_eq!(line::read(written), Ok(parsed));
    for at in (0..written.len()).step_by(1 + written.len() / 16) {
        let mut damaged = written.to_vec();
        damaged[at] ^= 0x01;
        assert!(
            line::read(&damaged).is_err(),
            "damage at byte {at} is unnoticed"
        );
    }
}

/// Checks that the reader of entries skips no byte between lines. Record numbers must increase and
/// must not exceed the maximum. Each line of the input gets a valid checksum, so that the fuzzer
/// reaches the parser behind the checksum.
pub fn entry(data: &[u8]) {
    let mut file = Vec::new();
    for text in data.split(|byte| *byte == b'\n') {
        file.extend(line::with_checksum(text.to_vec()));
    }
    let mut reader = EntryReader::new(Path::new("entry"), &*file);
    let (mut highest, mut end) = (0, 0);
    while let Ok(Some(line)) = reader.next() {
        assert_eq!(line.end, end + line.text.len() as u64);
        end = line.end;
        if let Ok(Line::Record { number, .. }) = line.content {
            assert!(
                number > highest && number <= MAX_RECORDS,
                "{number} after {highest}"
            );
            highest = number;
        }
    }
}

/// Checks that a decoded batch is encoded to the same bytes, and that its halves have all of its
/// records.
pub fn batch(data: &[u8]) {
    let Ok(batch) = Batch::decode(data) else {
        return;
    };
    assert_eq!(
        batch.encode(),
        data,
        "the batch changed when it was written again"
    );
    let Some(halves) = batch.halves() else {
        return;
    };
    let records: Vec<_> = halves.iter().flat_map(Batch::records).collect();
    assert!(records.into_iter().eq(batch.records()));
    for half in &halves {
        assert!(
            Batch::decode(&half.encode()).is_ok(),
            "a half is unreadable"
        );
    }
}

/// Checks that events of both journals are the same after encoding and parsing, and that their sums
/// do not overflow.
pub fn journal(data: &[u8]) {
    let (mut entries, mut batches) = (EntrySums::default(), OutcomeSums::default());
    for text in data.split(|byte| *byte == b'\n') {
        let Ok(text) = std::str::from_utf8(text) else {
            continue;
        };
        if let Ok(event) = ConsolidatedEntry::parse(text) {
            entries.add(&event);
            let _ = (
                event.accounted_lines(),
                event.lines_aside(),
                event.records_unknown(),
            );
            let _ = event.must_be_in_batch(event.lines);
            let written = journal::encode(&event);
            let again =
                journal::decode::<Value>(&written).expect("an encoded event can be decoded");
            let again = ConsolidatedEntry::parse(&again.to_string())
                .expect("a decoded event can be parsed again");
            assert_eq!(journal::encode(&again), written);
        }
        if let Ok(event) = BatchEvent::parse(text) {
            batches.add(&event);
            let written = journal::encode(&event);
            let again =
                journal::decode::<Value>(&written).expect("an encoded event can be decoded");
            let again =
                BatchEvent::parse(&again.to_string()).expect("a decoded event can be parsed again");
            assert_eq!(journal::encode(&again), written);
        }
    }
    let mut twice = EntrySums::default();
    twice.add_all(&entries);
    twice.add_all(&entries);
}

#[cfg(test)]
mod tests {
    use testkit::corpus;

    #[test]
    fn corpus_inputs_and_variations_violate_no_property_of_files() {
        corpus::replay("spool_batch", super::batch);
        corpus::replay("spool_entry", super::entry);
        corpus::replay("spool_entry_line", super::entry_line);
        corpus::replay("spool_journal", super::journal);
        corpus::replay("spool_record", super::record);
    }
}
