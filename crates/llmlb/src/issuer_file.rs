//! Stores in the file `issued-ids` of the data directory which backend issued which id, so that
//! requests with an id are routed correctly after a restart or `kill -9` of the server (promise
//! L6).
//!
//! ```text
//! 8d3c..(32 digits) 5be1..(16 digits) 6a9f03c1 0c1d2e3f
//! hash of the id    key of backend    time     CRC-32 of the text in front of it
//! ```
//!
//! A thread appends a line for each new id within some milliseconds, so requests never wait for the
//! disk. Servers that share a data directory append to the same file and read it at their start.
//! The file contains nothing that must not be lost: a request with a forgotten id is routed like
//! one with an unknown id. Lines are therefore not synced, and a line that is torn, damaged or
//! foreign is ignored.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::balance::{ISSUER_CAPACITY, Issuer, IssuerQueue, Pool};
use crate::episode::{Episode, Event};
use crate::issued_ids::{BackendKey, IdHash};
use crate::sys::data_file;

const FILE: &str = "issued-ids";
/// Length of each line of the file in bytes, with its line break. All lines have the same length,
/// so that the reader finds the next line after a damaged one.
const LINE: usize = 32 + 1 + 16 + 1 + 8 + 1 + 8 + 1;
/// Size from which the file is rewritten without repeated, expired and surplus ids. It is twice the
/// size of a rewritten file, so each line is rewritten about once on average.
const REWRITE_SIZE: u64 = (2 * ISSUER_CAPACITY * LINE) as u64;
/// Maximum size of the file `issued-ids`. If it cannot be rewritten, nothing is appended beyond
/// this size.
const MAX_SIZE: u64 = 2 * REWRITE_SIZE;
/// Time after which an issued id is forgotten. OpenAI stores responses for 30 days by default.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Pause after a write to the file, in which further ids gather, so that a busy server writes at
/// most 200 times per second.
const GATHER: Duration = Duration::from_millis(5);
/// Maximum time that shutdown waits until the last ids are written.
const LAST_WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// Handle of the thread that writes the file `issued-ids`.
#[derive(Debug)]
pub(crate) struct IssuerFile {
    queue: Arc<IssuerQueue>,
    ended: mpsc::Receiver<()>,
}

impl IssuerFile {
    /// Reads the ids of earlier servers into the pool, and starts the thread that appends the ids of
    /// `queue`. A file that cannot be read is logged and does not stop the server.
    pub(crate) fn start(data: &Path, queue: Arc<IssuerQueue>, pool: &Pool) -> io::Result<Self> {
        let path = data.join(FILE);
        match read(&path) {
            Ok(text) => {
                for (issuer, _) in lines(&text, now()) {
                    pool.restore_issuer(issuer);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                "cannot read {}: {error}; requests with an id that a backend issued before this start \
                 go to the first backend",
                path.display()
            ),
        }
        let (sender, ended) = mpsc::channel();
        let mut writer = Writer {
            path,
            queue: Arc::clone(&queue),
            failures: Episode::default(),
        };
        thread::Builder::new()
            .name("llmlb-ids".to_owned())
            .spawn(move || {
                writer.run();
                drop(sender);
            })?;
        Ok(Self { queue, ended })
    }

    /// Ends the thread after it has written the last ids; waits for at most [`LAST_WRITE_TIMEOUT`].
    pub(crate) fn finish(self) {
        self.queue.close();
        let _ = self.ended.recv_timeout(LAST_WRITE_TIMEOUT);
    }
}

struct Writer {
    path: PathBuf,
    queue: Arc<IssuerQueue>,
    failures: Episode,
}

impl Writer {
    fn run(&mut self) {
        while let Some(issuers) = self.queue.take() {
            match append(&self.path, &issuers, now()) {
                Ok(()) => {
                    if let Some(Event::Ended { .. }) = self.failures.end(Instant::now()) {
                        tracing::warn!(
                            "ids that backends issued are written to {} again",
                            self.path.display()
                        );
                    }
                }
                Err(error) => self.report(&error),
            }
            thread::sleep(GATHER);
        }
    }

