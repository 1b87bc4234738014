//! What the owner writes about itself.
//!
//! One JSON object on one line, rewritten in place. Its last member is a CRC-32 of everything
//! before it, so that a half-written record is told from a whole one; a record without a checksum
//! is taken as it is, since any program may have written it. The record explains; it never proves.
//! Every text that is read from a file is made safe to print.

use std::fmt;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use crate::checksum::checksum;
use crate::claim::Me;
use crate::process::Identity;
use crate::{sys, text};

/// The version of the record that this library writes.
pub(crate) const VERSION: u64 = 1;
/// Readers look no further into a file than this.
pub(crate) const MAX_BYTES: usize = 8 << 20;
/// No clock gives out a token like this: it is nonsense, and would leave no room to rise.
const LARGEST_TOKEN: u64 = 1 << 62;
const CHECKSUM: &str = ",\"crc32\":\"";

/// What an owner says about itself in the lock file.
///
/// Only `pid` is certain to be there: a record may have been written by another program, which
/// need not know more than `{"pid":12345,"started_at":"2026-01-30T12:00:00Z","port":8000}`.
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
    pub(crate) command: Option<Command>,
    pub(crate) token: u64,
    pub(crate) version: u64,
    pub(crate) released_at: Option<SystemTime>,
    pub(crate) extra: Map<String, Value>,
}

/// The command that the owner runs under its tenure, and that inherited the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) pid: u32,
    pub(crate) program: Option<String>,
    pub(crate) process: Option<Identity>,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    Empty,
    TooLarge,
    Torn,
    NotJson,
    NoPid,
}

impl Record {
    /// The owner's process id, in its own PID namespace. 0 if the file named an impossible one.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// When the key was taken.
    pub fn started_at(&self) -> Option<SystemTime> {
        self.started_at
    }

    /// When the key was taken, in RFC 3339, UTC.
    pub fn started_at_text(&self) -> Option<String> {
        self.started_at.map(rfc3339)
    }

    /// The port, if the key is one.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The key, as its owner names it.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The host the owner runs on.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The user the owner runs as.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The owner's program, without its path.
    pub fn program(&self) -> Option<&str> {
        self.program.as_deref()
    }

    /// What the program is doing, for example `serve`. Never its arguments.
    pub fn verb(&self) -> Option<&str> {
        self.verb.as_deref()
    }

    /// What to type to stop the owner, by its own account.
    pub fn stop_command(&self) -> Option<&str> {
        self.stop.as_deref()
    }

    /// The process id of the command that the owner runs under this tenure.
    pub fn command_pid(&self) -> Option<u32> {
        self.command.as_ref().map(|command| command.pid)
    }

    /// The program of the command that the owner runs under this tenure, without its path.
    pub fn command_program(&self) -> Option<&str> {
        self.command.as_ref()?.program.as_deref()
    }

    /// The fencing token: larger than that of every earlier owner of this key. 0 if unknown.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// A field that this library does not know, or that the owner added.
    pub fn field(&self, name: &str) -> Option<&Value> {
        self.extra.get(name)
    }

    /// Everything the record says, as it stands in the file, without the checksum.
    pub fn to_json(&self) -> Value {
        let mut value = serde_json::from_slice(&self.encode()).unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.remove("crc32");
        }
        value
    }

    /// Replaces what the record says about its user by the kernel's word.
    pub(crate) fn attest_user(&mut self, uid: u32) {
        if Some(uid) == sys::process::current_uid() {
            self.user = Some(Me::get().user);
        } else {
            self.distrust();
            self.user = Some(sys::process::user(uid));
        }
    }

    /// Makes another user's record safe to show: no command that people would type, no text that could
    /// steer their terminal.
    pub(crate) fn distrust(&mut self) {
        self.user = None;
        self.stop = None;
        let mut extra = Value::Object(std::mem::take(&mut self.extra));
        text::make_plain(&mut extra);
        if let Value::Object(extra) = extra {
            self.extra = extra;
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer(Vec::with_capacity(640));
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
            let mut inner = Writer(Vec::new());
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
        for (name, value) in &self.extra {
            out.name(name);
            out.0.extend_from_slice(value.to_string().as_bytes());
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
        // A shorter record written over a longer one leaves the old tail for an instant.
        let line = text.split(|byte| *byte == b'\n').next().unwrap_or(text);
        let fields = parse(line).or_else(|error| {
            if line.len() < text.len() {
                parse(text)
            } else {
                Err(error)
            }
        })?;
        Self::from_fields(fields)
    }

    fn from_fields(mut fields: Map<String, Value>) -> Result<Self, Unreadable> {
        let Some(Value::Number(pid)) = fields.remove("pid") else {
            return Err(Unreadable::NoPid);
        };
        let record = Self {
            pid: pid.as_u64().and_then(possible_pid).unwrap_or(0),
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
            extra: fields,
        };
        Ok(record)
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "it is empty",
            Self::TooLarge => "it is larger than any record",
            Self::Torn => "it was only partly written (its checksum does not match)",
            Self::NotJson => "it is not a JSON object",
            Self::NoPid => "it has no number `pid`",
        })
    }
}

