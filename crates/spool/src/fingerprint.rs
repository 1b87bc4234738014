//! Fingerprints of records, which the entry journal and the reserve store as `<uuid> <crc>`.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::line::digits;
use crate::record::Record;

/// A record's id, and a checksum that distinguishes records with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordFingerprint {
    pub(crate) id: Uuid,
    pub(crate) checksum: u32,
}

impl RecordFingerprint {
    pub(crate) fn new(record: &Record) -> Self {
        Self {
            id: record.id(),
            checksum: record.checksum(),
        }
    }
}

impl Serialize for RecordFingerprint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = [b' '; 32 + 1 + 8];
        self.id.simple().encode_lower(&mut text);
        text[33..].copy_from_slice(&digits(self.checksum));
        serializer.serialize_str(str::from_utf8(&text).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for RecordFingerprint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        let read = || {
            let (id, checksum) = text.split_once(' ')?;
            Some(Self {
                id: Uuid::try_parse(id).ok()?,
                checksum: u32::from_str_radix(checksum, 16).ok()?,
            })
        };
        read().ok_or_else(|| serde::de::Error::custom("invalid fingerprint of a record"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprint_is_read_as_it_was_written() {
        let fingerprint = RecordFingerprint {
            id: Uuid::try_parse("01890a5d-ac96-774b-bcce-b302099a8057").unwrap(),
            checksum: 0x00ab_cdef,
        };
        let text = r#""01890a5dac96774bbcceb302099a8057 00abcdef""#;
        assert_eq!(serde_json::to_string(&fingerprint).unwrap(), text);
        assert_eq!(
            serde_json::from_str::<RecordFingerprint>(text).unwrap(),
            fingerprint
        );
        for text in [
            r#""""#,
            r#""x 00abcdef""#,
            r#""01890a5dac96774bbcceb302099a8057""#,
        ] {
            assert!(
                serde_json::from_str::<RecordFingerprint>(text).is_err(),
                "{text}"
            );
        }
    }
}
