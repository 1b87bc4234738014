//! Lines of an entry: readable by `cat` and `jq`, each with a number and a checksum.
//!
//! ```text
//! {"entry":"<uuid>","version":1,"crc":"xxxxxxxx"}              the first line
//! {"id":"<uuid>","record":{..},"n":1,"crc":"xxxxxxxx"}         one for each record, numbered from 1
//! {"sealed":2,"crc":"xxxxxxxx"}                                the seal: the number of the last record
//! ```
//!
//! The checksum is the CRC-32 of the text in front of `,"crc"`, in eight hexadecimal digits.

use std::io::Write as _;

use uuid::Uuid;

use crate::record::{Record, parse_id};

/// Version of the entry format. A reader leaves entries of other versions alone.
pub(crate) const VERSION: u32 = 1;
/// Minimum length of a line with a record: the record has only an id.
pub(crate) const SHORTEST: u64 = 124;
/// Length of the checksum at the end of a line: `,"crc":"xxxxxxxx"}`.
const CHECKSUM_LENGTH: usize = 18;

/// Content of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Entry { id: Uuid, version: u32 },
    Record { number: u64, record: Record },
    Sealed { records: u64 },
}

/// The line of a record without its number, which is known only under the lock of the open entry.
/// The checksum of the rest is computed before the lock is acquired, so that other producers wait
/// less.
pub(crate) struct PreparedLine<'a> {
    id: Uuid,
    json: &'a str,
    checksum: crc32fast::Hasher,
}

impl<'a> PreparedLine<'a> {
    pub(crate) fn new(record: &'a Record) -> Self {
        let mut prepared = Self {
            id: record.id(),
            json: record.json(),
            checksum: crc32fast::Hasher::new(),
        };
        let mut checksum = crc32fast::Hasher::new();
        for part in prepared.parts(&mut Uuid::encode_buffer()) {
            checksum.update(part);
        }
        prepared.checksum = checksum;
        prepared
    }

