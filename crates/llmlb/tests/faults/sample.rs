//! Records whose content follows from their id, their number and a flag, so that a received record can
//! be checked for changes.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use testkit::random::mix;
use uuid::Uuid;

/// Parameters of a record.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) id: String,
    pub(crate) number: u64,
    pub(crate) is_poisoned: bool,
}

impl Sample {
    pub(crate) fn new(number: u64, is_poisoned: bool) -> Self {
        let id = Uuid::now_v7().to_string();
        Self {
            id,
            number,
            is_poisoned,
        }
    }

    /// Returns the record on one line.
    pub(crate) fn text(&self) -> String {
        self.with_id_field(&format!(r#""id":"{}","#, self.id))
    }

    /// Returns the record without its id, for a file whose name has the id. The text has line breaks.
    pub(crate) fn text_without_id(&self) -> String {
        self.with_id_field("").replace("\",\"", "\",\n  \"") + "\n"
    }

    fn with_id_field(&self, id: &str) -> String {
        let (number, check) = (self.number, check(&self.id, self.number));
        let spread = mix(number);
        let poison = if self.is_poisoned {
            r#","poison":true"#
        } else {
            ""
        };
        // Content that parsers often change: numbers beyond every machine type, escapes, characters of
        // every length, empty values, and names of fields that spool uses itself.
        let odd = match spread % 5 {
            0 => r#","cost":123456789012345678901234567890.10,"tiny":1e-400"#,
            1 => r#","text":"\u0000\n\"\\\/ é 語 😀 \ud83d\ude00","crc":"00000000""#,
            2 => r#","nested":{"id":"x","records":[[],{},null,-0.0,1E5],"":""}"#,
            _ => "",
        };
        format!(
            r#"{{{id}"number":{number},"check":"{check:016x}","model":"m{}","key":"k{}","backend":"b{}","prompt_tokens":{},"completion_tokens":{}{odd}{poison}}}"#,
            spread % 3,
            spread % 7,
            spread % 2,
            spread % 4000,
            spread % 900,
        )
    }
}

fn check(id: &str, number: u64) -> u64 {
    id.bytes()
        .fold(mix(number), |sum, byte| mix(sum ^ u64::from(byte)))
}

#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) id: String,
    pub(crate) is_poisoned: bool,
    /// True if the received record has the content of the staged record.
    pub(crate) is_intact: bool,
}

/// Parses a received record. Returns `None` if the record was not created by [`Sample`].
pub(crate) fn arrived(record: &RawValue) -> Option<Arrived> {
    #[derive(Deserialize)]
    struct Fields {
        id: String,
        number: u64,
        #[serde(default)]
        poison: bool,
    }
    let fields: Fields = serde_json::from_str(record.get()).ok()?;
    let sample = Sample {
        id: fields.id,
        number: fields.number,
        is_poisoned: fields.poison,
    };
    let expected = sample.text();
    let is_intact = record.get() == expected || canonical(record.get()) == canonical(&expected);
    Some(Arrived {
        id: sample.id,
        is_poisoned: sample.is_poisoned,
        is_intact,
    })
}

/// Returns a canonical form of a JSON text, without differences in white space, escapes and order of
/// fields. Numbers keep every digit.
pub(crate) fn canonical(json: &str) -> Option<String> {
    let json = json.trim();
    if let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(json) {
        let fields = fields
            .iter()
            .map(|(name, value)| Some(format!("{name:?}:{}", canonical(value.get())?)));
        return Some(format!(
            "{{{}}}",
            fields.collect::<Option<Vec<_>>>()?.join(",")
        ));
    }
    if let Ok(values) = serde_json::from_str::<Vec<&RawValue>>(json) {
        let values = values.iter().map(|value| canonical(value.get()));
        return Some(format!(
            "[{}]",
            values.collect::<Option<Vec<_>>>()?.join(",")
        ));
    }
    if let Ok(text) = serde_json::from_str::<String>(json) {
        return Some(format!("{text:?}"));
    }
    serde_json::from_str::<&RawValue>(json)
        .ok()
        .map(|other| other.get().to_owned())
}

#[test]
fn unchanged_sample_is_intact_and_a_changed_one_is_not() {
    for number in 0..50 {
        let sample = Sample::new(number, number % 3 == 0);
        let raw = |text: String| RawValue::from_string(text).unwrap();
        let same = arrived(&raw(sample.text())).unwrap();
        assert!(same.is_intact && same.is_poisoned == sample.is_poisoned);
        let named = format!(
            r#"{{"id":"{}",{}"#,
            sample.id,
            &sample.text_without_id().trim()[1..]
        );
        assert!(arrived(&raw(named)).unwrap().is_intact);
        for (from, to) in [
            ("\"number\":", "\"number\":1"),
            ("_tokens\":", "_tokens\":1"),
            ("0.10", "0.1"),
            ("-0.0", "0.0"),
            ("語", "誤"),
            ("1e-400", "0"),
        ] {
            let changed = sample.text().replacen(from, to, 1);
            if changed != sample.text() {
                assert!(!arrived(&raw(changed)).unwrap().is_intact, "{from} {to}");
            }
        }
    }
}
