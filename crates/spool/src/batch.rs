//! Batches: the records that are delivered together, and the lines of entries they came from.
//!
//! A batch is a file with one JSON document, which never changes. Each record has its own line and
//! its own checksum, so that damage can be located:
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
/// Maximum total length in bytes of the records in a batch that has several. A batch must fit into
/// memory and into the reserve, space that is preallocated for a full disk. The value is part of
/// the format: after an upgrade, a new release must divide an unfinished snapshot into the same
/// batches.
pub(crate) const MAX_BYTES: usize = record::MAX_BYTES;

/// Range of consecutive records of one entry that are in a batch. The ranges of all batches show
/// that no record is missing or repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The entry's file name.
    pub name: String,
    /// Number of the part's first record in the entry. The records of an entry are numbered from 1.
    pub from: u64,
    /// Number of the part's last record in the entry.
    pub to: u64,
}

/// Records that are delivered together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    key: String,
    parts: Vec<Part>,
    records: Vec<Record>,
}

/// First line of a batch's file.
#[derive(Debug, Deserialize)]
pub(crate) struct BatchHead {
    version: u32,
    idempotency_key: String,
    pub(crate) count: u64,
    pub(crate) entries: Vec<Part>,
}

/// Damage of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchDamage {
    /// The damaged record, counted from 1. `None`: another part of the batch is damaged.
    pub(crate) record: Option<u64>,
    pub(crate) what: String,
    /// Version of a batch that a newer program wrote. Such a batch is not damaged.
    pub(crate) version: Option<u32>,
}

impl Batch {
    pub(crate) fn new(parts: Vec<Part>, records: Vec<Record>) -> Self {
        let key = idempotency_key(records.iter().map(Record::id));
        Self {
            key,
            parts,
            records,
        }
    }

    /// Key for which the receiver accepts the batch only once. The same records in the same order
    /// always have the same key.
    pub fn idempotency_key(&self) -> &str {
        &self.key
    }

    /// Lines of entries that the records came from, in the order of the records.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Records of the batch, in the order of their entries and lines.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Name of the batch's file. Names sort by the age of the entries. They depend on the content
    /// alone, so that a repetition after a crash writes the same file.
    pub fn file_name(&self) -> String {
        let first = self.parts.first();
        let (entry, line) = first.map_or(("", 0), |part| (part.name.as_str(), part.from));
        let entry = entry.split('.').next().unwrap_or(entry);
        format!("{entry}-{line:08}-{}.json", &self.key[..16])
    }

    /// Body of the request that delivers the batch: the same bytes on every attempt.
    pub fn body(&self) -> Vec<u8> {
        let records: Vec<&str> = self.records.iter().map(Record::json).collect();
        format!(
            r#"{{"idempotency_key":"{}","records":[{}]}}"#,
            self.key,
            records.join(",")
        )
        .into_bytes()
    }

    /// Splits the batch, always into the same halves. Returns `None` for a single record.
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
        // Serializing strings and numbers cannot fail, so an error needs no handling here.
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

    /// Parses a batch's file, and checks its checksums, its key and its count of records.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BatchDamage> {
        let whole = line::checked(bytes.strip_suffix(b"\n").unwrap_or_default());
        let lines = BatchLines::new(bytes);
        if let Err(why) = whole {
            // The checksum of the file does not match. Report the first record that does not match
            // its own checksum, if there is one.
            return Err(lines
                .first_damaged()
                .unwrap_or_else(|| BatchDamage::new(why)));
        }
        let (head, texts) = (BatchHead::read(bytes)?, lines.records()?);
        let mut records = Vec::with_capacity(texts.len());
        for (place, json) in texts.iter().enumerate() {
            let record = Record::parse_stored(json).map_err(|bad| BatchDamage {
                record: Some(place as u64 + 1),
                ..BatchDamage::new(bad.to_string())
            })?;
            records.push(record);
        }
        let batch = Self::new(head.entries, records);
        if batch.key != head.idempotency_key {
            return Err(BatchDamage::new(
                "its idempotency key does not match its records",
            ));
        }
        if batch.records.is_empty() || count(&batch.parts) != Some(batch.records.len() as u64) {
            return Err(BatchDamage::new(
                "it names more or fewer lines than it has records",
            ));
        }
        // A batch is always written as the same bytes. Encoding it again and comparing the bytes
        // checks the checksums of the records, their count and the text around them.
        if batch.encode() != bytes {
            return Err(lines.first_damaged().unwrap_or_else(|| {
                BatchDamage::new(
                    "the text of the batch differs from the one that is written for its records",
                )
            }));
        }
        Ok(batch)
    }
}

