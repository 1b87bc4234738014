//! The lock record: the text that an owner writes into its lock file about itself.
//!
//! The record is one JSON object on one line, rewritten in place. Its last member is a CRC-32 of the
//! text in front of it, which distinguishes a torn record from a complete one. A record without a
//! checksum is accepted, because any program may have written it. The record is informational and
//! never proof of ownership. Every text that is read from a file is made safe to print.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::checksum::checksum;
use crate::claim::OwnProcess;
use crate::process::Identity;
use crate::{sys, text};

/// Version of the lock record that this library writes.
pub(crate) const VERSION: u64 = 1;
/// Maximum size of a file that readers accept. It bounds their memory if the file is not a lock
/// file.
pub(crate) const MAX_BYTES: usize = 8 << 20;
/// Limit below which a fencing token in a lock record is valid. No clock yields a larger token, and
/// the tokens of later owners could not increase beyond it.
const LARGEST_TOKEN: u64 = 1 << 62;
pub(crate) const CHECKSUM: &str = ",\"crc32\":\"";

/// Lock record: the text that an owner writes about itself into its lock file.
///
/// Only `pid` is always present. Another program may have written the record, and
/// `{"pid":12345,"started_at":"2026-01-30T12:00:00Z","port":8000}` is sufficient.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    pub(crate) pid: u32,
    pub(crate) started_at: Option<SystemTime>,
    pub(crate) port: Option<u16>,
    pub(crate) key: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) program: Option<String>,
    pub(crate) verb: Option<String>,
    pub(crate) stop: Option<String>,
    pub(crate) stop_event: Option<String>,
    pub(crate) process: Option<Identity>,
    pub(crate) command: Option<RecordedCommand>,
    pub(crate) token: u64,
    pub(crate) version: u64,
    pub(crate) released_at: Option<SystemTime>,
    pub(crate) extra: BTreeMap<String, ExtraField>,
}

/// Field of a lock record that the owner added, or that this library does not know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExtraField {
    value: Value,
    /// JSON text of the value in the file, if the value has a number that is not stored as an
    /// integer. `Value` may round such a number, so a rewrite of the record writes this text.
    json: Option<String>,
}

/// Command that the owner runs under its tenure and that has inherited the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedCommand {
    pub(crate) pid: u32,
    pub(crate) program: Option<String>,
    pub(crate) process: Option<Identity>,
}

/// Reason why the content of a file is not a lock record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    Empty,
    TooLarge,
    Torn,
    NotJson,
    NoPid,
}

impl Record {
    /// Process id of the owner in its own PID namespace. 0 if the file contains an impossible
    /// number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Time at which the key was acquired.
    pub fn started_at(&self) -> Option<SystemTime> {
        self.started_at
    }

    /// Time at which the key was acquired, in RFC 3339, UTC.
    pub fn started_at_text(&self) -> Option<String> {
        self.started_at.map(rfc3339)
    }

    /// Port number, if the key is a port.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Key that the owner acquired, as the owner wrote it.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Host on which the owner runs.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// Name of the owner's user.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// Program of the owner, without its path.
    pub fn program(&self) -> Option<&str> {
        self.program.as_deref()
    }

    /// Action of the program, for example `serve`. Never its arguments, which may be secret.
    pub fn verb(&self) -> Option<&str> {
        self.verb.as_deref()
    }

    /// Command that stops the owner, as the owner states it.
    pub fn stop_command(&self) -> Option<&str> {
        self.stop.as_deref()
    }

    /// Process id of the command that the owner runs under this tenure.
    pub fn command_pid(&self) -> Option<u32> {
        self.command.as_ref().map(|command| command.pid)
    }

    /// Program of the command that the owner runs under this tenure, without its path.
    pub fn command_program(&self) -> Option<&str> {
        self.command.as_ref()?.program.as_deref()
    }

