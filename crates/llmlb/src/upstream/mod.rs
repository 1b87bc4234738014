//! Speaking HTTP/1.1 to a backend, on a connection that is ours alone until the answer is over.
//!
//! The request's own task reads and writes the socket: no other task stands between the backend's
//! bytes and the client's, a request that is dropped closes its connection at once, and it is known
//! exactly what was sent and whether anything came back. That decides what may be tried again.

mod address_limit;
mod connect;
mod error;
mod exchange;
mod framing;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod head;
mod idle_pool;
mod limit;
mod probe;
mod resolve;
mod stream;
mod upload;

pub(crate) use address_limit::{AddressLimit, AddressShare};
pub(crate) use connect::Connector;
pub(crate) use error::UpstreamError;
pub(crate) use exchange::Exchange;
pub(crate) use head::Head;
pub(crate) use idle_pool::IdlePool;
pub(crate) use limit::BackendConnections;
pub(crate) use probe::get;
pub(crate) use stream::Stream;
pub(crate) use upload::Upload;
