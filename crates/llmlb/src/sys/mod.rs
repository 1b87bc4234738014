//! Code that differs between operating systems, under the same names on each. All other modules are
//! free of platform code.

mod exposed;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
pub(crate) mod mapped_words;
mod owner;
#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub(crate) use linux::{
    c_allocator::share_c_arena, data_dir::data_dir, hangup::is_hangup_ignored, listen,
    listener::listener_owner, memory::resident_memory, mounts::local_lock_option,
    port_owner::port_owner,
};
#[cfg(target_os = "macos")]
pub(crate) use macos::{
    data_dir::data_dir, hangup::is_hangup_ignored, listen, listener::listener_owner,
    port_owner::port_owner,
};
#[cfg(unix)]
pub(crate) use unix::{
    bus_error, config_file,
    cpu::cpu_time,
    data_file,
    disk::{disk_free, disk_size, is_writable},
    host::host_name,
    limits, notify, secret_file, signals, users,
};
#[cfg(windows)]
pub(crate) use windows::{
    bus_error, config_file,
    data_dir::data_dir,
    data_file,
    disk::{disk_free, disk_size, is_writable},
    host::host_name,
    limits, listen,
    listener::listener_owner,
    notify,
    port_owner::port_owner,
    secret_file, signals, users,
};

/// Allocator of the program. A request allocates about 24 times, and with the C library's allocator
/// it costs 5 % more CPU (docs/decisions/0009-an-allocator-of-its-own.md).
#[cfg(target_os = "linux")]
pub type Allocator = mimalloc::MiMalloc;
/// Allocator of the program on this system: the system's own.
#[cfg(not(target_os = "linux"))]
pub type Allocator = std::alloc::System;

/// Instance of the allocator, for `#[global_allocator]`.
#[cfg(target_os = "linux")]
pub const ALLOCATOR: Allocator = mimalloc::MiMalloc;
/// Instance of the allocator, for `#[global_allocator]`.
#[cfg(not(target_os = "linux"))]
pub const ALLOCATOR: Allocator = std::alloc::System;

/// Returns memory that this thread has freed to the system. The allocator keeps it for the next allocations of
/// the same thread otherwise, which a thread that rests for a minute does not need.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "a function of a C library")]
pub(crate) fn release_freed_memory() {
    // SAFETY: `mi_collect` may be called at any time, from any thread.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
/// Does nothing, because the system's allocator itself returns freed memory to the system.
#[cfg(not(target_os = "linux"))]
pub(crate) fn release_freed_memory() {}

/// Does nothing, because only the C library of Linux reserves address space for each thread.
#[cfg(not(target_os = "linux"))]
pub(crate) fn share_c_arena() {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignalEvent {
    /// The server must drain and stop. The name of the signal is for the log.
    Stop(&'static str),
    /// The server must read its configuration again.
    #[cfg_attr(
        windows,
        expect(dead_code, reason = "Windows has no signal like SIGHUP")
    )]
    Reload,
}

impl signals::Signals {
    /// Waits for the next signal that stops the server, and returns its name for the log.
    pub(crate) async fn next_stop(&mut self) -> &'static str {
        loop {
            if let SignalEvent::Stop(name) = self.next().await {
                return name;
            }
        }
    }
}

pub(crate) use exposed::Exposed;
pub(crate) use owner::{ListenerOwner, PortOwner};

/// Returns `None`: the resident memory is read only on Linux.
#[cfg(not(target_os = "linux"))]
pub(crate) fn resident_memory() -> Option<u64> {
    None
}

/// Returns `None`: the CPU time is not read on Windows.
#[cfg(windows)]
pub(crate) fn cpu_time() -> Option<std::time::Duration> {
    None
}

/// Returns `None`: this system does not show the mount options of network file systems.
#[cfg(not(target_os = "linux"))]
pub(crate) fn local_lock_option(_dir: &std::path::Path) -> Option<(String, String)> {
    None
}
