//! Proof that file locks work between the members of a fleet.
//!
//! Each member, a server or a command, has a file in `fleet/` and holds a lock on it from before
//! the file has its name until after the file is removed. A member that finds the file of another
//! member without a lock leaves a challenge beside it. There are three explanations: the other
//! member has died, it has lost its lock (an NFS client after an outage), or its lock is not
//! visible here. Only a member that lives answers a challenge. At its first challenge it leaves a
//! note and joins again, with a new file and a new lock. A member that joined after the note and is
//! challenged as well has not lost its lock in the same outage, so locks are not shared. It writes
//! a marker, with which every run is refused until a person removes the marker. The clock is only
//! used to forget the note.
//!
//! ```text
//! fleet/{uuid}.member       {"host":"gpu-1","pid":12,"process":"..","instance":"gpu-1:32768",..}
//! fleet/{uuid}.challenge    {"host":"gpu-2","pid":99,..}: the member that sees no lock
//! fleet/challenged.json     the note: same content as the marker
//! fleet/locks-not-shared.json
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tenure::process::Identity;
use uuid::Uuid;

use super::directory::MAX_FILE;
use super::{DIR, FleetError};
use crate::config::env;
use crate::sys::{self, data_file};
use crate::text;

const MEMBER: &str = "member";
const CHALLENGE: &str = "challenge";
const MARKER: &str = "locks-not-shared.json";
const NOTE: &str = "challenged.json";
/// Number of times that the lock of a member must be found free before the member is challenged,
/// and the pause in between. A network file system may show a file for a moment after its owner has
/// removed it.
const LOOKS: usize = 3;
const PAUSE: Duration = Duration::from_millis(200);
/// Time that a challenged member has to answer, after which its file is removed. The note of a
/// first challenge is forgotten after the same time.
const FORGET_AFTER: Duration = Duration::from_secs(2 * 24 * 60 * 60);
/// Maximum number of members that one run challenges. It bounds the delay of a delivery if the
/// directory has many files without a lock.
const MAX_CHECKED: usize = 1000;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Description {
    host: String,
    pid: u32,
    /// Identity of the member's process, which includes its boot and PID namespace. Host name and
    /// pid are not enough: hosts can have the same name, and containers the same pids.
    process: String,
    instance: String,
    started_at: String,
}

impl Description {
    /// True if the process is known to have ended. False for a process of another host or PID
    /// namespace, which cannot be checked here.
    fn has_ended(&self) -> bool {
        let process = self.process.parse::<Identity>();
        process.is_ok_and(|process| process.has_ended(self.pid))
    }
}

/// Content of the marker file, which states that locks are not shared, and of the note of a first
/// challenge.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Marker {
    at: String,
    /// Member whose lock was free as seen from the other member.
    by: Description,
    /// Member that found the lock free.
    versus: Description,
}

/// Membership of this process in the fleet: its locked file in `fleet/`. Dropping it removes the
/// file, then releases the lock.
#[derive(Debug)]
pub(super) struct Member {
    path: PathBuf,
    description: Description,
    /// True if the note of a first challenge existed when this member joined. A challenge of this
    /// member then proves that locks are not shared.
    joined_after_note: bool,
    /// Holds the lock.
    file: File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    Valid,
    /// This member was challenged: it may have lost its lock, and must join again.
    Challenged,
}

impl Drop for Member {
    fn drop(&mut self) {
        // Removes the file while it is still locked, so that no other member finds it without a
        // lock and challenges it.
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(self.path.with_extension(CHALLENGE));
    }
}

