//! Handles accesses to mapped files whose bytes are gone. If another process truncates a mapped
//! file, or the disk has no block for a page of it, the next access raises SIGBUS, which ends a
//! process by default. In guarded ranges the page is replaced by anonymous memory instead: stores
//! to it are lost with the process, and nothing else is affected.
#![expect(
    unsafe_code,
    reason = "signal handlers and mappings at fixed addresses exist only in C"
)]

use std::io;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

/// Maximum number of guarded ranges of addresses. The table has a fixed size, because a signal
/// handler must not allocate.
const MAX_RANGES: usize = 4096;

/// Start and end of each guarded range of addresses. An unused entry is an empty range.
static RANGES: [[AtomicUsize; 2]; MAX_RANGES] =
    [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; MAX_RANGES];
/// Page size of the system, stored before the SIGBUS handler is installed, which must not call the
/// library for it.
static PAGE_SIZE: AtomicUsize = AtomicUsize::new(4096);
/// SIGBUS handler that was installed earlier, for addresses that are not guarded. `None` if llmlb's
/// handler could not be installed.
static PREVIOUS: OnceLock<Option<libc::sigaction>> = OnceLock::new();

/// Range of addresses in which SIGBUS does not end the process, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Guarded(usize);

impl Guarded {
    pub(crate) fn new(addresses: Range<usize>) -> io::Result<Self> {
        if PREVIOUS.get_or_init(install).is_none() {
            return Err(io::Error::other("cannot handle SIGBUS"));
        }
        for (index, [start, end]) in RANGES.iter().enumerate() {
            let claimed =
                start.compare_exchange(0, addresses.start, Ordering::AcqRel, Ordering::Relaxed);
            if claimed.is_ok() {
                end.store(addresses.end, Ordering::Release);
                return Ok(Self(index));
            }
        }
        Err(io::Error::other("the process has too many mapped files"))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let [start, end] = &RANGES[self.0];
        // Clear the end first: the SIGBUS handler may run between the two stores, and a range whose
        // end is 0 contains no address.
        end.store(0, Ordering::Release);
        start.store(0, Ordering::Release);
    }
}

fn install() -> Option<libc::sigaction> {
    // SAFETY: `sysconf` may be called at any time.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_SIZE.store(usize::try_from(size).ok()?, Ordering::Release);
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = replace_page;
    // SAFETY: an all-zero `sigaction` is valid, and the handler calls only functions that are safe in
    // a signal handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        let mut previous: libc::sigaction = std::mem::zeroed();
        let installed = libc::sigaction(libc::SIGBUS, &raw const action, &raw mut previous);
        (installed == 0).then_some(previous)
    }
}

/// Handler of SIGBUS, which replaces the missing page by memory. After it returns, the kernel
/// repeats the access.
extern "C" fn replace_page(_signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a valid `info` to a handler with SA_SIGINFO.
    let address = unsafe { (*info).si_addr() }.addr();
    let is_guarded = RANGES.iter().any(|[start, end]| {
        let (start, end) = (start.load(Ordering::Acquire), end.load(Ordering::Acquire));
        start != 0 && (start..end).contains(&address)
    });
    let size = PAGE_SIZE.load(Ordering::Acquire);
    let page = (address & !(size - 1)) as *mut c_void;
    // SAFETY: the page belongs to a guarded mapping, which consists of whole pages and is used only
    // as atomic words, for which every content is valid.
    let is_replaced = is_guarded
        && unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_FIXED | libc::MAP_ANON | libc::MAP_PRIVATE;
            libc::mmap(page, size, access, flags, -1, 0) != libc::MAP_FAILED
        };
    if is_replaced {
        return;
    }
    // The address is not guarded. Restore the earlier handler, which receives the repeated access
    // and by default ends the process.
    if let Some(Some(previous)) = PREVIOUS.get() {
        // SAFETY: `previous` was returned by `sigaction`.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const *previous, std::ptr::null_mut()) };
    }
}
