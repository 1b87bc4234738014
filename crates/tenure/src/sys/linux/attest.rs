//! Proof of which process has a lock, from what the kernel reports.
//!
//! `/proc/locks` names the process that acquired each lock, and every user can read it. That
//! process may have exited since and left the lock to a child, so its pid alone proves nothing. The
//! process must also be the one that the lock record describes, or show the lock among its own
//! descriptors (`/proc/PID/fdinfo`).

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use super::super::types::{Attested, LockState, ProvenOwner};
use super::super::unix::file::{Directory, FileId, LockFile};
use super::proc;
use super::process::{self, Stat};
use crate::process::Identity;
use crate::record::{MAX_BYTES, Record};
use crate::text;

/// Word in a line of `/proc/locks` that marks an exclusive lock, such as that of an owner.
const EXCLUSIVE: &str = "WRITE";
/// Word in a line of `/proc/locks` that marks a shared lock, such as that of a reader.
const SHARED: &str = "READ";
/// Number of times that `/proc/locks` is read before a lock counts as not listed. A single read may
/// miss a lock, because the kernel may skip a line while locks change.
const TABLE_READS: u32 = 8;

/// Returns the state of the lock. The lock table omits owners outside of this PID namespace, and
/// lists files of some file systems under other inode numbers. So a lock that is not listed is
/// tested by acquiring a shared lock for an instant.
pub(crate) fn lock_state(file: &LockFile) -> io::Result<LockState> {
    match table_entry(file.id()) {
        Some(pid) => Ok(LockState::Held {
            acquirer: visible(pid),
        }),
        None => file.probe(),
    }
}

/// Returns the state of the lock of a file that cannot be opened. The kernel returns a long table
/// in pieces and may skip a line if locks change in between, so an unlisted lock is searched
/// several times.
///
/// An unlisted lock is free only if the table is known to list all locks of this file system under
/// the inode numbers of `stat`. That requires the initial PID namespace, and that the table lists a
/// probe lock on the directory.
pub(crate) fn lock_state_without_access(directory: &Directory, id: FileId) -> LockState {
    let probe_lock = directory.lock_shared();
    let mut is_listed = false;
    for _ in 0..TABLE_READS {
        let Some(table) = proc::read_table("/proc/locks") else {
            return LockState::Unknown("/proc/locks cannot be read here");
        };
        if let Some(pid) = find_entry(&table, id, &[EXCLUSIVE, SHARED]) {
            return LockState::Held {
                acquirer: visible(pid),
            };
        }
        is_listed |= find_entry(&table, directory.id(), &[SHARED]).is_some();
    }
    if !process::is_in_initial_pid_namespace() {
        LockState::Unknown("/proc/locks does not list the locks outside of this PID namespace")
    } else if probe_lock.is_none() || !is_listed || directory.id().dev != id.dev {
        LockState::Unknown(
            "/proc/locks lists this file system's locks under other inode numbers, or not at all",
        )
    } else {
        LockState::Free
    }
}

/// Returns the process that acquired a lock that is known to be held. It may have exited since and
/// left the lock to a child.
pub(crate) fn acquirer(file: &LockFile) -> Option<u32> {
    table_entry(file.id()).and_then(visible)
}

/// Checks that the lock record names the process that has the lock.
pub(crate) fn attest(file: &LockFile, acquirer: Option<u32>, record: &Record) -> Attested {
    let claimed = [
        (record.pid, record.process.as_ref(), false),
        record.command.as_ref().map_or((0, None, true), |command| {
            (command.pid, command.process.as_ref(), true)
        }),
    ];
    for (pid, identity, command_only) in claimed {
        let Some(pid) = local_pid(pid, identity, acquirer) else {
            continue;
        };
        let Some(stat) = Stat::read_living(pid) else {
            continue;
        };
        let same_process = identity.map(|identity| identity.start == stat.start);
        let proven = match same_process {
            Some(false) => false,
            Some(true) if acquirer == Some(pid) => true,
            _ => has_lock(pid, file.id()),
        };
        if proven {
            let suspended = stat.is_suspended();
            return Attested::Owner(ProvenOwner {
                pid,
                suspended,
                command_only,
            });
        }
    }
    let elsewhere = record.process.as_ref().is_some_and(|identity| {
        identity.boot.as_deref() != process::boot() || identity.pid_ns != process::own_namespace()
    });
    if elsewhere && acquirer.is_none() {
        Attested::NotVisible
    } else {
        Attested::Unproven
    }
}

