//! Numbers of backends.

/// Index of a backend in the list of all backends. Backends are only appended, so an index stays valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BackendId(pub(crate) u16);
