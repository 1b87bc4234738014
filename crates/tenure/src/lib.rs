//! Ownership locks: at most one owner for each key.
//!
//! A process acquires sole ownership of a port, a name, a file or a directory. Every other process
//! is refused with an error that names the holder, its start time and the command that stops it. A
//! crashed owner leaves nothing to clean up by hand.
//!
//! ```
//! use tenure::{Key, Store};
//!
//! # let dir = tempfile::tempdir()?;
//! let store = Store::in_dir(dir.path()); // or Store::default()
//! let key = Key::name("nightly-backup")?;
//!
//! let tenure = store.claim(&key).verb("backup").try_acquire()?;
//!
//! // Every other claim, in this process or another, is refused:
//! let refused = store.claim(&key).try_acquire().unwrap_err();
//! assert!(refused.to_string().starts_with("nightly-backup is held by pid "));
//!
//! tenure.release()?; // or drop it
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! Ownership is the kernel's lock on the file (`flock`, on Windows `LockFileEx`). The kernel
//! releases the lock when the process ends in any way, so the next attempt succeeds at once. The
//! JSON lock record in the file is informational: a pid in it is never proof. On Linux a deletion
//! guard, an abstract socket, excludes other owners of every user even if the lock file is deleted
//! while it is held.
//!
//! A key counts as free of other users' locks only where the kernel shows them. Elsewhere (in
//! containers, with a restricted `/proc`, on macOS) a lock file of another user is refused:
//! [`Error::is_unknown`].
//!
//! # Limits
//!
//! - The lock is advisory: it excludes only programs that use it.
//! - It does not protect from hostile processes of the same user.
//! - Between containers that share the directory but not the network namespace, and on macOS,
//!   deleting a held lock file admits a second owner. [`Tenure::lost`] then returns true for the
//!   first owner.
//! - On network file systems the lock lasts only while the server keeps the client's lease.
//!
//! `docs/lock-protocol.md` in the repository lists each guarantee and the reason why it holds.

mod checksum;
mod claim;
mod error;
pub mod file;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod holder;
mod key;
#[cfg(feature = "lease")]
mod lease;
#[cfg(not(feature = "lease"))]
#[path = "lease/absent.rs"]
mod lease;
pub mod process;
mod record;
mod stop;
mod stop_request;
mod store;
mod store_url;
mod sys;
mod tenure;
pub mod text;
#[cfg(feature = "tokio")]
mod tokio;
mod watch;

pub use claim::Claim;
pub use error::Error;
pub use holder::{Holder, Proof, State, Status};
pub use key::Key;
pub use lease::LeaseState;
pub use record::Record;
pub use stop::{Stop, Stopped};
pub use stop_request::StopRequest;
pub use store::{ReadLock, Store};
pub use tenure::{Running, Tenure};
pub use watch::Watch;

/// Time on a clock that also counts while the machine is suspended, and that setting the wall clock
/// does not change. Deadlines of leases are measured on it ([`LeaseState::deadline`]).
///
/// ```
/// let before = tenure::boot_time();
/// assert!(tenure::boot_time() >= before);
/// ```
pub fn boot_time() -> std::time::Duration {
    sys::clock::boot_time()
}

/// Compiles and runs the example in the README, so that it stays correct.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
