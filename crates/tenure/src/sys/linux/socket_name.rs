//! Socket names of the deletion guard.
//!
//! There are two names, so that one remains valid whatever is replaced from outside. The name by
//! the directory's inode is the same for every process that opens the directory, by any path. The
//! name by the parent's inode and the directory's name in it stays the same if the directory is
//! removed and created again. A mount point has no second name, because containers may mount
//! different directories there.
//!
//! A name contains no user, because root and a user, or one user inside and outside of a user
//! namespace, must find each other. It contains no path, because containers that share a network
//! namespace but not a file system must not collide.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use rustix::fs::Stat;
use rustix::net::SocketAddrUnix;

use super::super::unix::file::Directory;

/// Maximum length of an abstract address after its leading zero byte. A longer name is replaced by
/// its hash.
const LONGEST_NAME: usize = 107;

/// Returns the socket name by the directory's inode, which stays valid as long as the directory
/// exists, whatever path leads to it.
pub(super) fn by_inode(directory: &Directory, name: &OsStr) -> io::Result<SocketAddrUnix> {
    let id = directory.id();
    address(id.dev, id.ino, name.as_encoded_bytes())
}

/// Returns the socket name by the parent directory, which stays valid after the directory is
/// removed. `None`: the directory is a mount point, or its path does not end in a name.
pub(super) fn by_parent(directory: &Directory, name: &OsStr) -> io::Result<Option<SocketAddrUnix>> {
    if directory.is_mount_point() {
        return Ok(None);
    }
    parent_address(&directory.parent()?, directory.path(), name)
}

/// Returns the name that [`by_parent`] returns, for a directory that no longer exists or cannot be
/// opened.
pub(super) fn by_parent_of_missing(dir: &Path, name: &OsStr) -> io::Result<Option<SocketAddrUnix>> {
    match dir.parent() {
        Some(parent) => parent_address(&rustix::fs::stat(parent)?, dir, name),
        None => Ok(None),
    }
}

fn parent_address(parent: &Stat, dir: &Path, name: &OsStr) -> io::Result<Option<SocketAddrUnix>> {
    let Some(dir) = dir.file_name() else {
        return Ok(None);
    };
    // A slash joins the names of the directory and the file. A socket name by inode contains a file
    // name without a slash in the same position, so the two kinds of names never collide. A
    // collision would make two different keys exclude each other.
    let dir_and_name = [dir.as_encoded_bytes(), name.as_encoded_bytes()].join(&b'/');
    address(parent.st_dev, parent.st_ino, &dir_and_name).map(Some)
}

fn address(dev: u64, ino: u64, name: &[u8]) -> io::Result<SocketAddrUnix> {
    let prefix = format!("tenure/{dev:x}:{ino:x}/");
    Ok(SocketAddrUnix::new_abstract_name(&readable_or_hashed(
        &prefix, name,
    ))?)
}

/// Returns a file name as it appears in a socket name. A name that is too long, or would break the
/// lines of `/proc/net/unix`, is replaced by its hash.
fn readable_or_hashed(prefix: &str, name: &[u8]) -> Vec<u8> {
    let mut full = prefix.as_bytes().to_vec();
    if full.len() + name.len() <= LONGEST_NAME && name.iter().all(u8::is_ascii_graphic) {
        full.extend_from_slice(name);
    } else {
        full.extend_from_slice(format!("#{:032x}", hash(name)).as_bytes());
    }
    full
}

/// 128-bit FNV-1a. A cryptographic hash is unnecessary: a user who can choose a colliding file name
/// may write to the directory, and could own the other key anyway.
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
    fn different_file_names_have_different_addresses() {
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
