//! The names of the deletion guard.
//!
//! Two, so that one is left whatever is replaced from outside. By the directory's inode: the same
//! for everyone who shares the directory, by whatever path, and for nobody else. By its place, which
//! is its parent's inode and its own name there: the same when the directory itself was removed and
//! made anew. A directory that is a mount point has no such name, because containers may mount
//! different ones there.
//!
//! A name contains no user: root and a user, or one user inside and outside of a user namespace,
//! must find each other. It contains no path: containers that share a network namespace but not a
//! file system must not.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use rustix::fs::Stat;
use rustix::net::SocketAddrUnix;

use super::super::unix::file::Directory;

/// What fits into an abstract address beside its leading zero byte.
const LONGEST_NAME: usize = 107;

/// The name that lasts as long as the directory.
pub(super) fn by_inode(directory: &Directory, name: &OsStr) -> io::Result<SocketAddrUnix> {
    let id = directory.id();
    address(id.dev, id.ino, name.as_encoded_bytes())
}

/// The name that outlasts the directory. `None`: it is a mount point, or is not named by a name.
pub(super) fn by_place(directory: &Directory, name: &OsStr) -> io::Result<Option<SocketAddrUnix>> {
    if directory.is_mount_point() {
        return Ok(None);
    }
    by_parent(&directory.parent()?, directory.path(), name)
}

/// The same for a directory that is no longer there, or that we may not open.
pub(super) fn by_place_of_missing(dir: &Path, name: &OsStr) -> io::Result<Option<SocketAddrUnix>> {
    match dir.parent() {
        Some(parent) => by_parent(&rustix::fs::stat(parent)?, dir, name),
        None => Ok(None),
    }
}

fn by_parent(parent: &Stat, dir: &Path, name: &OsStr) -> io::Result<Option<SocketAddrUnix>> {
    let Some(dir) = dir.file_name() else {
        return Ok(None);
    };
    // No file has a name like this, so it is never one by inode.
    let place = [dir.as_encoded_bytes(), name.as_encoded_bytes()].join(&b'/');
    address(parent.st_dev, parent.st_ino, &place).map(Some)
}

fn address(dev: u64, ino: u64, name: &[u8]) -> io::Result<SocketAddrUnix> {
    let prefix = format!("tenure/{dev:x}:{ino:x}/");
    Ok(SocketAddrUnix::new_abstract_name(&readable_or_hashed(
        &prefix, name,
    ))?)
}

/// A name that is too long, or would break the lines of `/proc/net/unix`, is hashed.
fn readable_or_hashed(prefix: &str, name: &[u8]) -> Vec<u8> {
    let mut full = prefix.as_bytes().to_vec();
    if full.len() + name.len() <= LONGEST_NAME && name.iter().all(u8::is_ascii_graphic) {
        full.extend_from_slice(name);
    } else {
        full.extend_from_slice(format!("#{:032x}", hash(name)).as_bytes());
    }
    full
}

/// 128-bit FNV-1a. It needs no cryptography: a user who can choose a file name that collides with
/// another one may write to the directory, and could hold the other key itself.
fn hash(bytes: &[u8]) -> u128 {
    bytes
        .iter()
        .fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, |hash, byte| {
            (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_name_gets_an_address_of_its_own() {
        let prefix = "tenure/ffffffffffffffff:ffffffffffffffff/";
        let long = "x".repeat(255);
        let longer = format!("{}y", "x".repeat(254));
        let names: Vec<_> = ["a.lock", "b.lock", "a b", "a\nb", &long, &longer]
            .iter()
            .map(|name| readable_or_hashed(prefix, name.as_bytes()))
            .collect();
        for (i, name) in names.iter().enumerate() {
            assert!(name.len() <= LONGEST_NAME, "{}", name.len());
            assert!(!names[i + 1..].contains(name));
        }
    }
}