    /// Fencing token: larger than the token of every earlier owner of this key. 0 if unknown.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Value of a field that the owner added, or that this library does not know.
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.extra.get(name).map(|field| &field.value)
    }

    /// All fields of the record as they are stored in the file, without the checksum.
    pub fn to_json(&self) -> Value {
        let mut value = serde_json::from_slice(&self.encode()).unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.remove("crc32");
        }
        value
    }

    /// Sets the user to the one that the kernel reports, and sanitizes the record if it is another
    /// user's.
    pub(crate) fn attest_user(&mut self, uid: u32) {
        if Some(uid) == sys::process::current_uid() {
            self.user = Some(OwnProcess::get().user);
        } else {
            self.sanitize_foreign();
            self.user = Some(sys::process::user(uid));
        }
    }

    /// Makes another user's record safe to show. It must not suggest a command to type, nor contain
    /// text that controls a terminal.
    pub(crate) fn sanitize_foreign(&mut self) {
        self.user = None;
        self.stop = None;
        let extra = std::mem::take(&mut self.extra).into_iter();
        let mut extra = Value::Object(extra.map(|(name, field)| (name, field.value)).collect());
        text::sanitize_json(&mut extra);
        if let Value::Object(extra) = extra {
            let extra = extra.into_iter();
            self.extra = extra.map(|(name, value)| (name, value.into())).collect();
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = JsonWriter(Vec::with_capacity(640));
        out.number("pid", Some(u64::from(self.pid)));
        out.time("started_at", self.started_at);
        out.number("port", self.port.map(u64::from));
        out.text("key", self.key.as_deref());
        out.text("host", self.host.as_deref());
        out.text("user", self.user.as_deref());
        out.text("program", self.program.as_deref());
        out.text("verb", self.verb.as_deref());
        out.text("stop", self.stop.as_deref());
        out.text("stop_event", self.stop_event.as_deref());
        if let Some(process) = &self.process {
            out.name("process");
            out.identity(process);
        }
        if let Some(command) = &self.command {
            out.name("command");
            let mut inner = JsonWriter(Vec::new());
            inner.number("pid", Some(u64::from(command.pid)));
            inner.text("program", command.program.as_deref());
            if let Some(process) = &command.process {
                inner.name("process");
                inner.identity(process);
            }
            inner.close();
            out.0.extend_from_slice(&inner.0);
        }
        out.number("token", Some(self.token));
        out.number("version", Some(self.version));
        out.time("released_at", self.released_at);
        for (name, field) in &self.extra {
            out.name(name);
            match &field.json {
                Some(json) => out.0.extend_from_slice(json.as_bytes()),
                None => out.0.extend_from_slice(field.value.to_string().as_bytes()),
            }
        }
        let crc = checksum(&out.0);
        out.0
            .extend_from_slice(format!("{CHECKSUM}{crc:08x}\"}}\n").as_bytes());
        out.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        if bytes.len() > MAX_BYTES {
            return Err(Unreadable::TooLarge);
        }
        let text = bytes.trim_ascii();
        if text.iter().all(|byte| *byte == 0) {
            return Err(Unreadable::Empty);
        }
        // Only the first line is the record. If it is shorter than the record that it overwrote,
        // the end of the old record follows until the file is truncated.
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
        let (fields, text) = parse(line).or_else(|error| {
            if line.len() < text.len() {
                parse(text)
            } else {
                Err(error)
            }
        })?;
        Self::from_fields(fields, text)
    }

    /// Creates a record from the fields that were parsed from `text`.
    fn from_fields(mut fields: Map<String, Value>, text: &[u8]) -> Result<Self, Unreadable> {
        let Some(Value::Number(pid)) = fields.remove("pid") else {
            return Err(Unreadable::NoPid);
        };
        let record = Self {
            pid: pid.as_u64().and_then(valid_pid).unwrap_or(0),
            started_at: take_time(&mut fields, "started_at"),
            port: take_number(&mut fields, "port").and_then(|port| port.try_into().ok()),
            key: take_text(&mut fields, "key"),
            host: take_name(&mut fields, "host"),
            user: take_name(&mut fields, "user"),
            program: take_name(&mut fields, "program"),
            verb: take_name(&mut fields, "verb"),
            stop: take_text(&mut fields, "stop"),
            stop_event: take_text(&mut fields, "stop_event"),
            process: take_identity(&mut fields),
            command: take_command(&mut fields),
            token: take_number(&mut fields, "token")
                .filter(|token| *token < LARGEST_TOKEN)
                .unwrap_or(0),
            version: take_number(&mut fields, "version").unwrap_or(0),
            released_at: take_time(&mut fields, "released_at"),
            extra: extra_fields(fields, text),
        };
        Ok(record)
    }
}

