//! HTTP/1.1 client for backends. A connection serves one request at a time.
//!
//! The task of a request reads and writes the backend's socket itself. So dropping the request closes the
//! connection at once, and it is known exactly which bytes were sent and received. That determines if the
//! request can be retried.

mod address_limit;
#[cfg(all(test, unix))]
mod client_cost;
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
pub(crate) use probe::{get, head};
pub(crate) use stream::Stream;
pub(crate) use upload::Upload;