impl Member {
    /// Creates and locks the file of this process in `fleet/`, so that other members can check its
    /// lock.
    pub(super) fn join(data: &Path, instance: &str) -> Result<Self, FleetError> {
        let dir = data.join(DIR);
        let description = Description {
            host: sys::host_name(env::text).unwrap_or_default(),
            pid: std::process::id(),
            process: Identity::from_pid(std::process::id())
                .map(|process| process.to_string())
                .unwrap_or_default(),
            instance: instance.to_owned(),
            started_at: crate::lock::rfc3339(SystemTime::now()),
        };
        let path = dir.join(format!("{}.{MEMBER}", Uuid::now_v7().simple()));
        let joined = || -> io::Result<(bool, File)> {
            data_file::make_dir(&dir)?;
            let joined_after_note = has_note(&dir);
            let new = path.with_extension("tmp");
            let mut file = data_file::append(&new)?;
            file.write_all(&json(&description)?)?;
            // Lock the file under a temporary name and rename it then, so that no other member ever
            // finds it without a lock.
            if !tenure::file::try_lock(&file)? {
                return Err(io::Error::other(
                    "another process has locked the new file of this member",
                ));
            }
            std::fs::rename(&new, &path)?;
            Ok((joined_after_note, file))
        };
        let (joined_after_note, file) = joined().map_err(|error| FleetError::disk(&path, error))?;
        Ok(Self {
            path,
            description,
            joined_after_note,
            file,
        })
    }

    /// True if the file of this member is still in the directory. Another member removes the file
    /// if this process was suspended for two days.
    pub(super) fn is_listed(&self) -> bool {
        let has_name = self.path.try_exists().unwrap_or(true);
        has_name && self.file.metadata().is_ok()
    }

    /// Answers a challenge of a member that does not see the lock of this process. After a first
    /// challenge this member joins again, because it may have lost its lock. Fails if locks are not
    /// shared.
    pub(super) fn answer(&self, data: &Path) -> Result<Membership, FleetError> {
        let challenge = self.path.with_extension(CHALLENGE);
        if !challenge.try_exists().unwrap_or(false) {
            return Ok(Membership::Valid);
        }
        let content = Marker {
            at: crate::lock::rfc3339(SystemTime::now()),
            by: self.description.clone(),
            versus: read(&challenge).unwrap_or_default(),
        };
        let dir = data.join(DIR);
        let (marker, note) = (dir.join(MARKER), dir.join(NOTE));
        let path = if self.joined_after_note {
            &marker
        } else {
            &note
        };
        let written = json(&content).and_then(|text| write_new(path, &text));
        written.map_err(|error| FleetError::disk(path, error))?;
        if !self.joined_after_note {
            return Ok(Membership::Challenged);
        }
        // The marker refuses every run from now on. Remove the note and the challenge, so that the
        // next challenge counts as a first one after a person has removed the marker.
        let _ = std::fs::remove_file(note);
        let _ = std::fs::remove_file(challenge);
        check_marker(data).map(|()| Membership::Valid)
    }

    /// Leaves a challenge for every other member whose lock this process finds free. A member that
    /// lives answers it.
    pub(super) fn challenge_others(&self, data: &Path) -> Result<(), FleetError> {
        let dir = data.join(DIR);
        let failed = |error| FleetError::disk(&dir, error);
        let mut free: Vec<PathBuf> = Vec::new();
        for file in std::fs::read_dir(&dir).map_err(failed)? {
            let path = file.map_err(failed)?.path();
            let is_other = path != self.path && path.extension().is_some_and(|end| end == MEMBER);
            if is_other && is_free(&path) && free.len() < MAX_CHECKED {
                free.push(path);
            }
        }
        for _ in 1..LOOKS {
            if free.is_empty() {
                return Ok(());
            }
            thread::sleep(PAUSE);
            free.retain(|path| is_free(path));
        }
        for path in free {
            self.challenge(&path).map_err(failed)?;
        }
        Ok(())
    }

    fn challenge(&self, member: &Path) -> io::Result<()> {
        let challenge = member.with_extension(CHALLENGE);
        let other: Description = read(member).unwrap_or_default();
        let age = age(&challenge);
        if other.has_ended() || age.is_some_and(|age| age > FORGET_AFTER) {
            let _ = std::fs::remove_file(member);
            let _ = std::fs::remove_file(challenge);
            return Ok(());
        }
        if age.is_some() {
            return Ok(());
        }
        write_new(&challenge, &json(&self.description)?)
    }
}

