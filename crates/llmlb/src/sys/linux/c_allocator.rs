//! The allocator of the C library, which only the C library itself uses.

/// Makes all threads share one arena of the C library's allocator. By default each thread that the C library
/// allocates for reserves 64 MiB of address space, so that a server under a limit on address space could not
/// start its threads.
#[cfg(target_env = "gnu")]
#[expect(unsafe_code, reason = "a function of the C library")]
pub(crate) fn share_c_arena() {
    // SAFETY: `mallopt` may be called at any time, and the option is a plain number.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}
/// Does nothing, because other C libraries have no arenas of threads.
#[cfg(not(target_env = "gnu"))]
pub(crate) fn share_c_arena() {}