    fn parts<'b>(&'b self, id: &'b mut [u8]) -> [&'b [u8]; 4] {
        let id = self.id.hyphenated().encode_lower(id).as_bytes();
        [br#"{"id":""#, id, br#"","record":"#, self.json.as_bytes()]
    }

    /// Appends the line with this number to a buffer.
    pub(crate) fn write(self, to: &mut Vec<u8>, number: u64) {
        for part in self.parts(&mut Uuid::encode_buffer()) {
            to.extend(part);
        }
        let start = to.len();
        to.extend(br#","n":"#);
        to.extend(itoa::Buffer::new().format(number).as_bytes());
        let mut checksum = self.checksum;
        checksum.update(&to[start..]);
        end(to, checksum.finalize());
    }
}

pub(crate) fn write_entry(to: &mut Vec<u8>, id: Uuid) {
    write(to, format_args!(r#"{{"entry":"{id}","version":{VERSION}"#));
}

pub(crate) fn write_sealed(to: &mut Vec<u8>, records: u64) {
    write(to, format_args!(r#"{{"sealed":{records}"#));
}

fn write(to: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    let start = to.len();
    // Writing to memory does not fail, so the result is ignored.
    let _ = to.write_fmt(text);
    add_checksum(to, start);
}

/// Completes a JSON object that lacks its closing brace with its checksum and the end of the line.
pub(crate) fn with_checksum(mut text: Vec<u8>) -> Vec<u8> {
    add_checksum(&mut text, 0);
    text
}

fn add_checksum(to: &mut Vec<u8>, start: usize) {
    let checksum = crc32fast::hash(&to[start..]);
    end(to, checksum);
}

fn end(to: &mut Vec<u8>, checksum: u32) {
    to.extend(b",\"crc\":\"");
    to.extend(digits(checksum));
    to.extend(b"\"}\n");
}

/// Returns a checksum as eight hexadecimal digits.
pub(crate) fn digits(checksum: u32) -> [u8; 8] {
    let mut digits = [0; 8];
    for (place, digit) in digits.iter_mut().enumerate() {
        let half = checksum >> (28 - 4 * place) & 15;
        *digit = b"0123456789abcdef"[half as usize];
    }
    digits
}

/// Parses a line, given without its newline. The error names the damage.
pub(crate) fn read(line: &[u8]) -> Result<Line, &'static str> {
    parse(checked(line)?).ok_or("it is not a line of an entry")
}

/// Returns the text in front of a line's checksum, if the checksum matches.
pub(crate) fn checked(line: &[u8]) -> Result<&str, &'static str> {
    let (text, checksum) = line
        .split_at_checked(line.len().wrapping_sub(CHECKSUM_LENGTH))
        .ok_or("it is too short to have a checksum")?;
    let digits = checksum
        .strip_prefix(b",\"crc\":\"")
        .and_then(|rest| rest.strip_suffix(b"\"}"))
        .ok_or("it has no checksum")?;
    // The digits of the checksum are compared as text, so that a capital letter in their place
    // counts as damage, too.
    if self::digits(crc32fast::hash(text)) != digits {
        return Err("its checksum does not match");
    }
    std::str::from_utf8(text).map_err(|_| "the line is not UTF-8")
}

/// Parses a line of an entry, given without its checksum. Only spool writes such lines, always in
/// the same form, so that no JSON parser is needed.
fn parse(text: &str) -> Option<Line> {
    if let Some(rest) = text.strip_prefix(r#"{"id":""#) {
        let (id, rest) = rest.split_once(r#"","record":"#)?;
        // The record's JSON may contain `,"n":` as well. The number of the line follows the record,
        // so the last occurrence is the right one; the first could be a part of the record.
        let (json, number) = rest.rsplit_once(r#","n":"#)?;
        return Some(Line::Record {
            number: number.parse().ok()?,
            record: Record::trusted(parse_id(id).ok()?, json.to_owned()),
        });
    }
    if let Some(records) = text.strip_prefix(r#"{"sealed":"#) {
        return Some(Line::Sealed {
            records: records.parse().ok()?,
        });
    }
    let rest = text.strip_prefix(r#"{"entry":""#)?;
    let (id, version) = rest.split_once(r#"","version":"#)?;
    Some(Line::Entry {
        id: parse_id(id).ok()?,
        version: version.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines() -> (Vec<u8>, [Line; 3]) {
        let id = Uuid::now_v7();
        let record = Record::parse(r#"{"a":"}\",\"crc\":\"00000000\"}","é":1}"#).unwrap();
        let mut bytes = Vec::new();
        write_entry(&mut bytes, id);
        PreparedLine::new(&record).write(&mut bytes, 1);
        write_sealed(&mut bytes, 1);
        let lines = [
            Line::Entry {
                id,
                version: VERSION,
            },
            Line::Record { number: 1, record },
            Line::Sealed { records: 1 },
        ];
        (bytes, lines)
    }

    #[test]
    fn line_of_an_empty_record_has_the_minimum_length() {
        let mut line = Vec::new();
        PreparedLine::new(&Record::parse("{}").unwrap()).write(&mut line, 1);
        assert_eq!(line.len() as u64, SHORTEST);
    }

    #[test]
    fn lines_are_read_as_they_were_written_and_are_valid_json() {
        let (bytes, expected) = lines();
        let text = String::from_utf8(bytes).unwrap();
        let read: Vec<_> = text
            .lines()
            .map(|line| read(line.as_bytes()).unwrap())
            .collect();
        assert_eq!(read, expected);
        for line in text.lines() {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(value["crc"].as_str().map(str::len), Some(8));
        }
    }

    #[test]
    fn every_flipped_bit_is_detected() {
        let (bytes, _) = lines();
        for line in bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            for at in 0..line.len() {
                for bit in 0..8 {
                    let mut flipped = line.to_vec();
                    flipped[at] ^= 1 << bit;
                    assert!(read(&flipped).is_err(), "bit {bit} of byte {at}");
                }
            }
        }
    }

    #[test]
    fn every_truncated_line_is_detected() {
        let (bytes, _) = lines();
        for line in bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
        {
            for end in 0..line.len() {
                assert!(read(&line[..end]).is_err(), "{end}");
            }
        }
    }
}
