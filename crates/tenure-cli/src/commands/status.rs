//! `tenure status`: shows keys and their owners.

use serde_json::{Value, json};
use tenure::{Holder, Key, Proof, Record, State, Status as KeyStatus};

use crate::args::Status;
use crate::exit::{self, Failure};
use crate::keys::Place;
use crate::output::{self, Colour};

pub(crate) fn status(args: &Status) -> Result<i32, Failure> {
    let store = Place::open(args.store.as_ref(), !args.file.is_empty())?.store;
    let mut keys = Vec::new();
    for name in &args.names {
        keys.push(Key::name(name)?);
    }
    keys.extend(args.port.iter().map(|port| Key::port(*port)));
    for path in &args.file {
        keys.push(Key::file(path)?);
    }
    let found = if keys.is_empty() {
        store.list()?
    } else {
        keys.iter()
            .map(|key| store.status(key))
            .collect::<Result<_, _>>()?
    };
    if args.json {
        let locks: Vec<Value> = found.iter().map(to_json).collect();
        output::data(&format!("{:#}", json!({ "version": 1, "locks": locks })))?;
    } else if found.is_empty() {
        output::data(&format!("Nothing is held in {}", store.dir().display()))?;
    } else {
        print_table(&found)?;
    }
    let is_unknown = |status: &KeyStatus| matches!(status.state(), State::Unknown { .. });
    Ok(if keys.is_empty() {
        exit::DONE
    } else if found.iter().any(is_unknown) {
        exit::FAILED
    } else if found.iter().any(|status| status.holder().is_none()) {
        exit::NOT_RUNNING
    } else {
        exit::DONE
    })
}

fn print_table(found: &[KeyStatus]) -> Result<(), Failure> {
    let mut rows = vec![["KEY", "STATE", "PID", "SINCE", "OWNER"].map(str::to_owned)];
    rows.extend(found.iter().map(row));
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: [usize; 4] = [width(0), width(1), width(2), width(3)];
    for (number, row) in rows.iter().enumerate() {
        let [key, state, pid, since, owner] = row;
        let padded = format!("{state:<0$}", widths[1]);
        let state = match (
            number,
            found.get(number.wrapping_sub(1)).map(KeyStatus::state),
        ) {
            (0, _) | (_, None) => padded,
            (_, Some(State::Held(_))) => output::emphasize(&padded, Colour::Green),
            (_, Some(State::Unusable(_) | State::Unknown { .. })) => {
                output::emphasize(&padded, Colour::Yellow)
            }
            _ => output::emphasize(&padded, Colour::Dim),
        };
        let line = format!(
            "{key:<0$}  {state}  {pid:<1$}  {since:<2$}  {owner}",
            widths[0], widths[2], widths[3]
        );
        output::data(line.trim_end())?;
    }
    Ok(())
}

fn row(status: &KeyStatus) -> [String; 5] {
    let none = || "-".to_owned();
    let key = status.key().to_string();
    match status.state() {
        State::Held(holder) => [
            key,
            held_text(holder),
            pid(holder).unwrap_or_else(none),
            holder.record().map_or_else(none, since),
            owner(holder),
        ],
        State::Stale(record) => [
            key,
            "stale".to_owned(),
            none(),
            since(record),
            format!(
                "was pid {}, which has exited; the next owner takes the file over",
                record.pid()
            ),
        ],
        State::Free => [key, "free".to_owned(), none(), none(), String::new()],
        State::Unreadable(why) => [
            key,
            "unreadable".to_owned(),
            none(),
            none(),
            format!("none; {why}; the next owner takes the file over"),
        ],
        State::OtherUser(user) => [
            key,
            "another user's".to_owned(),
            none(),
            none(),
            format!("the lock file belongs to {user}"),
        ],
        State::Unknown { user, why } => [
            key,
            "unknown".to_owned(),
            none(),
            none(),
            format!("{} belongs to {user}, and {why}", status.path().display()),
        ],
        State::Unusable(why) => [
            key,
            "unusable".to_owned(),
            none(),
            none(),
            format!("{}: {why}", status.path().display()),
        ],
        _ => [key, "-".to_owned(), none(), none(), String::new()],
    }
}

