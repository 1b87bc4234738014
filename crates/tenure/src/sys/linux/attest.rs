//! What the kernel says about who has a lock.
//!
//! `/proc/locks` names the process that took each lock, and is readable by all. The number may be
//! that of a process that died since and left the lock to a child, so a number alone proves
//! nothing: the process must also be the one that the record describes, or show the lock among
//! its own descriptors (`/proc/PID/fdinfo`).

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use super::super::testimony::{Attested, Owner, Word};
use super::super::unix::file::{Directory, FileId, LockFile};
use super::proc;
use super::process::{self, Stat};
use crate::process::Identity;
use crate::record::{MAX_BYTES, Record};
use crate::text;

/// The words for locks that one process has alone, and that several may share.
const EXCLUSIVE: &str = "WRITE";
const SHARED: &str = "READ";
/// How often the table is read before a lock counts as not being in it.
const CLOSED_LOOKS: u32 = 8;

/// Looks whether the lock is held. Taken for an instant only if the table does not show it: the
/// table hides owners outside of our PID namespace, and some file systems from themselves.
pub(crate) fn peek(file: &LockFile) -> io::Result<Word> {
    if let Some(pid) = table_entry(file.id()) {
        return Ok(Word::Held {
            taker: visible(pid),
        });
    }
    Ok(if file.probe()? {
        Word::Free
    } else {
        Word::Held { taker: None }
    })
}

/// The same for a file that we may not open. The kernel hands out a long table in pieces, and may
/// skip a line if locks come and go in between, so what is not found is looked for again.
///
/// A lock that the table does not list is free only if the table lists all locks of this file system
/// under the numbers that we know: in the initial PID namespace, and if it lists a lock that we take
/// on the directory for the purpose.
pub(crate) fn peek_closed(directory: &Directory, id: FileId) -> Word {
    let ours = directory.lock_for_an_instant();
    let mut is_listed = false;
    for _ in 0..CLOSED_LOOKS {
        let Some(table) = proc::table("/proc/locks") else {
            return Word::Unknown("/proc/locks cannot be read here");
        };
        if let Some(pid) = find_entry(&table, id, &[EXCLUSIVE, SHARED]) {
            return Word::Held {
                taker: visible(pid),
            };
        }
        is_listed |= find_entry(&table, directory.id(), &[SHARED]).is_some();
    }
    if !process::is_in_initial_pid_namespace() {
        Word::Unknown("/proc/locks does not list the locks outside of this PID namespace")
    } else if ours.is_none() || !is_listed || directory.id().dev != id.dev {
        Word::Unknown("/proc/locks does not list the locks of this file system as its files")
    } else {
        Word::Free
    }
}

/// Who took a lock that is known to be held.
pub(crate) fn taker(file: &LockFile) -> Option<u32> {
    table_entry(file.id()).and_then(visible)
}

/// Whether the record names the process that has the lock.
pub(crate) fn attest(file: &LockFile, taker: Option<u32>, record: &Record) -> Attested {
    let claimed = [
        (record.pid, record.process.as_ref(), false),
        record.command.as_ref().map_or((0, None, true), |command| {
            (command.pid, command.process.as_ref(), true)
        }),
    ];
    for (pid, identity, command_only) in claimed {
        let Some(pid) = pid_here(pid, identity, taker) else {
            continue;
        };
        let Some(stat) = Stat::of_living(pid) else {
            continue;
        };
        let same_process = identity.map(|identity| identity.start == stat.start);
        let proven = match same_process {
            Some(false) => false,
            Some(true) if taker == Some(pid) => true,
            _ => shows_lock(pid, file.id()),
        };
        if proven {
            let suspended = stat.is_suspended();
            return Attested::Owner(Owner {
                pid,
                suspended,
                command_only,
            });
        }
    }
    let elsewhere = record.process.as_ref().is_some_and(|identity| {
        identity.boot.as_deref() != process::boot() || identity.pid_ns != process::own_namespace()
    });
    if elsewhere && taker.is_none() {
        Attested::NotVisible
    } else {
        Attested::Unproven
    }
}

/// The record of a deleted or renamed lock file, read through its owner's own descriptor.
pub(crate) fn record_of_lost_file(pid: u32, key: &str) -> Option<Record> {
    let key = text::plain(key.to_owned());
    each_descriptor(pid, |number| {
        if !lock_lines(pid, number).any(|line| is_exclusive_flock(&line)) {
            return None;
        }
        let mut bytes = Vec::new();
        let file = File::open(format!("/proc/{pid}/fd/{number}")).ok()?;
        file.take(MAX_BYTES as u64 + 1)
            .read_to_end(&mut bytes)
            .ok()?;
        let record = Record::decode(&bytes).ok()?;
        let here = [Some(pid), process::innermost_pid(pid)];
        let named = here.contains(&Some(record.pid)) || here.contains(&record.command_pid());
        (named && record.key.as_deref() == Some(&*key)).then_some(record)
    })
}