impl From<Value> for ExtraField {
    fn from(value: Value) -> Self {
        Self { value, json: None }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::TooLarge => "it is larger than any lock record",
            Self::Torn => "it was only partly written (its checksum does not match)",
            Self::NotJson => "it is not a JSON object",
            Self::NoPid => "it has no number `pid`",
        })
    }
}

/// Returns the number as a process id, if a process can have it.
pub(crate) fn valid_pid(pid: u64) -> Option<u32> {
    u32::try_from(pid)
        .ok()
        .filter(|pid| *pid > 0 && i32::try_from(*pid).is_ok())
}

/// Formats a time in RFC 3339, UTC, to the millisecond.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since_epoch = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since_epoch.as_millis())
        .ok()
        .and_then(|millis| jiff::Timestamp::from_millisecond(millis).ok())
        .unwrap_or_default()
        .to_string()
}

fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let millis = text.parse::<jiff::Timestamp>().ok()?.as_millisecond();
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(u64::try_from(millis).ok()?))
}

/// Parses the text of a record. Returns its fields without the checksum, and the text.
fn parse(text: &[u8]) -> Result<(Map<String, Value>, &[u8]), Unreadable> {
    let found = find_last(text, CHECKSUM.as_bytes());
    if let Some(start) = found {
        let (body, tail) = text.split_at(start);
        let expected = format!("{CHECKSUM}{:08x}\"}}", checksum(body));
        if tail != expected.as_bytes() {
            return Err(Unreadable::Torn);
        }
    }
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(text) else {
        // Records of this library begin with the pid, so invalid JSON that begins with a pid is a
        // torn record.
        let torn = text.starts_with(b"{\"pid\":");
        return Err(if torn {
            Unreadable::Torn
        } else {
            Unreadable::NotJson
        });
    };
    let ours = fields.get("token").is_some_and(Value::is_u64)
        && fields.get("version").is_some_and(Value::is_u64);
    if ours && found.is_none() {
        return Err(Unreadable::Torn);
    }
    fields.remove("crc32");
    Ok((fields, text))
}

/// Returns the extra fields of a lock record, which was parsed from `text`. A field with a number
/// that `Value` may round keeps its JSON text, so that a rewrite of the record does not change the
/// number.
fn extra_fields(fields: Map<String, Value>, text: &[u8]) -> BTreeMap<String, ExtraField> {
    // Few lock records have a number that may be rounded. Only their text is parsed a second time.
    let texts: BTreeMap<String, &RawValue> = if fields.values().any(may_be_rounded) {
        serde_json::from_slice(text).unwrap_or_default()
    } else {
        BTreeMap::new()
    };
    let exact = |(name, value): (String, Value)| {
        let json = texts.get(&name).filter(|_| may_be_rounded(&value));
        // A lock record is one line, so line breaks are removed. JSON strings contain no line
        // breaks, so only white space between JSON tokens is lost.
        let json = json.map(|json| json.get().replace(['\n', '\r'], ""));
        (name, ExtraField { value, json })
    };
    fields.into_iter().map(exact).collect()
}

/// True if the value has a number that is not stored as an integer.
fn may_be_rounded(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_f64(),
        Value::Array(values) => values.iter().any(may_be_rounded),
        Value::Object(fields) => fields.values().any(may_be_rounded),
        _ => false,
    }
}

pub(crate) fn find_last(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).rposition(|window| window == part)
}

fn take_number(fields: &mut Map<String, Value>, name: &str) -> Option<u64> {
    fields.remove(name)?.as_u64()
}

fn take_text(fields: &mut Map<String, Value>, name: &str) -> Option<String> {
    match fields.remove(name)? {
        Value::String(text) => Some(text::sanitize(text)),
        _ => None,
    }
}

fn take_name(fields: &mut Map<String, Value>, name: &str) -> Option<String> {
    take_text(fields, name).map(text::sanitize_name)
}

fn take_time(fields: &mut Map<String, Value>, name: &str) -> Option<SystemTime> {
    parse_rfc3339(&take_text(fields, name)?)
}

fn take_identity(fields: &mut Map<String, Value>) -> Option<Identity> {
    let Value::Object(mut inner) = fields.remove("process")? else {
        return None;
    };
    Some(Identity {
        start: take_number(&mut inner, "start")?,
        boot: take_text(&mut inner, "boot"),
        pid_ns: take_number(&mut inner, "pid_ns"),
    })
}

