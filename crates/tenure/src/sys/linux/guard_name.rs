//! The names of the second guard.
//!
//! Two, so that one is left whatever is replaced from outside. By the directory's inode: the same
//! for everyone who shares the directory, by whatever path, and for nobody else. By its path, as
//! this root directory and this mount namespace see it: the same when the directory itself was
//! removed and made anew, and never that of another container's directory with the same path.

use std::ffi::{CString, OsStr};
use std::io;
use std::path::Path;

use rustix::net::SocketAddrUnix;
use rustix::process::geteuid;

use super::super::unix::file::Directory;

/// What fits into an abstract address beside its leading zero byte.
const LONGEST_NAME: usize = 107;

/// The name that lasts as long as the directory.
pub(super) fn by_inode(directory: &Directory, name: &OsStr) -> io::Result<SocketAddrUnix> {
    let id = directory.id();
    let prefix = format!("tenure/{}/{:x}:{:x}/", geteuid().as_raw(), id.dev, id.ino);
    let full = readable_or_hashed(&prefix, name.as_encoded_bytes());
    Ok(SocketAddrUnix::new_abstract_name(&full)?)
}

/// The name that outlasts the directory. `None`: there is no `/proc` to ask.
pub(super) fn by_path(directory: &Directory, name: &OsStr) -> io::Result<Option<SocketAddrUnix>> {
    match link(&format!("/proc/self/fd/{}", directory.as_raw_fd())) {
        Some(path) => by_resolved_path(path.as_bytes(), name),
        None => Ok(None),
    }
}

/// The same for a directory that is no longer there.
pub(super) fn by_path_of_missing(dir: &Path, name: &OsStr) -> io::Result<Option<SocketAddrUnix>> {
    let (Some(parent), Some(last)) = (dir.parent(), dir.file_name()) else {
        return Ok(None);
    };
    let path = parent.canonicalize()?.join(last);
    by_resolved_path(path.as_os_str().as_encoded_bytes(), name)
}

fn by_resolved_path(path: &[u8], name: &OsStr) -> io::Result<Option<SocketAddrUnix>> {
    let Some(mounts) = link("/proc/self/ns/mnt") else {
        return Ok(None);
    };
    let root = rustix::fs::stat("/")?;
    let root = format!("{:x}:{:x}", root.st_dev, root.st_ino);
    // None of the parts can hold a zero byte.
    let parts = [
        path,
        mounts.as_bytes(),
        root.as_bytes(),
        name.as_encoded_bytes(),
    ];
    let hash = hash(&parts.join(&0));
    let full = format!("tenure/{}/path/{hash:032x}", geteuid().as_raw());
    Ok(Some(SocketAddrUnix::new_abstract_name(full.as_bytes())?))
}

fn link(path: &str) -> Option<CString> {
    rustix::fs::readlink(path, Vec::new()).ok()
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

/// 128-bit FNV-1a. Names of one user's own files need no cryptography.
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
        let prefix = "tenure/4294967295/ffffffffffffffff:ffffffffffffffff/";
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