impl BatchHead {
    /// Parses the first line of a batch's file. Checks no checksum.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, BatchDamage> {
        let line = bytes.split(|byte| *byte == b'\n').next();
        let text = line.and_then(|line| std::str::from_utf8(line).ok());
        let text = text.and_then(|text| text.strip_suffix(r#","records":["#));
        let text = text.ok_or_else(|| {
            BatchDamage::new("the first line of the file is not the head of a batch")
        })?;
        let head: Self = serde_json::from_str(&format!("{text}}}"))
            .map_err(|error| BatchDamage::new(error.to_string()))?;
        if head.version != VERSION {
            let what = format!("the file has version {}, not {VERSION}", head.version);
            return Err(BatchDamage {
                version: Some(head.version),
                ..BatchDamage::new(what)
            });
        }
        if head.entries.iter().any(|part| !part.is_sound()) {
            let what = "it names entries or line numbers that cannot exist";
            return Err(BatchDamage::new(what));
        }
        Ok(head)
    }
}

impl Part {
    /// True if an entry can have this file name and these record numbers. Sums of such numbers do
    /// not overflow.
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

/// Lines of a batch's file, from which the records are parsed and by which a damaged record is
/// located.
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

    /// Returns the JSON of the records: the lines between the first and the last, without the
    /// commas.
    fn records(&self) -> Result<Vec<&'a str>, BatchDamage> {
        let [_, records @ .., _] = &*self.lines else {
            return Err(BatchDamage::new("the batch has no records"));
        };
        let plain = |line: &&'a [u8]| {
            let line: &'a [u8] = line;
            std::str::from_utf8(line.strip_suffix(b",").unwrap_or(line)).ok()
        };
        let records: Option<Vec<&str>> = records.iter().map(plain).collect();
        records.ok_or_else(|| BatchDamage::new("the records in the batch are not UTF-8"))
    }

    /// Finds the first record that does not match its checksum.
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

/// Returns the number of entry lines that the parts of a batch name, to compare it with the number
/// of records in the batch. Returns `None` if the sum overflows.
fn count(parts: &[Part]) -> Option<u64> {
    parts
        .iter()
        .try_fold(0_u64, |sum, part| sum.checked_add(part.to - part.from + 1))
}

/// Splits the parts of a batch, which name lines of entries, into the first `middle` lines and the
/// rest. Each half of a split batch gets the parts that name the lines of its own records.
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

/// True if a file name is that of a batch: `{uuid}-{line}-{key}.json`.
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

/// Returns the key of a batch: SHA-256 over the ids of its records, in order, one per line.
fn idempotency_key(ids: impl Iterator<Item = Uuid>) -> String {
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
    fn batch_is_read_as_it_was_written_and_is_valid_json() {
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
    fn key_depends_on_the_ids_and_their_order() {
        let batch = batch();
        let [a, b] = batch.records() else {
            panic!("the batch has two records");
        };
        let key = |records: Vec<Record>| Batch::new(Vec::new(), records).key;
        let same = key(vec![a.clone(), b.clone()]);
        assert_eq!(same, batch.key);
        assert_ne!(key(vec![b.clone(), a.clone()]), same);
        assert_eq!(same.len(), 64);
    }

    #[test]
    fn damaged_record_is_located() {
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
    fn halves_have_every_record_and_line_once_and_in_order() {
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
    fn every_flipped_byte_and_every_truncation_is_detected() {
        let bytes = batch().encode();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x01;
            assert!(Batch::decode(&flipped).is_err(), "byte {at}");
            assert!(Batch::decode(&bytes[..at]).is_err(), "truncated at {at}");
        }
    }

    #[test]
    fn batch_that_contradicts_itself_is_rejected_although_its_file_checksum_matches() {
        let batch = batch();
        let bytes = batch.encode();
        let text = std::str::from_utf8(&bytes).unwrap();
        let end = text.rfind(r#","crc":"#).unwrap();
        let second = batch.records()[1].json();
        for (from, to, damaged) in [
            (second, &*second.replace("]}", "}]"), Some(2)),
            (r#""count":2"#, r#""count":3"#, None),
            (r#""version":1"#, r#""version": 1"#, None),
            ("},\n", "}\n", None),
            ("\n],", "\n],\"other\":1,", None),
        ] {
            let changed = text[..end].replacen(from, to, 1);
            assert_ne!(changed, text[..end], "{from}");
            let damage = Batch::decode(&line::with_checksum(changed.into_bytes())).unwrap_err();
            assert_eq!(damage.record, damaged, "{from}: {damage}");
        }
    }
}
