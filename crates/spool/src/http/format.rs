//! Formats of the request body: plain JSON, or CloudEvents.

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::HttpError;
use crate::batch::Batch;
use crate::record::Record;
use crate::time::Moment;

/// Format of the request body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// `{"idempotency_key":"..","records":[..]}`
    #[default]
    Json,
    /// A list of CloudEvents, as OpenMeter and others accept.
    CloudEvents(CloudEvents),
}

/// [CloudEvents](https://cloudevents.io) 1.0, as a JSON batch. The record is the `data` of an
/// event, and the record's id is the event's id. A receiver that deduplicates by `source` and `id`
/// counts the record once, in whichever batch it arrives. `subject` is the text of a field of the
/// record ([`CloudEvents::subject_from`]), or `anonymous`. `time` is the record's `time`, or the time
/// in its id.
///
/// ```
/// use spool::{CloudEvents, Format, Http, HttpOptions};
///
/// let mut options = HttpOptions::default();
/// let events = CloudEvents::new("my-service", "api.call")?.subject_from("customer");
/// options.format = Format::CloudEvents(events);
/// let http = Http::new("https://openmeter.example/api/v1/events", options)?;
/// # Ok::<(), spool::HttpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudEvents {
    source: String,
    kind: String,
    /// Field of a record whose text is the event's subject.
    subject: Option<String>,
}

/// One CloudEvent. Its fields are in the order of the specification's examples.
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

/// Subject of an event whose record has no text in the subject field. Some receivers require a
/// subject.
const DEFAULT_SUBJECT: &str = "anonymous";

impl CloudEvents {
    /// Creates the format. `source` identifies the producer, `kind` is the `type` of the events.
    /// Both must never change: receivers treat an event with another source as another event.
    pub fn new(source: &str, kind: &str) -> Result<Self, HttpError> {
        if source.is_empty() || kind.is_empty() {
            return Err(HttpError::new(
                "CloudEvents need a source and a type, which must not be empty",
            ));
        }
        // CloudEvents require that `source` is a URI reference. Only its characters are checked.
        let is_uri = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
        if !source.bytes().all(is_uri) {
            let reason = "the source of the events has characters that a URI cannot have";
            return Err(HttpError::new(reason));
        }
        Ok(Self {
            source: source.to_owned(),
            kind: kind.to_owned(),
            subject: None,
        })
    }

    /// Takes the subject of an event from this field of its record. The field must never change:
    /// receivers bill by the subject.
    #[must_use]
    pub fn subject_from(mut self, field: &str) -> Self {
        self.subject = Some(field.to_owned());
        self
    }

    /// Formats a record as a CloudEvent in JSON. Returns `None` if the record is not valid JSON.
    fn event(&self, record: &Record) -> Option<String> {
        let subject = self.subject.as_ref().and_then(|field| record.text(field));
        let event = CloudEvent {
            specversion: "1.0",
            id: record.id(),
            source: &self.source,
            kind: &self.kind,
            subject: subject.unwrap_or_else(|| DEFAULT_SUBJECT.to_owned()),
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

    /// Returns the request body. It has the same bytes on every attempt.
    pub(super) fn body(&self, batch: &Batch) -> Vec<u8> {
        match self {
            Self::Json => batch.body(),
            Self::CloudEvents(events) => {
                // Every record is valid JSON, so no record is dropped here.
                let records = batch.records().iter();
                let events: Vec<String> =
                    records.filter_map(|record| events.event(record)).collect();
                format!("[{}]", events.join(",")).into_bytes()
            }
        }
    }
}

/// Returns the time of a record in UTC, in the form of RFC 3339 that receivers commonly parse.
fn time(record: &Record) -> String {
    let own = record.text("time").and_then(|text| {
        let time: Timestamp = text.parse().ok()?;
        // RFC 3339 has no negative years, and receivers could reject such a time. The time in the
        // record's id is sent instead.
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
        let events = CloudEvents::new("my-service", "api.call").unwrap();
        let events = events.subject_from("customer");
        let record = Record::parse(&format!(r#"{{"id":"{ID}"{fields}}}"#)).unwrap();
        serde_json::from_str(&events.event(&record).unwrap()).unwrap()
    }

    #[test]
    fn record_becomes_an_event_with_the_same_id() {
        let record = r#","customer":"acme","time":"2026-11-16T05:00:00.25Z","tokens":7"#;
        assert_eq!(
            event(record),
            json!({
                "specversion": "1.0", "id": ID, "source": "my-service", "type": "api.call",
                "subject": "acme", "time": "2026-11-16T05:00:00.25Z",
                "datacontenttype": "application/json",
                "data": {
                    "id": ID, "customer": "acme", "time": "2026-11-16T05:00:00.25Z", "tokens": 7,
                },
            })
        );
    }

    #[test]
    fn event_has_defaults_for_a_missing_subject_or_time() {
        for customer in [
            "",
            r#","customer":null"#,
            r#","customer":"""#,
            r#","customer":7"#,
        ] {
            assert_eq!(event(customer)["subject"], "anonymous", "{customer}");
        }
        assert_eq!(event(r#","customer":"é\n\"""#)["subject"], "é\n\"");
        let time_of_id = "2023-06-30T03:34:18.518Z";
        for time in [
            "",
            r#","time":7"#,
            r#","time":"yesterday""#,
            r#","time":"-000001-01-01T00:00:00Z""#,
        ] {
            assert_eq!(event(time)["time"], time_of_id, "{time}");
        }
        // A time with an offset, and with a space instead of `T`, is converted to UTC.
        assert_eq!(
            event(r#","time":"2026-11-16 06:00:00+01:00""#)["time"],
            "2026-11-16T05:00:00Z"
        );
    }

    #[test]
    fn event_keeps_numbers_of_any_size() {
        let events = CloudEvents::new("s", "t").unwrap();
        let record = Record::parse(r#"{"n":12345678901234567890123}"#).unwrap();
        let text = events.event(&record).unwrap();
        assert!(text.ends_with(r#""n":12345678901234567890123}}"#), "{text}");
    }

    #[test]
    fn invalid_source_or_type_is_rejected() {
        for (source, kind) in [
            ("", "t"),
            ("s", ""),
            ("a b", "t"),
            ("a\"b", "t"),
            ("é", "t"),
        ] {
            assert!(CloudEvents::new(source, kind).is_err(), "{source} {kind}");
        }
        assert!(CloudEvents::new("//my-service/host-1", "api.call").is_ok());
    }
}
