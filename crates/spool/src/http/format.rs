//! What is posted: our own JSON, or CloudEvents.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::HttpError;
use crate::batch::Batch;
use crate::record::Record;
use crate::time::Moment;

/// What a batch looks like to the receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// `{"idempotency_key":"..","records":[..]}`
    #[default]
    Json,
    /// A list of events, as OpenMeter and others take them.
    CloudEvents(CloudEvents),
}

/// [CloudEvents](https://cloudevents.io) 1.0, as a JSON batch. The record is the event's `data`, and
/// its id the event's: a receiver that goes by `source` and `id` counts it once, whatever batch it
/// comes in. `subject` is the record's `key`, or `anonymous`. `time` is the record's own if it has
/// one, else that of its id.
///
/// ```
/// use spool::{CloudEvents, Format, Http, HttpOptions};
///
/// let mut options = HttpOptions::default();
/// options.format = Format::CloudEvents(CloudEvents::new("my-service", "api.call")?);
/// let http = Http::new("https://openmeter.example/api/v1/events", options)?;
/// # Ok::<(), spool::HttpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudEvents {
    source: String,
    kind: String,
}

/// In the order of the specification's examples.
#[derive(Serialize)]
struct CloudEvent<'a> {
    specversion: &'static str,
    id: uuid::Uuid,
    source: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    subject: String,
    time: String,
    datacontenttype: &'static str,
    data: &'a RawValue,
}

/// For a record that does not say whose it is: some receivers insist on a subject.
const NOBODY: &str = "anonymous";

impl CloudEvents {
    /// `source` says who made the events, `kind` is their `type`. Both are the same for ever: a
    /// receiver takes an event with another source for another event.
    pub fn new(source: &str, kind: &str) -> Result<Self, HttpError> {
        if source.is_empty() || kind.is_empty() {
            return Err(HttpError::new("events need a source and a type"));
        }
        // A URI reference, as far as that can be got wrong.
        let is_uri = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
        if !source.bytes().all(is_uri) {
            let why = "the source of the events has characters that a URI cannot have";
            return Err(HttpError::new(why));
        }
        Ok(Self {
            source: source.to_owned(),
            kind: kind.to_owned(),
        })
    }

    /// What a record is as an event.
    fn event(&self, record: &Record) -> Option<String> {
        let event = CloudEvent {
            specversion: "1.0",
            id: record.id(),
            source: &self.source,
            kind: &self.kind,
            subject: record.text("key").unwrap_or_else(|| NOBODY.to_owned()),
            time: time(record),
            datacontenttype: "application/json",
            data: serde_json::from_str(record.json()).ok()?,
        };
        serde_json::to_string(&event).ok()
    }
}

impl Format {
    pub(super) fn content_type(&self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::CloudEvents(_) => "application/cloudevents-batch+json",
        }
    }

    /// What is posted: the same bytes on every attempt.
    pub(super) fn body(&self, batch: &Batch) -> Vec<u8> {
        match self {
            Self::Json => batch.body(),
            Self::CloudEvents(events) => {
                // Every record is JSON: none is left out.
                let events = batch.records().iter().filter_map(|one| events.event(one));
                let events: Vec<String> = events.collect();
                format!("[{}]", events.join(",")).into_bytes()
            }
        }
    }
}

/// When it happened, in the one way in which every receiver reads it.
fn time(record: &Record) -> String {
    let own = record.text("time").and_then(|text| {
        let time: Timestamp = text.parse().ok()?;
        // Years have four digits.
        Some(time.to_string()).filter(|text| !text.starts_with('-'))
    });
    own.unwrap_or_else(|| Moment::from_id(record.id()).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    fn event(fields: &str) -> Value {
        let events = CloudEvents::new("llmlb", "llm.request").unwrap();
        let record = Record::parse(&format!(r#"{{"id":"{ID}"{fields}}}"#)).unwrap();
        serde_json::from_str(&events.event(&record).unwrap()).unwrap()
    }

    #[test]
    fn a_record_becomes_an_event_with_the_same_id() {
        let record = r#","key":"acme","time":"2026-11-16T05:00:00.25Z","tokens":7"#;
        assert_eq!(
            event(record),
            json!({
                "specversion": "1.0", "id": ID, "source": "llmlb", "type": "llm.request",
                "subject": "acme", "time": "2026-11-16T05:00:00.25Z",
                "datacontenttype": "application/json",
                "data": { "id": ID, "key": "acme", "time": "2026-11-16T05:00:00.25Z", "tokens": 7 },
            })
        );
    }

    #[test]
    fn what_a_record_does_not_say_is_filled_in() {
        for key in ["", r#","key":null"#, r#","key":"""#, r#","key":7"#] {
            assert_eq!(event(key)["subject"], "anonymous", "{key}");
        }
        assert_eq!(event(r#","key":"é\n\"""#)["subject"], "é\n\"");
        let of_its_id = "2023-06-30T03:34:18.518Z";
        for time in [
            "",
            r#","time":7"#,
            r#","time":"yesterday""#,
            r#","time":"-000001-01-01T00:00:00Z""#,
        ] {
            assert_eq!(event(time)["time"], of_its_id, "{time}");
        }
        // In the form that everybody reads.
        assert_eq!(
            event(r#","time":"2026-11-16 06:00:00+01:00""#)["time"],
            "2026-11-16T05:00:00Z"
        );
    }

    #[test]
    fn numbers_of_any_size_survive() {
        let events = CloudEvents::new("s", "t").unwrap();
        let record = Record::parse(r#"{"n":12345678901234567890123}"#).unwrap();
        let text = events.event(&record).unwrap();
        assert!(text.ends_with(r#""n":12345678901234567890123}}"#), "{text}");
    }

    #[test]
    fn what_no_receiver_takes_is_refused() {
        for (source, kind) in [
            ("", "t"),
            ("s", ""),
            ("a b", "t"),
            ("a\"b", "t"),
            ("é", "t"),
        ] {
            assert!(CloudEvents::new(source, kind).is_err(), "{source} {kind}");
        }
        assert!(CloudEvents::new("//llmlb/host-1", "llm.request").is_ok());
    }
}
