//! Batches: what is sent, with what it is made of.
//!
//! A batch is one JSON document in one file, and never changes. Each record has a line of its own,
//! and a checksum of its own besides that of the whole, so that damage can be told to the record:
//!
//! ```text
//! {"version":1,"idempotency_key":"<sha-256>","count":2,"entries":[{"name":"<uuid>.jsonl","from":1,"to":2}],"records":[
//! {"id":"<uuid>",..},
//! {"id":"<uuid>",..}
//! ],"checks":["xxxxxxxx","xxxxxxxx"],"crc":"xxxxxxxx"}
//! ```

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::entry::EntryName;
use crate::entry_reader::MAX_RECORDS;
use crate::line::{self, digits};
use crate::record::{self, Record, parse_id};

pub(crate) const VERSION: u32 = 1;
/// A batch is cut before its records exceed this: it must fit into
/// memory, and into the reserve of a full disk. Part of the format: what was frozen by one release
/// is finished by the next.
pub(crate) const MAX_BYTES: usize = record::MAX_BYTES;

/// Which records of an entry are in a batch, by their line numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The entry's file name.
    pub name: String,
    /// The first line.
    pub from: u64,
    /// The last line.
    pub to: u64,
}

/// Records that are delivered together, or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    key: String,
    parts: Vec<Part>,
    records: Vec<Record>,
}

/// What a batch says of itself before its records.
#[derive(Debug, Deserialize)]
pub(crate) struct BatchHead {
    version: u32,
    idempotency_key: String,
    pub(crate) count: u64,
    pub(crate) entries: Vec<Part>,
}

/// What is wrong with a batch, and with which of its records, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchDamage {
    pub(crate) record: Option<u64>,
    pub(crate) what: String,
    /// It is of this version, which this program does not know.
    pub(crate) version: Option<u32>,
}

impl Batch {
    pub(crate) fn new(parts: Vec<Part>, records: Vec<Record>) -> Self {
        let key = key_of(records.iter().map(Record::id));
        Self {
            key,
            parts,
            records,
        }
    }

    /// The same for the same records in the same order, for ever.
    pub fn idempotency_key(&self) -> &str {
        &self.key
    }

    /// What it is made of: as many lines as there are records, in the same order.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What is delivered.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The name of its file: batches sort by the time of what is in them, and the same batch has
    /// the same name whenever it is made.
    pub fn file_name(&self) -> String {
        let first = self.parts.first();
        let (entry, line) = first.map_or(("", 0), |part| (part.name.as_str(), part.from));
        let entry = entry.split('.').next().unwrap_or(entry);
        format!("{entry}-{line:08}-{}.json", &self.key[..16])
    }

    /// What is posted: the same bytes on every attempt.
    pub fn body(&self) -> Vec<u8> {
        let records: Vec<&str> = self.records.iter().map(Record::json).collect();
        format!(
            r#"{{"idempotency_key":"{}","records":[{}]}}"#,
            self.key,
            records.join(",")
        )
        .into_bytes()
    }

    /// The two halves of it, always the same two. `None` for a single record.
    pub(crate) fn halves(&self) -> Option<[Self; 2]> {
        let middle = self.records.len() / 2;
        if middle == 0 {
            return None;
        }
        let (first, second) = self.records.split_at(middle);
        let [before, after] = divide(&self.parts, middle as u64);
        Some([
            Self::new(before, first.to_vec()),
            Self::new(after, second.to_vec()),
        ])
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = format!(
            r#"{{"version":{VERSION},"idempotency_key":"{}","count":{},"entries":"#,
            self.key,
            self.records.len(),
        );
        // Names and numbers: this does not fail.
        text += &serde_json::to_string(&self.parts).unwrap_or_default();
        text += r#","records":["#;
        text.reserve(
            self.records
                .iter()
                .map(|record| record.json().len() + 32)
                .sum(),
        );
        let mut checks = String::with_capacity(self.records.len() * 11);
        for (place, record) in self.records.iter().enumerate() {
            if place > 0 {
                text.push(',');
                checks.push(',');
            }
            text.push('\n');
            text += record.json();
            checks.push('"');
            checks.extend(digits(record.checksum()).map(char::from));
            checks.push('"');
        }
        text += "\n],\"checks\":[";
        text += &checks;
        text.push(']');
        line::with_checksum(text.into_bytes())
    }

