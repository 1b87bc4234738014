//! Ids of backends.

/// Id of a backend, which no other backend of this process ever gets: lists of tried backends,
/// affinity and idle connections may refer to a backend that the configuration does not name any
/// more. If the configuration names it again with the same URL, it gets the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BackendId(pub(crate) u32);