/// True if the directory has a recent note, which a member left after a first challenge.
fn has_note(dir: &Path) -> bool {
    age(&dir.join(NOTE)).is_some_and(|age| age <= FORGET_AFTER)
}

/// Returns the time since the last change of a file; zero if the time of the change is in the
/// future.
fn age(path: &Path) -> Option<Duration> {
    let changed = path.metadata().and_then(|found| found.modified()).ok()?;
    Some(changed.elapsed().unwrap_or_default())
}

/// Fails if the directory contains the marker that locks are not shared between hosts, which a
/// member has written.
pub(super) fn check_marker(data: &Path) -> Result<(), FleetError> {
    let marker = data.join(DIR).join(MARKER);
    match marker.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(()),
        Err(error) => return Err(FleetError::disk(&marker, error)),
        Ok(_) => {}
    }
    // A marker with invalid content must refuse the run as well; only the names of the members are
    // then unknown.
    let content: Marker = read(&marker).unwrap_or_default();
    let name = |member: &Description| {
        let host = text::shortened(&member.host, 100);
        match &*host {
            "" => "an unknown host".to_owned(),
            host => format!("host {} (PID {})", text::escaped(host), member.pid),
        }
    };
    let (holder, other) = (name(&content.by), name(&content.versus));
    Err(FleetError::LocksNotShared {
        details: format!("a lock of {holder} was free as seen from {other}"),
        marker,
    })
}

/// True if the file of a member exists and this process finds its lock free.
fn is_free(path: &Path) -> bool {
    let Ok(file) = data_file::append_existing(path) else {
        return false;
    };
    // `try_lock` on the file holds the lock only until `file` is dropped. If the member has removed
    // the file in the meantime, the member has left, so its lock does not count as free.
    tenure::file::try_lock(&file).unwrap_or(false) && path.try_exists().unwrap_or(false)
}

fn json(value: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut text = serde_json::to_vec(value)?;
    text.push(b'\n');
    Ok(text)
}

fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> io::Result<T> {
    let mut text = Vec::new();
    data_file::open(path)?
        .take(MAX_FILE)
        .read_to_end(&mut text)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Writes a file under a temporary name and renames it, so that other members find it complete or
/// not at all. Replaces an existing file.
fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    let new = path.with_extension(format!("{}.tmp", Uuid::now_v7().simple()));
    let written = data_file::append(&new)
        .and_then(|mut file| file.write_all(text).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(data: &Path, ending: &str) -> usize {
        let files = std::fs::read_dir(data.join(DIR)).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        paths
            .filter(|path| path.extension().is_some_and(|end| end == ending))
            .count()
    }

    /// Makes the lock of a member invisible, as on a file system that does not share locks: the
    /// name then leads to another file with the same content.
    fn hide_lock(member: &Member) {
        let text = std::fs::read(&member.path).unwrap();
        // On Wine, the name of a removed file is taken until the file is closed.
        std::fs::rename(&member.path, member.path.with_extension("moved")).unwrap();
        std::fs::write(&member.path, text).unwrap();
    }

    #[test]
    fn members_that_see_each_others_locks_leave_no_challenge_and_no_files() {
        let dir = tempfile::tempdir().unwrap();
        let one = Member::join(dir.path(), "one").unwrap();
        let two = Member::join(dir.path(), "two").unwrap();
        for member in [&one, &two] {
            member.challenge_others(dir.path()).unwrap();
        }
        assert_eq!(names(dir.path(), CHALLENGE), 0);
        assert_eq!(one.answer(dir.path()).unwrap(), Membership::Valid);
        assert!(one.is_listed());
        drop((one, two));
        assert_eq!(std::fs::read_dir(dir.path().join(DIR)).unwrap().count(), 0);
    }

    #[test]
    fn member_whose_lock_is_not_visible_answers_and_every_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let one = Member::join(dir.path(), "one").unwrap();
        let two = Member::join(dir.path(), "two").unwrap();
        hide_lock(&one);
        two.challenge_others(dir.path()).unwrap();
        check_marker(dir.path()).unwrap();
        two.answer(dir.path()).unwrap();
        assert_eq!(one.answer(dir.path()).unwrap(), Membership::Challenged);
        drop(one);
        // The lock of the member's new file is not visible either, which proves that locks are not
        // shared.
        let one = Member::join(dir.path(), "one").unwrap();
        hide_lock(&one);
        two.challenge_others(dir.path()).unwrap();
        let error = one.answer(dir.path()).unwrap_err();
        assert!(
            matches!(error, FleetError::LocksNotShared { .. }),
            "{error:?}"
        );
        let again = check_marker(dir.path()).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
        let hint = error.hint().unwrap();
        let marker = dir.path().join(DIR).join(MARKER);
        assert!(
            hint.ends_with(&format!("rm {}", marker.display())),
            "{hint}"
        );
        std::fs::remove_file(marker).unwrap();
        check_marker(dir.path()).unwrap();
        assert!(!has_note(&dir.path().join(DIR)));
    }

    /// An outage of the file server can cost all members their locks at once. No run must be
    /// refused for that.
    #[test]
    fn members_that_lost_their_locks_once_join_again_and_no_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let witness = Member::join(dir.path(), "witness").unwrap();
        let members = ["one", "two"].map(|name| Member::join(dir.path(), name).unwrap());
        members.iter().for_each(hide_lock);
        witness.challenge_others(dir.path()).unwrap();
        let members = members.map(|member| {
            let answer = member.answer(dir.path()).unwrap();
            assert_eq!(answer, Membership::Challenged);
            drop(member);
            Member::join(dir.path(), "again").unwrap()
        });
        witness.challenge_others(dir.path()).unwrap();
        for member in &members {
            assert_eq!(member.answer(dir.path()).unwrap(), Membership::Valid);
        }
        check_marker(dir.path()).unwrap();
        assert_eq!(names(dir.path(), CHALLENGE), 0);
    }

    #[test]
    fn note_of_a_challenge_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let note = dir.path().join(NOTE);
        assert!(!has_note(dir.path()));
        let file = File::create(&note).unwrap();
        assert!(has_note(dir.path()));
        let before = SystemTime::now() - FORGET_AFTER - Duration::from_secs(60);
        file.set_modified(before).unwrap();
        assert!(!has_note(dir.path()));
    }

    /// Cloned machines and containers can have the same host name. So a process with this host's
    /// name may run elsewhere, and its file must stay.
    #[test]
    fn only_the_file_of_a_process_known_to_have_ended_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let one = Member::join(dir.path(), "one").unwrap();
        let add = |process: String| {
            let name = format!("{}.{MEMBER}", Uuid::now_v7());
            let description = Description {
                pid: 999_999_999,
                process,
                ..one.description.clone()
            };
            let path = dir.path().join(DIR).join(name);
            std::fs::write(path, json(&description).unwrap()).unwrap();
        };
        let parts: Vec<_> = one.description.process.split(' ').collect();
        add(format!("1 {} {}", parts[1], parts[2]));
        add(format!("1 another-boot {}", parts[2]));
        add(format!("1 {} 7", parts[1]));
        add(String::new());
        std::fs::write(dir.path().join(DIR).join("garbage.member"), "\0").unwrap();
        // Windows reports no boot id, so no process is known to have ended there.
        let ended = usize::from(parts[1] != "-");
        for _ in 0..2 {
            one.challenge_others(dir.path()).unwrap();
            // Files that must remain: that of this member, and those of the four or five processes
            // that may still run.
            assert_eq!(
                (names(dir.path(), MEMBER), names(dir.path(), CHALLENGE)),
                (6 - ended, 5 - ended)
            );
        }
    }

    #[test]
    fn unreadable_marker_refuses_too() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(DIR)).unwrap();
        std::fs::write(dir.path().join(DIR).join(MARKER), "\u{1b}[31m").unwrap();
        let error = check_marker(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("unknown host") && !error.contains('\u{1b}'),
            "{error}"
        );
    }
}
