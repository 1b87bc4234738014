//! Users and processes of sockets, as the kernel reports them.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

use super::proc;

/// Returns pid and uid of the process at the other end of a connected socket. The pid is 0 if the
/// process is not visible in this PID namespace.
#[expect(
    unsafe_code,
    reason = "rustix rejects credentials whose process id is 0"
)]
pub(super) fn peer_credentials(socket: impl AsFd) -> io::Result<(u32, u32)> {
    let mut found = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut size = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or(0);
    // SAFETY: the descriptor is open, and `size` is the size of the structure.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut size,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((u32::try_from(found.pid).unwrap_or(0), found.uid))
}

/// Returns the inode of the socket that listens on an abstract name, from `/proc/net/unix`. Format
/// of its lines: `Num RefCount Protocol Flags Type St Inode Path`.
pub(super) fn listening_inode(name: &[u8]) -> Option<u64> {
    const LISTENS: u64 = 0x10000;
    let table = proc::read_table("/proc/self/net/unix")?;
    table.split(|byte| *byte == b'\n').find_map(|line| {
        let path = line.strip_suffix(name)?.strip_suffix(b" @")?;
        let mut words = std::str::from_utf8(path).ok()?.split_ascii_whitespace();
        let flags = u64::from_str_radix(words.nth(3)?, 16).ok()?;
        let inode = words.nth(2)?.parse().ok()?;
        (flags & LISTENS != 0).then_some(inode)
    })
}

/// Returns the user who created a socket, without connecting to it. `None`: the kernel does not
/// report it (before Linux 5.3, or without `unix_diag`).
pub(super) fn creator_uid(inode: u64) -> Option<u32> {
    const BY_FAMILY: u16 = 20; // SOCK_DIAG_BY_FAMILY
    const REQUEST: u16 = 1; // NLM_F_REQUEST
    const SHOW_UID: u32 = 0x40; // UDIAG_SHOW_UID
    let mut request = Vec::with_capacity(40);
    // The request begins with a `struct nlmsghdr`: length, type, flags, sequence number, port.
    request.extend(40_u32.to_ne_bytes());
    request.extend(BY_FAMILY.to_ne_bytes());
    request.extend(REQUEST.to_ne_bytes());
    request.extend([0; 8]);
    // The `struct unix_diag_req` comes next: family, protocol, padding, states, inode, requested
    // attributes, no cookie.
    request.extend([u8::try_from(libc::AF_UNIX).ok()?, 0, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(u32::try_from(inode).ok()?.to_ne_bytes());
    request.extend(SHOW_UID.to_ne_bytes());
    request.extend([0xff; 8]);
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(netlink::SOCK_DIAG),
    )
    .ok()?;
    rustix::net::send(&socket, &request, SendFlags::empty()).ok()?;
    let mut answer = [0; 4096];
    // The kernel responds within `send`, so `recv` need not wait.
    let (_, size) = rustix::net::recv(&socket, &mut answer, RecvFlags::DONTWAIT).ok()?;
    uid_in(answer.get(..size)?)
}

/// Returns the user in the kernel's response: the attribute `UNIX_DIAG_UID` after `struct nlmsghdr`
/// and `struct unix_diag_msg`.
fn uid_in(answer: &[u8]) -> Option<u32> {
    const HEADERS: usize = 16 + 16;
    const UID: u16 = 7;
    let u16_at = |at: usize| Some(u16::from_ne_bytes(answer.get(at..at + 2)?.try_into().ok()?));
    let mut at = HEADERS;
    loop {
        let (length, kind) = (usize::from(u16_at(at)?), u16_at(at + 2)?);
        if kind == UID {
            let value = answer.get(at + 4..at + 8)?;
            return Some(u32::from_ne_bytes(value.try_into().ok()?));
        }
        // Attributes are aligned to 4 bytes. An invalid length below the 4 bytes of an attribute's
        // header is raised to 4, so that the loop always advances.
        at += length.max(4).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    #[test]
    fn creator_of_a_listening_socket_is_found_without_connecting() {
        let name = format!("tenure-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _listening = UnixListener::bind_addr(&address).unwrap();
        let inode = listening_inode(name.as_bytes()).expect("the socket is listed");
        let own_uid = rustix::process::geteuid().as_raw();
        assert_eq!(creator_uid(inode), Some(own_uid));
        assert_eq!(creator_uid(1), None);
    }

    #[test]
    fn truncated_response_yields_no_user() {
        let mut answer = vec![0; 32];
        answer.extend(8_u16.to_ne_bytes());
        answer.extend(7_u16.to_ne_bytes());
        answer.extend(1000_u32.to_ne_bytes());
        assert_eq!(uid_in(&answer), Some(1000));
        for length in 0..answer.len() {
            assert_eq!(uid_in(&answer[..length]), None, "{length} bytes");
        }
        let no_progress = [0; 64];
        assert_eq!(uid_in(&no_progress), None);
    }
}
