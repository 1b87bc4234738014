//! Ids of backends.

/// Index of a backend in the list of all backends. Backends are appended and never removed, so an id stays
/// valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BackendId(pub(crate) u16);
