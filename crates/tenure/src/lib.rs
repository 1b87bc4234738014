//! One owner at a time.
//!
//! A process takes sole ownership of a port, a name, a file or a directory. Everyone else is told
//! who holds it, since when, and how to stop it. A crash leaves nothing to clean by hand.
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
//! // Anyone else, in this process or another, is refused and told why:
//! let refused = store.claim(&key).try_acquire().unwrap_err();
//! assert!(refused.to_string().starts_with("nightly-backup is held by pid "));
//!
//! tenure.release()?; // or drop it
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What holding means
//!
//! The kernel's lock on the file is the truth (`flock`, on Windows `LockFileEx`). It ends with the
//! process, however that ends, so the next attempt succeeds at once. The JSON record in the file
//! only explains: a pid in it is never taken as proof. On Linux a deletion guard, an abstract socket,
//! keeps others out, whichever user asks, even if the lock file is deleted while it is held.
//!
//! Across users a key is free only where the kernel shows it. Where it does not (in containers, with a
//! restricted `/proc`, on macOS), another user's lock file is a refusal: [`Error::is_unknown`].
//!
//! # What it does not mean
//!
//! - The lock is advisory: it binds those who ask.
//! - It is not a defence against processes of the same user that want to do harm.
//! - Between containers that share the directory but not the network namespace, deleting a held
//!   lock file lets a second owner in; so it does on macOS. [`Tenure::lost`] tells the owner.
//! - On network file systems it holds only as long as the server keeps the client's lease.
//!
//! `docs/lock-protocol.md` in the repository gives each promise and the reason why it holds.

mod checksum;
mod claim;
mod error;
pub mod file;
mod guard;
mod holder;
mod key;
pub mod process;
mod record;
mod stop;
mod stop_request;
mod store;
mod sys;
pub mod text;
#[cfg(feature = "tokio")]
mod tokio;
mod watch;

pub use claim::Claim;
pub use error::Error;
pub use guard::{Running, Tenure};
pub use holder::{Holder, Proof, State, Status};
pub use key::Key;
pub use record::Record;
pub use stop::{Stop, Stopped};
pub use stop_request::StopRequest;
pub use store::{ReadLock, Store};
pub use watch::Watch;

/// The README's example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