/// Returns the pid of the owner. The pid of a lease's owner comes from its lock record, and is
/// valid only on the host in that record.
fn pid(holder: &Holder) -> Option<String> {
    if let Some(pid) = holder.pid() {
        return Some(pid.to_string());
    }
    let record = holder.record().filter(|_| holder.proof() == Proof::Lease)?;
    Some(match record.host() {
        Some(host) => format!("{} on {host}", record.pid()),
        None => record.pid().to_string(),
    })
}

fn held_text(holder: &Holder) -> String {
    let how = match holder.proof() {
        Proof::Verified => "verified",
        Proof::NotVisible => "pid not visible here",
        Proof::OtherUser => "another user's",
        Proof::Lease => "lease",
        _ => "owner unknown",
    };
    let more = match (holder.is_suspended(), holder.is_file_gone()) {
        (true, true) => ", suspended, file gone",
        (true, false) => ", suspended",
        (false, true) => ", file gone",
        (false, false) => "",
    };
    format!("held ({how}{more})")
}

fn since(record: &Record) -> String {
    record.started_at().map_or_else(
        || "-".to_owned(),
        |time| format!("{} ({})", output::time(time), output::ago(time)),
    )
}

fn owner(holder: &Holder) -> String {
    let Some(record) = holder.record() else {
        return String::new();
    };
    let mut parts = Vec::new();
    if holder.proof() == Proof::NotVisible {
        parts.push(format!(
            "unverified pid {} from the lock record",
            record.pid()
        ));
    }
    let program: Vec<&str> = record.program().into_iter().chain(record.verb()).collect();
    if !program.is_empty() {
        parts.push(program.join(" "));
    }
    if let Some(pid) = record.command_pid() {
        let program = record.command_program().unwrap_or("a command");
        parts.push(if holder.is_command_only() {
            format!("running {program}; its wrapper has exited")
        } else {
            format!("running {program} (pid {pid})")
        });
    }
    match (record.user(), record.host()) {
        (Some(user), Some(host)) => parts.push(format!("{user}@{host}")),
        (Some(user), None) => parts.push(user.to_owned()),
        (None, Some(host)) => parts.push(host.to_owned()),
        (None, None) => {}
    }
    if let Some(left) = holder.expires_in() {
        parts.push(format!(
            "valid for {:.1} s unless renewed",
            left.as_secs_f32()
        ));
    }
    parts.join(", ")
}

/// Returns the JSON form of a status, as documented in docs/status-json.md.
fn to_json(status: &KeyStatus) -> Value {
    let mut lock = json!({
        "key": status.key().to_string(),
        "path": status.path().to_string_lossy(),
    });
    let fields = match status.state() {
        State::Held(holder) => json!({
            "state": "held",
            "proof": match holder.proof() {
                Proof::Verified => "verified",
                Proof::NotVisible => "not_visible",
                Proof::OtherUser => "other_user",
                Proof::Lease => "lease",
                _ => "unknown",
            },
            "pid": holder.pid(),
            "suspended": holder.is_suspended(),
            "command_only": holder.is_command_only(),
            "file_gone": holder.is_file_gone(),
            "host": holder.record().and_then(Record::host),
            "expires_in_ms": holder.expires_in().map(|left| left.as_millis()),
            "record": holder.record().map(Record::to_json),
        }),
        State::Free => json!({ "state": "free" }),
        State::Stale(record) => json!({ "state": "stale", "record": record.to_json() }),
        State::Unreadable(why) => json!({ "state": "unreadable", "reason": why }),
        State::OtherUser(user) => json!({ "state": "other_user", "user": user }),
        State::Unknown { user, why } => {
            json!({ "state": "unknown", "user": user, "reason": why })
        }
        State::Unusable(why) => json!({ "state": "unusable", "reason": why }),
        _ => json!({ "state": null }),
    };
    if let (Value::Object(lock), Value::Object(fields)) = (&mut lock, fields) {
        lock.extend(fields);
    }
    lock
}