    fn report(&self, error: &io::Error) {
        let event = self.failures.occurred(Instant::now());
        if let Some(Event::Began | Event::Continues { .. }) = event {
            tracing::warn!(
                "cannot write {}: {error}; after a restart, requests with an id that a backend issued \
                 now go to the first backend ({} further ids dropped)",
                self.path.display(),
                self.queue.dropped()
            );
        }
    }
}

/// Appends lines in a single write, so that servers that share the file do not interleave parts of
/// lines. The file is opened for each write, because another server may have replaced it.
fn append(path: &Path, issuers: &[Issuer], now: u32) -> io::Result<()> {
    let mut text = String::with_capacity(issuers.len() * LINE);
    for issuer in issuers {
        write_line(&mut text, *issuer, now);
    }
    let mut file = match data_file::append(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), data_file::make_dir)?;
            data_file::append(path)?
        }
        opened => opened?,
    };
    let size = file.metadata()?.len();
    if size >= REWRITE_SIZE {
        // Close the file before it is replaced, because Windows cannot replace an open file.
        drop(file);
        let rewritten = rewrite(path, now);
        if size >= MAX_SIZE {
            rewritten?;
        }
        file = data_file::append(path)?;
    }
    file.write_all(text.as_bytes())
}

/// Replaces the file with one that has the newest line of each id that has not expired. Lines that
/// another server appends at this moment may be lost.
fn rewrite(path: &Path, now: u32) -> io::Result<()> {
    let text = read(path)?;
    let all: Vec<_> = lines(&text, now).collect();
    let mut known = HashSet::with_capacity(ISSUER_CAPACITY);
    let mut newest: Vec<_> = all
        .into_iter()
        .rev()
        .filter(|(issuer, _)| known.insert(issuer.id))
        .take(ISSUER_CAPACITY)
        .collect();
    newest.reverse();
    let mut text = String::with_capacity(newest.len() * LINE);
    for (issuer, time) in newest {
        write_line(&mut text, issuer, time);
    }
    let new = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = (|| {
        // Remove the temporary file of an earlier process with the same PID, which a crash may have
        // left: Windows does not truncate a file that is opened for appending.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = data_file::append(&new)?;
        file.write_all(text.as_bytes())?;
        // Sync the new file before it is renamed. Otherwise a power failure could leave an empty
        // file under the name of the old one.
        file.sync_data()?;
        drop(file);
        std::fs::rename(&new, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// Reads the newest part of the file `issued-ids`, at most [`MAX_SIZE`] bytes.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::{Seek, SeekFrom};
    let mut file = data_file::open(path)?;
    let size = file.metadata()?.len();
    // The part may begin within a line. The rest of that line is ignored like a damaged line.
    file.seek(SeekFrom::Start(size.saturating_sub(MAX_SIZE)))?;
    let mut text = Vec::new();
    file.take(MAX_SIZE).read_to_end(&mut text)?;
    Ok(text)
}

/// Returns the valid lines that have not expired, in the order of the file. Each has the time at
/// which the id was issued.
fn lines(text: &[u8], now: u32) -> impl Iterator<Item = (Issuer, u32)> {
    let oldest = u64::from(now).saturating_sub(MAX_AGE.as_secs());
    text.split(|byte| *byte == b'\n')
        .filter_map(parse_line)
        .filter(move |(_, time)| u64::from(*time) >= oldest)
}

fn write_line(text: &mut String, issuer: Issuer, time: u32) {
    let Issuer { id, backend } = issuer;
    let line = format!("{:032x} {:016x} {time:08x}", id.0, backend.0);
    text.push_str(&line);
    text.push(' ');
    text.push_str(&checksum(&line));
    text.push('\n');
}

fn checksum(text: &str) -> String {
    format!("{:08x}", crc32fast::hash(text.as_bytes()))
}

fn parse_line(line: &[u8]) -> Option<(Issuer, u32)> {
    let line = std::str::from_utf8(line).ok()?;
    let (content, crc) = (line.len() == LINE - 1).then(|| line.rsplit_once(' '))??;
    if crc != checksum(content) {
        return None;
    }
    let mut words = content.split(' ');
    let id = u128::from_str_radix(words.next()?, 16).ok()?;
    let backend = u64::from_str_radix(words.next()?, 16).ok()?;
    let time = u32::from_str_radix(words.next()?, 16).ok()?;
    let issuer = Issuer {
        id: IdHash(id),
        backend: BackendKey(backend),
    };
    (backend != 0 && words.next().is_none()).then_some((issuer, time))
}

/// Returns the present time in seconds since 1970, as the lines of the file store it.
fn now() -> u32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u32::try_from(since.map_or(0, |since| since.as_secs())).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    const NOW: u32 = 1_800_000_000;

    fn issuer(id: u128) -> Issuer {
        Issuer {
            id: IdHash(id),
            backend: BackendKey(9),
        }
    }

    fn ids(text: &[u8]) -> Vec<u128> {
        lines(text, NOW).map(|(issuer, _)| issuer.id.0).collect()
    }

    #[test]
    fn damaged_lines_are_ignored_and_their_neighbours_are_read() {
        let mut text = String::new();
        for id in [1, u128::MAX, 3] {
            write_line(&mut text, issuer(id), NOW);
        }
        let text = text.into_bytes();
        assert_eq!(text.len(), 3 * LINE);
        assert_eq!(ids(&text), [1, u128::MAX, 3]);
        let middle = LINE..2 * LINE;
        for at in middle {
            for bit in 0..8 {
                let mut damaged = text.clone();
                damaged[at] ^= 1 << bit;
                let found = ids(&damaged);
                let expected: &[&[u128]] = match at {
                    // A damaged line break joins two lines, which must count as one damaged line.
                    at if at == 2 * LINE - 1 => &[&[1]],
                    _ => &[&[1, 3]],
                };
                assert!(expected.contains(&&found[..]), "{at} {bit}: {found:?}");
            }
        }
        let torn = [&text[..LINE + 20], b"\n", &text[2 * LINE..]].concat();
        assert_eq!(ids(&torn), [1, 3]);
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let mut dice = Dice::new(7);
        for _ in 0..2000 {
            let length = dice.below(300);
            let bytes: Vec<u8> = (0..length)
                .map(|_| b"0123456789abcdef \n\xff+-"[dice.below(21)])
                .collect();
            assert_eq!(ids(&bytes), [0_u128; 0]);
        }
    }

    #[test]
    fn expired_ids_are_forgotten() {
        let mut text = String::new();
        let age = u32::try_from(MAX_AGE.as_secs()).unwrap();
        for (id, time) in [(1, 0), (2, NOW - age - 1), (3, NOW - age), (4, NOW + 999)] {
            write_line(&mut text, issuer(id), time);
        }
        assert_eq!(ids(text.as_bytes()), [3, 4]);
    }

    #[test]
    fn full_file_is_rewritten_with_the_newest_line_of_each_id() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let mut text = String::new();
        // Issue the first half of the ids again, so that each of them has two lines. Only the newer
        // ones must remain.
        let all = ISSUER_CAPACITY as u128;
        for id in (0..2 * all).chain(0..all / 2) {
            write_line(&mut text, issuer(id), NOW);
        }
        std::fs::write(&path, text).unwrap();
        append(&path, &[issuer(u128::MAX)], NOW).unwrap();
        let found = ids(&std::fs::read(&path).unwrap());
        assert_eq!(found.len(), ISSUER_CAPACITY + 1);
        assert_eq!(found.last(), Some(&u128::MAX));
        assert_eq!(found[ISSUER_CAPACITY - 1], all / 2 - 1);
        assert_eq!(found[0], 3 * all / 2);
        let names = std::fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(names, 1, "no temporary file is left");
    }

    #[test]
    fn missing_directory_is_created_by_the_first_id() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b").join(FILE);
        append(&path, &[issuer(5)], NOW).unwrap();
        assert_eq!(ids(&read(&path).unwrap()), [5]);
    }
}
