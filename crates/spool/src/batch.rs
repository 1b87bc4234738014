//! Batches: what is sent, with what it is made of.
//!
//! A batch is one line of JSON in one file, and never changes:
//!
//! ```text
//! {"version":1,"idempotency_key":"<sha-256>","entries":[{"name":"<uuid>.jsonl","from":1,"to":57}],"records":[..],"crc":"xxxxxxxx"}
//! ```

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::line;
use crate::record::Record;

const VERSION: u32 = 1;

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

    /// What it is made of.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// What is delivered.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// The name of its file: batches sort by the time of what is in them, and the same batch has
    /// the same name whenever it is made.
    pub(crate) fn file_name(&self) -> String {
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

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = format!(
            r#"{{"version":{VERSION},"idempotency_key":"{}","entries":"#,
            self.key
        );
        // Names and numbers: this does not fail.
        text += &serde_json::to_string(&self.parts).unwrap_or_default();
        text += r#","records":["#;
        for (place, record) in self.records.iter().enumerate() {
            if place > 0 {
                text.push(',');
            }
            text += record.json();
        }
        text.push(']');
        line::with_checksum(text.into_bytes())
    }

    /// Reads a batch and checks all that can be checked of it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Text<'a> {
            version: u32,
            idempotency_key: String,
            entries: Vec<Part>,
            #[serde(borrow)]
            records: Vec<&'a RawValue>,
        }

        let text = line::checked(
            bytes
                .strip_suffix(b"\n")
                .ok_or("it does not end in a line")?,
        )?;
        // What came before the checksum lacks its last brace.
        let text = format!("{text}}}");
        let text: Text<'_> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        if text.version != VERSION {
            return Err(format!("its version is {}, not {VERSION}", text.version));
        }
        let records = text
            .records
            .iter()
            .map(|record| Record::parse_stored(record.get()).map_err(|bad| bad.to_string()))
            .collect::<Result<Vec<_>, _>>()?;
        let batch = Self::new(text.entries, records);
        if batch.key != text.idempotency_key {
            return Err("its key is not that of its records".to_owned());
        }
        Ok(batch)
    }
}

/// The key of a batch: SHA-256 over the ids of its records, in order, one per line.
fn key_of(ids: impl Iterator<Item = Uuid>) -> String {
    let mut hash = Sha256::new();
    for id in ids {
        hash.update(id.to_string().as_bytes());
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
        assert!(serde_json::from_slice::<&RawValue>(&bytes).is_ok());
        assert!(serde_json::from_slice::<&RawValue>(&batch.body()).is_ok());
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