/// Reads the lock record of a deleted or renamed lock file through the descriptor of its owner,
/// which still has the file open and locked. Returns `None` unless the record names this process
/// and this key.
pub(crate) fn record_of_lost_file(pid: u32, key: &str) -> Option<Record> {
    let key = text::sanitize(key.to_owned());
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

/// True if the process has the exclusive lock on this file among its descriptors. It is then the
/// owner, even if another process acquired the lock.
pub(super) fn has_lock(pid: u32, id: FileId) -> bool {
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

/// True if the process has this socket among its descriptors. Otherwise the pid that the kernel
/// reports for the socket belongs to another process by now.
pub(super) fn has_socket(pid: u32, inode: u64) -> bool {
    let link = format!("socket:[{inode}]");
    let found = each_descriptor(pid, |number| {
        let target = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
        (target.as_os_str() == link.as_str()).then_some(())
    });
    found.is_some()
}

/// Returns the first process of this user that has the socket among its descriptors.
pub(super) fn find_own_process_with_socket(inode: u64) -> Option<u32> {
    let own_uid = rustix::process::geteuid().as_raw();
    fs::read_dir("/proc")
        .ok()?
        .filter_map(Result::ok)
        .filter(|entry| entry.metadata().is_ok_and(|meta| meta.uid() == own_uid))
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|pid| has_socket(*pid, inode))
}

/// Translates a pid from a lock record into this PID namespace.
fn local_pid(pid: u32, identity: Option<&Identity>, acquirer: Option<u32>) -> Option<u32> {
    let Some(identity) = identity else {
        return (pid != 0).then_some(pid);
    };
    if pid == 0 || identity.boot.as_deref() != process::boot() {
        return None;
    }
    if identity.pid_ns == process::own_namespace() {
        return Some(pid);
    }
    acquirer.filter(|acquirer| {
        process::innermost_pid(*acquirer) == Some(pid)
            && process::namespace_of(*acquirer) == identity.pid_ns
    })
}

fn each_descriptor<T>(pid: u32, mut found: impl FnMut(&str) -> Option<T>) -> Option<T> {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .filter_map(Result::ok)
        .find_map(|entry| found(entry.file_name().to_str()?))
}

fn lock_lines(pid: u32, number: &str) -> impl Iterator<Item = String> + use<> {
    let text = proc::read_small(&format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("lock:"))
        .map(str::to_owned)
        .collect();
    lines.into_iter()
}

/// True for a line like `1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF`.
fn is_exclusive_flock(line: &str) -> bool {
    let mut words = line.split_ascii_whitespace().skip(1);
    words.next() == Some("FLOCK") && words.nth(1) == Some(EXCLUSIVE)
}

fn visible(pid: u32) -> Option<u32> {
    (pid != 0).then_some(pid)
}

/// Returns the process that `/proc/locks` lists for the exclusive lock on a file, 0 if it is not
/// visible in this PID namespace. `None` does not prove that the lock is free: file systems with
/// subvolumes or layers have other inode numbers in the list than in `stat`.
fn table_entry(id: FileId) -> Option<u32> {
    proc::read_table("/proc/locks").and_then(|table| find_entry(&table, id, &[EXCLUSIVE]))
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
    fn table_entry_is_found_only_for_a_held_flock_of_the_wanted_kind() {
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