fn take_command(fields: &mut Map<String, Value>) -> Option<RecordedCommand> {
    let Value::Object(mut inner) = fields.remove("command")? else {
        return None;
    };
    Some(RecordedCommand {
        pid: take_number(&mut inner, "pid").and_then(valid_pid)?,
        program: take_name(&mut inner, "program"),
        process: take_identity(&mut inner),
    })
}

/// Writer of a JSON object that keeps the order in which members are added. The pid must come first
/// and the checksum last.
struct JsonWriter(Vec<u8>);

impl JsonWriter {
    fn name(&mut self, name: &str) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        self.string(name);
        self.0.push(b':');
    }

    fn string(&mut self, text: &str) {
        let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\';
        if text.bytes().all(plain) {
            self.0.push(b'"');
            self.0.extend_from_slice(text.as_bytes());
            self.0.push(b'"');
        } else {
            self.0
                .extend_from_slice(Value::from(text).to_string().as_bytes());
        }
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.name(name);
            self.string(value);
        }
    }

    fn number(&mut self, name: &str, value: Option<u64>) {
        if let Some(value) = value {
            self.name(name);
            self.0.extend_from_slice(value.to_string().as_bytes());
        }
    }

    fn time(&mut self, name: &str, value: Option<SystemTime>) {
        if let Some(value) = value {
            self.text(name, Some(&rfc3339(value)));
        }
    }

    fn identity(&mut self, identity: &Identity) {
        let mut inner = Self(Vec::new());
        inner.number("start", Some(identity.start));
        inner.text("boot", identity.boot.as_deref());
        inner.number("pid_ns", identity.pid_ns);
        inner.close();
        self.0.extend_from_slice(&inner.0);
    }

    fn close(&mut self) {
        self.0.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Record {
        let identity = Identity {
            start: 4711,
            boot: Some("b0".into()),
            pid_ns: Some(4_026_531_836),
        };
        Record {
            pid: 77,
            started_at: parse_rfc3339("2026-01-30T12:00:00.250Z"),
            port: Some(8000),
            key: Some("serve port 8000".into()),
            host: Some("h\"o\\st".into()),
            user: Some("zoë".into()),
            program: Some("llmlb".into()),
            verb: Some("serve".into()),
            stop: Some("llmlb stop -p 8000".into()),
            stop_event: None,
            process: Some(identity.clone()),
            command: Some(RecordedCommand {
                pid: 78,
                program: Some("sleep".into()),
                process: Some(identity),
            }),
            token: 9,
            version: VERSION,
            released_at: None,
            extra: [("pod_name".to_owned(), Value::from("pod-1").into())]
                .into_iter()
                .collect(),
        }
    }

    #[test]
    fn decoded_record_equals_the_encoded_one() {
        let record = full();
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes), Ok(record));
        assert_eq!(
            bytes.iter().position(|byte| *byte == b'\n'),
            Some(bytes.len() - 1)
        );
        assert!(serde_json::from_slice::<Value>(&bytes).is_ok());
    }

    #[test]
    fn torn_prefix_or_flipped_bit_is_rejected() {
        let bytes = full().encode();
        for length in 0..bytes.len() - 1 {
            assert!(
                Record::decode(&bytes[..length]).is_err(),
                "prefix of {length} bytes"
            );
        }
        for position in 0..bytes.len() - 1 {
            let mut damaged = bytes.clone();
            damaged[position] ^= 1;
            assert!(Record::decode(&damaged).is_err(), "byte {position}");
        }
    }

    #[test]
    fn tail_of_a_longer_old_record_is_ignored() {
        let mut bytes = full().encode();
        bytes.extend_from_slice(b"4026531836},\"token\":1,\"crc32\":\"00000000\"}\n");
        assert_eq!(Record::decode(&bytes), Ok(full()));
    }

    #[test]
    fn minimal_record_of_another_program_is_accepted() {
        let bytes = br#"{"pid":12345,"started_at":"2026-01-30T12:00:00Z","port":8000}"#;
        let record = Record::decode(bytes).unwrap();
        assert_eq!((record.pid(), record.port()), (12345, Some(8000)));
        assert_eq!(
            record.started_at_text().as_deref(),
            Some("2026-01-30T12:00:00Z")
        );
        let pretty = b"{\n  \"pid\": 5,\n  \"started_at\": \"2026-01-30T13:00:00+01:00\"\n}\n";
        let record = Record::decode(pretty).unwrap();
        assert_eq!(
            record.started_at_text().as_deref(),
            Some("2026-01-30T12:00:00Z")
        );
    }

    #[test]
    fn invalid_content_is_rejected_with_its_reason() {
        let cases: [(&[u8], Unreadable); 8] = [
            (b"", Unreadable::Empty),
            (b" \n\t", Unreadable::Empty),
            (&[0; 64], Unreadable::Empty),
            (b"garbage", Unreadable::NotJson),
            (b"\xff\xfe{}", Unreadable::NotJson),
            (b"[1,2]", Unreadable::NotJson),
            (b"{\"pid\":\"12\"}", Unreadable::NoPid),
            (b"{}", Unreadable::NoPid),
        ];
        for (bytes, why) in cases {
            assert_eq!(Record::decode(bytes), Err(why), "{bytes:?}");
        }
    }

    #[test]
    fn impossible_pid_is_read_as_zero() {
        for pid in [
            "0",
            "-1",
            "2147483648",
            "4294967296",
            "18446744073709551615",
            "1.5",
        ] {
            let text = format!("{{\"pid\":{pid}}}");
            let record = Record::decode(text.as_bytes());
            assert_eq!(record.map(|record| record.pid()), Ok(0), "{pid}");
        }
        // The JSON parser rejects this number. The text begins like a record of this library, so it
        // counts as a torn record.
        assert_eq!(Record::decode(b"{\"pid\":1e400}"), Err(Unreadable::Torn));
    }

    #[test]
    fn control_characters_in_a_record_are_replaced() {
        let text = "{\"pid\":9,\"user\":\"\\u001b[2Jroot\",\"program\":\"a\\u202eb\",\"verb\":\"c\\nd\",\
            \"host\":\"\\u009b1m\",\"stop\":\"\\u0007\",\"key\":\"k\\u200b\",\
            \"command\":{\"pid\":8,\"program\":\"\\r\"}}";
        let record = Record::decode(text.as_bytes()).unwrap();
        let shown = [
            record.user(),
            record.program(),
            record.verb(),
            record.host(),
            record.stop_command(),
            record.key(),
            record.command_program(),
        ];
        let expected = ["?[2Jroot", "a?b", "c?d", "?1m", "?", "k?", "?"];
        assert_eq!(shown, expected.map(Some));
    }

    #[test]
    fn foreign_record_is_stripped_of_its_user_and_stop_command() {
        let mut record = full();
        record
            .extra
            .insert("pod".into(), Value::from("\u{1b}]0;x\u{7}").into());
        record.sanitize_foreign();
        assert_eq!((record.user(), record.stop_command()), (None, None));
        assert_eq!(record.field("pod"), Some(&Value::from("?]0;x?")));
    }

    #[test]
    fn wrongly_typed_fields_are_ignored() {
        let text = br#"{"pid":9,"started_at":12,"port":99999,"host":[],"process":3,"command":{},"token":-1}"#;
        let record = Record::decode(text).unwrap();
        assert_eq!(
            record,
            Record {
                pid: 9,
                ..Record::default()
            }
        );
    }

    #[test]
    fn number_that_a_value_rounds_is_unchanged_after_a_rewrite() {
        let text = "{\"pid\":9,\"list\":[1,\n {\"n\": 33833333333333333333333333333333000}],\
            \"ratio\":3.3833333333333326e+52,\"zero\":-0}";
        let mut record = Record::decode(text.as_bytes()).unwrap();
        let written = String::from_utf8(record.encode()).unwrap();
        for field in [
            r#""list":[1, {"n": 33833333333333333333333333333333000}],"#,
            r#""ratio":3.3833333333333326e+52,"#,
            r#""zero":-0,"#,
        ] {
            assert!(written.contains(field), "{field} in {written}");
        }
        assert_eq!(written.find('\n'), Some(written.len() - 1));
        assert_eq!(Record::decode(written.as_bytes()), Ok(record.clone()));
        assert_eq!(record.field("ratio"), record.to_json().get("ratio"));

        record.extra.insert("ratio".into(), Value::from(0.5).into());
        let written = String::from_utf8(record.encode()).unwrap();
        assert!(written.contains(r#""ratio":0.5,"#), "{written}");
    }
}
