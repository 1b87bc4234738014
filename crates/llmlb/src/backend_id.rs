//! Ids of backends.

/// Id of a backend, which no other backend of this process ever gets: lists of tried backends, affinity and
/// idle connections may refer to a backend that the configuration does not name any more. A backend that is
/// named again has the same id if its URL is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BackendId(pub(crate) u32);
