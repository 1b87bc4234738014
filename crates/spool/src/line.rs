//! Lines of an entry: readable by `cat` and `jq`, each with a number and a checksum.
//!
//! ```text
//! {"entry":"<uuid>","version":1,"crc":"xxxxxxxx"}              the first
//! {"id":"<uuid>","record":{..},"n":1,"crc":"xxxxxxxx"}         one for each record, numbered from 1
//! {"sealed":2,"crc":"xxxxxxxx"}                                the last: how many there are
//! ```
//!
//! The checksum is the CRC-32 of everything before `,"crc"`, in eight hexadecimal digits.

use std::io::Write as _;

use uuid::Uuid;

use crate::record::{Record, parse_id};

/// What a reader must know of the format to go on.
pub(crate) const VERSION: u32 = 1;
/// Length of the shortest line with a record: one that has nothing but its id.
pub(crate) const SHORTEST: u64 = 124;
/// `,"crc":"xxxxxxxx"}`
const CHECKSUM_LENGTH: usize = 18;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Entry { id: Uuid, version: u32 },
    Record { number: u64, record: Record },
    Sealed { records: u64 },
}

/// A record's line but for its number, which is known when it is its turn: the rest is prepared
/// where nobody waits for it.
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

    /// Adds the line to a buffer.
    pub(crate) fn write(self, to: &mut Vec<u8>, number: u64) {
        for part in self.parts(&mut Uuid::encode_buffer()) {
            to.extend(part);
        }
        let start = to.len();
        // Writing to memory does not fail.
        let _ = write!(to, r#","n":{number}"#);
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
    // Writing to memory does not fail.
    let _ = to.write_fmt(text);
    add_checksum(to, start);
}

/// Ends a JSON object that has been begun with its checksum, and the line.
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

/// A checksum as it is written.
pub(crate) fn digits(checksum: u32) -> [u8; 8] {
    let mut digits = [0; 8];
    for (place, digit) in digits.iter_mut().enumerate() {
        let half = checksum >> (28 - 4 * place) & 15;
        *digit = b"0123456789abcdef"[half as usize];
    }
    digits
}

/// Reads a line without its end, or says what is wrong with it.
pub(crate) fn read(line: &[u8]) -> Result<Line, &'static str> {
    parse(checked(line)?).ok_or("it is none of ours")
}

/// What a line says before its checksum, if that matches.
pub(crate) fn checked(line: &[u8]) -> Result<&str, &'static str> {
    let (text, checksum) = line
        .split_at_checked(line.len().wrapping_sub(CHECKSUM_LENGTH))
        .ok_or("it is too short")?;
    let digits = checksum
        .strip_prefix(b",\"crc\":\"")
        .and_then(|rest| rest.strip_suffix(b"\"}"))
        .ok_or("it has no checksum")?;
    // As it is written, so that not even a capital goes unnoticed.
    if self::digits(crc32fast::hash(text)) != digits {
        return Err("its checksum does not match");
    }
    std::str::from_utf8(text).map_err(|_| "it is not UTF-8")
}

/// What we wrote ourselves needs no JSON parser.
fn parse(text: &str) -> Option<Line> {
    if let Some(rest) = text.strip_prefix(r#"{"id":""#) {
        let (id, rest) = rest.split_once(r#"","record":"#)?;
        // The last one is ours, whatever the record says.
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
    fn shortest_line_is_as_short_as_is_said() {
        let mut line = Vec::new();
        PreparedLine::new(&Record::parse("{}").unwrap()).write(&mut line, 1);
        assert_eq!(line.len() as u64, SHORTEST);
    }

    #[test]
    fn what_is_written_is_read_and_is_json_to_everyone() {
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
    fn no_flipped_bit_goes_unnoticed() {
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
    fn no_beginning_of_a_line_passes_for_one() {
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