/// A process id that a process could have.
pub(crate) fn possible_pid(pid: u64) -> Option<u32> {
    u32::try_from(pid)
        .ok()
        .filter(|pid| *pid > 0 && i32::try_from(*pid).is_ok())
}

/// A time in RFC 3339, UTC, to the millisecond.
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

fn parse(text: &[u8]) -> Result<Map<String, Value>, Unreadable> {
    let found = find_last(text, CHECKSUM.as_bytes());
    if let Some(start) = found {
        let (body, tail) = text.split_at(start);
        let expected = format!("{CHECKSUM}{:08x}\"}}", checksum(body));
        if tail != expected.as_bytes() {
            return Err(Unreadable::Torn);
        }
    }
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(text) else {
        // Our own records begin with the pid: what begins like one and ends early was torn.
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
    Ok(fields)
}

fn find_last(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).rposition(|window| window == part)
}

fn take_number(fields: &mut Map<String, Value>, name: &str) -> Option<u64> {
    fields.remove(name)?.as_u64()
}

fn take_text(fields: &mut Map<String, Value>, name: &str) -> Option<String> {
    match fields.remove(name)? {
        Value::String(text) => Some(text::plain(text)),
        _ => None,
    }
}

fn take_name(fields: &mut Map<String, Value>, name: &str) -> Option<String> {
    take_text(fields, name).map(text::name)
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

fn take_command(fields: &mut Map<String, Value>) -> Option<Command> {
    let Value::Object(mut inner) = fields.remove("command")? else {
        return None;
    };
    Some(Command {
        pid: take_number(&mut inner, "pid").and_then(possible_pid)?,
        program: take_name(&mut inner, "program"),
        process: take_identity(&mut inner),
    })
}

/// Writes the members of one JSON object, in the order in which people want to read them.
struct Writer(Vec<u8>);

impl Writer {
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
            command: Some(Command {
                pid: 78,
                program: Some("sleep".into()),
                process: Some(identity),
            }),
            token: 9,
            version: VERSION,
            released_at: None,
            extra: [("pod_name".to_owned(), Value::from("pod-1"))]
                .into_iter()
                .collect(),
        }
    }

    #[test]
    fn a_record_comes_back_as_it_was_written() {
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
    fn every_torn_prefix_and_every_flipped_byte_is_refused() {
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
    fn a_longer_old_tail_is_not_read() {
        let mut bytes = full().encode();
        bytes.extend_from_slice(b"4026531836},\"token\":1,\"crc32\":\"00000000\"}\n");
        assert_eq!(Record::decode(&bytes), Ok(full()));
    }

    #[test]
    fn the_shortest_foreign_record_is_read() {
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
    fn nonsense_is_no_record_and_never_a_panic() {
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
    fn an_impossible_pid_reads_as_zero() {
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
        // Not a number that JSON readers accept, in text that begins like a record of ours.
        assert_eq!(Record::decode(b"{\"pid\":1e400}"), Err(Unreadable::Torn));
    }

    #[test]
    fn text_of_a_record_is_safe_to_print() {
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
    fn record_of_another_user_has_no_user_of_its_own_and_no_stop_command() {
        let mut record = full();
        record.extra.insert("pod".into(), "\u{1b}]0;x\u{7}".into());
        record.distrust();
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
}
