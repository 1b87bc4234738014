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
use super::super::unix::file::{FileId, LockFile};
use super::proc;
use super::process::{self, Stat};
use crate::process::Identity;
use crate::record::{MAX_BYTES, Record};

/// The PID namespace of the machine itself; a constant of the kernel.
const INITIAL_NAMESPACE: u64 = 0xefff_fffc;

/// Looks whether the lock is held, without taking it if the kernel lets us.
pub(crate) fn peek(file: &LockFile) -> io::Result<Word> {
    let seen = table_entry(file.id());
    match seen {
        Entry::Exact(pid) => {
            return Ok(Word::Held {
                taker: visible(pid),
            });
        }
        // The table of the machine's own namespace hides nothing.
        Entry::None if process::own_namespace() == Some(INITIAL_NAMESPACE) => {
            return Ok(Word::Free);
        }
        Entry::SameNumber(_) | Entry::None | Entry::NoTable => {}
    }
    Ok(if file.probe()? {
        Word::Free
    } else {
        Word::Held { taker: seen.pid() }
    })
}

/// The same for a file that we may not open.
pub(crate) fn peek_closed(id: FileId) -> Word {
    match table_entry(id) {
        Entry::Exact(pid) => Word::Held {
            taker: visible(pid),
        },
        _ => Word::Free,
    }
}

/// Who took a lock that is known to be held.
pub(crate) fn taker(file: &LockFile) -> Option<u32> {
    table_entry(file.id()).pid()
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
        let written_by_it = record.pid == pid || process::innermost_pid(pid) == Some(record.pid);
        (written_by_it && record.key.as_deref() == Some(key)).then_some(record)
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

/// The first process that has this socket among its descriptors. Looks at every process of ours.
pub(super) fn who_shows_socket(inode: u64) -> Option<u32> {
    fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
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
    words.next() == Some("FLOCK") && words.nth(1) == Some("WRITE")
}

/// A line of `/proc/locks` about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    Exact(u32),
    /// The inode number is the file's; the device is not. File systems with subvolumes or layers
    /// show another device number here than in `stat`.
    SameNumber(u32),
    None,
    NoTable,
}

impl Entry {
    fn pid(self) -> Option<u32> {
        match self {
            Self::Exact(pid) | Self::SameNumber(pid) => visible(pid),
            Self::None | Self::NoTable => None,
        }
    }
}

fn visible(pid: u32) -> Option<u32> {
    (pid != 0).then_some(pid)
}

fn table_entry(id: FileId) -> Entry {
    match proc::table("/proc/locks") {
        Some(table) => find_entry(&table, id),
        None => Entry::NoTable,
    }
}

fn find_entry(table: &[u8], id: FileId) -> Entry {
    let device = format!(
        "{:02x}:{:02x}",
        rustix::fs::major(id.dev),
        rustix::fs::minor(id.dev)
    );
    let mut found = Entry::None;
    for line in table.split(|byte| *byte == b'\n') {
        let Ok(line) = std::str::from_utf8(line) else {
            continue;
        };
        let mut words = line.split_ascii_whitespace().skip(1);
        if words.next() != Some("FLOCK") || words.nth(1) != Some("WRITE") {
            continue;
        }
        let (Some(pid), Some(file)) = (words.next(), words.next()) else {
            continue;
        };
        let Some((line_device, inode)) = file.rsplit_once(':') else {
            continue;
        };
        if inode.parse() != Ok(id.ino) {
            continue;
        }
        let pid = pid.parse().unwrap_or(0);
        if line_device == device {
            return Entry::Exact(pid);
        }
        found = Entry::SameNumber(pid);
    }
    found
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
        assert_eq!(find_entry(TABLE, id(12)), Entry::Exact(900));
        for other in [13, 14, 15, 99] {
            assert_eq!(find_entry(TABLE, id(other)), Entry::None, "{other}");
        }
        assert_eq!(find_entry(TABLE, id(16)), Entry::SameNumber(0));
        assert_eq!(find_entry(TABLE, id(16)).pid(), None);
    }
}