    /// Reads a batch and checks all that can be checked of it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BatchDamage> {
        let whole = line::checked(bytes.strip_suffix(b"\n").unwrap_or_default());
        let lines = BatchLines::new(bytes);
        if let Err(why) = whole {
            // The whole is damaged: say where, as closely as it can be said.
            return Err(lines
                .first_damaged()
                .unwrap_or_else(|| BatchDamage::new(why)));
        }
        let (head, lines) = (BatchHead::read(bytes)?, lines.records()?);
        let mut records = Vec::with_capacity(lines.len());
        for (place, json) in lines.iter().enumerate() {
            let record = Record::parse_stored(json).map_err(|bad| BatchDamage {
                record: Some(place as u64 + 1),
                ..BatchDamage::new(bad.to_string())
            })?;
            records.push(record);
        }
        let batch = Self::new(head.entries, records);
        if batch.key != head.idempotency_key {
            return Err(BatchDamage::new("its key is not that of its records"));
        }
        if batch.records.is_empty() || count(&batch.parts) != Some(batch.records.len() as u64) {
            return Err(BatchDamage::new("its entries do not add up to its records"));
        }
        Ok(batch)
    }
}

impl BatchHead {
    /// Reads the head alone, which is the first line of the file: its checksum is not looked at.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, BatchDamage> {
        let line = bytes.split(|byte| *byte == b'\n').next();
        let text = line.and_then(|line| std::str::from_utf8(line).ok());
        let text = text.and_then(|text| text.strip_suffix(r#","records":["#));
        let text = text.ok_or_else(|| BatchDamage::new("its head is not that of a batch"))?;
        let head: Self = serde_json::from_str(&format!("{text}}}"))
            .map_err(|error| BatchDamage::new(error.to_string()))?;
        if head.version != VERSION {
            let what = format!("its version is {}, not {VERSION}", head.version);
            return Err(BatchDamage {
                version: Some(head.version),
                ..BatchDamage::new(what)
            });
        }
        if head.entries.iter().any(|part| !part.is_sound()) {
            return Err(BatchDamage::new("it names entries that cannot be"));
        }
        Ok(head)
    }
}

impl Part {
    /// True if it can be of an entry. No sum of such numbers overflows.
    pub(crate) fn is_sound(&self) -> bool {
        self.from >= 1
            && self.from <= self.to
            && self.to <= MAX_RECORDS
            && EntryName::parse(self.name.as_ref()).is_some()
    }
}

impl BatchDamage {
    fn new(what: impl Into<String>) -> Self {
        Self {
            record: None,
            what: what.into(),
            version: None,
        }
    }
}

impl std::fmt::Display for BatchDamage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.record {
            Some(record) => write!(f, "record {record}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

/// A batch's file by its lines.
struct BatchLines<'a> {
    lines: Vec<&'a [u8]>,
}

impl<'a> BatchLines<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        Self {
            lines: text.split(|byte| *byte == b'\n').collect(),
        }
    }

    /// What is between the first and the last line, without the commas.
    fn records(&self) -> Result<Vec<&'a str>, BatchDamage> {
        let [_, records @ .., _] = &*self.lines else {
            return Err(BatchDamage::new("it has no records"));
        };
        let plain = |line: &&'a [u8]| {
            let line: &'a [u8] = line;
            std::str::from_utf8(line.strip_suffix(b",").unwrap_or(line)).ok()
        };
        let records: Option<Vec<&str>> = records.iter().map(plain).collect();
        records.ok_or_else(|| BatchDamage::new("it is not UTF-8"))
    }

    /// The first record whose text does not match its checksum.
    fn first_damaged(&self) -> Option<BatchDamage> {
        let [_, records @ .., last] = &*self.lines else {
            return None;
        };
        let last = std::str::from_utf8(last).ok()?;
        let checks = last.strip_prefix(r#"],"checks":[""#)?;
        let checks = checks.split_once(r#""],"#)?.0.split(r#"",""#);
        for (place, check) in checks.enumerate() {
            let line = records.get(place).copied().unwrap_or_default();
            let line = line.strip_suffix(b",").unwrap_or(line);
            if digits(crc32fast::hash(line)) != check.as_bytes() {
                return Some(BatchDamage {
                    record: Some(place as u64 + 1),
                    ..BatchDamage::new("its checksum does not match")
                });
            }
        }
        None
    }
}

/// How many lines there are in these parts.
fn count(parts: &[Part]) -> Option<u64> {
    parts
        .iter()
        .try_fold(0_u64, |sum, part| sum.checked_add(part.to - part.from + 1))
}

/// The first `middle` lines of these parts, and the rest.
fn divide(parts: &[Part], middle: u64) -> [Vec<Part>; 2] {
    let [mut before, mut after] = [Vec::new(), Vec::new()];
    let mut left = middle;
    for part in parts {
        let lines = part.to - part.from + 1;
        let here = left.min(lines);
        left -= here;
        if here > 0 {
            before.push(Part {
                to: part.from + here - 1,
                ..part.clone()
            });
        }
        if here < lines {
            after.push(Part {
                from: part.from + here,
                ..part.clone()
            });
        }
    }
    [before, after]
}

/// Whether a file can be a batch, by its name: `{uuid}-{line}-{key}.json`.
pub(crate) fn is_batch_name(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".json") else {
        return false;
    };
    let digits = |text: &str, count: usize| {
        text.len() >= count && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let parts: Vec<&str> = stem.rsplitn(3, '-').collect();
    matches!(parts[..], [key, line, entry]
        if key.len() == 16 && digits(key, 16) && digits(line, 8) && parse_id(entry).is_ok())
}

/// The key of a batch: SHA-256 over the ids of its records, in order, one per line.
fn key_of(ids: impl Iterator<Item = Uuid>) -> String {
    let mut hash = Sha256::new();
    for id in ids {
        hash.update(id.hyphenated().encode_lower(&mut Uuid::encode_buffer()));
        hash.update(b"\n");
    }
    let digits = b"0123456789abcdef";
    let bytes = hash.finalize();
    let halves = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    halves
        .map(|half| char::from(digits[usize::from(half)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Batch {
        let record = |text: &str| Record::parse(text).unwrap();
        let part = Part {
            name: "01890a5d-ac96-774b-bcce-b302099a8057.jsonl".to_owned(),
            from: 1,
            to: 2,
        };
        let records = vec![record(r#"{"n":1e400}"#), record(r#"{"é":"\"]}"}"#)];
        Batch::new(vec![part], records)
    }

    #[test]
    fn a_batch_is_read_as_it_was_written_and_is_json_to_everyone() {
        let batch = batch();
        let bytes = batch.encode();
        assert_eq!(Batch::decode(&bytes), Ok(batch.clone()));
        assert!(serde_json::from_slice::<&serde_json::value::RawValue>(&bytes).is_ok());
        assert!(serde_json::from_slice::<&serde_json::value::RawValue>(&batch.body()).is_ok());
        assert!(
            batch
                .file_name()
                .starts_with("01890a5d-ac96-774b-bcce-b302099a8057-00000001-")
        );
    }

    #[test]
    fn the_key_is_that_of_the_ids_in_their_order() {
        let batch = batch();
        let [a, b] = batch.records() else {
            panic!("two were given");
        };
        let key = |records: Vec<Record>| Batch::new(Vec::new(), records).key;
        let same = key(vec![a.clone(), b.clone()]);
        assert_eq!(same, batch.key);
        assert_ne!(key(vec![b.clone(), a.clone()]), same);
        assert_eq!(same.len(), 64);
    }

    #[test]
    fn damage_is_told_to_the_record() {
        let batch = batch();
        let bytes = batch.encode();
        for (place, record) in batch.records().iter().enumerate() {
            let json = record.json().as_bytes();
            let start = bytes.windows(json.len()).position(|part| part == json);
            for at in start.unwrap()..start.unwrap() + json.len() {
                let mut flipped = bytes.clone();
                flipped[at] ^= 0x08;
                let damage = Batch::decode(&flipped).unwrap_err();
                assert_eq!(damage.record, Some(place as u64 + 1), "byte {at}");
            }
        }
    }

    #[test]
    fn halves_have_all_records_and_lines_once_and_in_order() {
        let name = |number: u8| format!("01890a5d-ac96-774b-bcce-b302099a80{number:02x}.jsonl");
        let part = |number, from, to| Part {
            name: name(number),
            from,
            to,
        };
        let records: Vec<_> = (0..9).map(|_| Record::parse("{}").unwrap()).collect();
        let parts = vec![part(1, 3, 5), part(2, 1, 1), part(3, 10, 14)];
        let whole = Batch::new(parts, records);
        let [a, b] = whole.halves().unwrap();
        assert_eq!(a.parts(), [part(1, 3, 5), part(2, 1, 1)]);
        assert_eq!(b.parts(), [part(3, 10, 14)]);
        assert_eq!([a.records(), b.records()].concat(), whole.records());
        let [c, d] = b.halves().unwrap();
        assert_eq!(
            (c.parts(), d.parts()),
            (&[part(3, 10, 11)][..], &[part(3, 12, 14)][..])
        );
        for batch in [&a, &b, &c, &d] {
            assert_eq!(Batch::decode(&batch.encode()).as_ref(), Ok(batch));
            assert!(is_batch_name(&batch.file_name()));
        }
        assert_eq!(c.halves().unwrap()[0].halves(), None);
    }

    #[test]
    fn no_flipped_byte_and_no_cut_goes_unnoticed() {
        let bytes = batch().encode();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x01;
            assert!(Batch::decode(&flipped).is_err(), "byte {at}");
            assert!(Batch::decode(&bytes[..at]).is_err(), "cut at {at}");
        }
    }
}