/// Whether the process has the exclusive lock on this file among its descriptors.
pub(super) fn shows_lock(pid: u32, id: FileId) -> bool {
    let found = each_descriptor(pid, |number| {
        let meta = fs::metadata(format!("/proc/{pid}/fd/{number}")).ok()?;
        let same = FileId {
            dev: meta.dev(),
            ino: meta.ino(),
        } == id;
        (same && lock_lines(pid, number).any(|line| is_exclusive_flock(&line))).then_some(())
    });
    found.is_some()
}

/// Whether the process has this socket among its descriptors.
pub(super) fn shows_socket(pid: u32, inode: u64) -> bool {
    let link = format!("socket:[{inode}]");
    let found = each_descriptor(pid, |number| {
        let target = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
        (target.as_os_str() == link.as_str()).then_some(())
    });
    found.is_some()
}

/// The first process of this user that has the socket among its descriptors.
pub(super) fn who_of_us_shows_socket(inode: u64) -> Option<u32> {
    let us = rustix::process::geteuid().as_raw();
    fs::read_dir("/proc")
        .ok()?
        .filter_map(Result::ok)
        .filter(|entry| entry.metadata().is_ok_and(|meta| meta.uid() == us))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|pid| shows_socket(*pid, inode))
}

/// The id by which a process that a record names is known here.
fn pid_here(pid: u32, identity: Option<&Identity>, taker: Option<u32>) -> Option<u32> {
    let Some(identity) = identity else {
        return (pid != 0).then_some(pid);
    };
    if pid == 0 || identity.boot.as_deref() != process::boot() {
        return None;
    }
    if identity.pid_ns == process::own_namespace() {
        return Some(pid);
    }
    taker.filter(|taker| {
        process::innermost_pid(*taker) == Some(pid)
            && process::namespace_of(*taker) == identity.pid_ns
    })
}

fn each_descriptor<T>(pid: u32, mut found: impl FnMut(&str) -> Option<T>) -> Option<T> {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .filter_map(Result::ok)
        .find_map(|entry| found(entry.file_name().to_str()?))
}

fn lock_lines(pid: u32, number: &str) -> impl Iterator<Item = String> + use<> {
    let text = proc::short(&format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("lock:"))
        .map(str::to_owned)
        .collect();
    lines.into_iter()
}

/// `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`
fn is_exclusive_flock(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace().skip(1);
    words.next() == Some("FLOCK") && words.nth(1) == Some(EXCLUSIVE)
}

fn visible(pid: u32) -> Option<u32> {
    (pid != 0).then_some(pid)
}

/// The process that `/proc/locks` gives for the exclusive lock on a file, 0 if it is not visible
/// here. `None` does not mean that the lock is free: file systems with subvolumes or layers show
/// other numbers here than in `stat`.
fn table_entry(id: FileId) -> Option<u32> {
    proc::table("/proc/locks").and_then(|table| find_entry(&table, id, &[EXCLUSIVE]))
}

fn find_entry(table: &[u8], id: FileId, kinds: &[&str]) -> Option<u32> {
    let (major, minor) = (rustix::fs::major(id.dev), rustix::fs::minor(id.dev));
    let wanted = format!("{major:02x}:{minor:02x}:{}", id.ino);
    table.split(|byte| *byte == b'\n').find_map(|line| {
        let mut words = str::from_utf8(line).ok()?.split_ascii_whitespace().skip(1);
        let counts = words.next() == Some("FLOCK") && kinds.contains(&words.nth(1)?);
        let pid = words.next()?;
        (counts && words.next()? == wanted).then(|| pid.parse().unwrap_or(0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"1: FLOCK  ADVISORY  WRITE 900 fe:00:12 0 EOF\n\
        1: -> FLOCK  ADVISORY  WRITE 901 fe:00:13 0 EOF\n\
        2: POSIX  ADVISORY  WRITE 902 fe:00:14 0 EOF\n\
        3: FLOCK  ADVISORY  READ 903 fe:00:15 0 EOF\n\
        4: FLOCK  ADVISORY  WRITE 0 00:2b:16 0 EOF\n";

    #[test]
    fn only_an_exclusive_flock_that_is_held_counts() {
        let id = |ino| FileId {
            dev: rustix::fs::makedev(0xfe, 0),
            ino,
        };
        assert_eq!(find_entry(TABLE, id(12), &[EXCLUSIVE]), Some(900));
        for other in [13, 14, 15, 99] {
            assert_eq!(find_entry(TABLE, id(other), &[EXCLUSIVE]), None, "{other}");
        }
        let layered = FileId {
            dev: rustix::fs::makedev(0, 0x2b),
            ino: 16,
        };
        assert_eq!(find_entry(TABLE, layered, &[EXCLUSIVE]), Some(0));
        assert_eq!(find_entry(TABLE, id(16), &[EXCLUSIVE]), None);
        assert_eq!(find_entry(TABLE, id(15), &[EXCLUSIVE, SHARED]), Some(903));
    }
}
