//! Facts from the head of a request, for its log line and its usage record.

use std::net::IpAddr;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Method};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::request::id::{self, Ids};

/// Properties of a request that are known from its head.
#[derive(Debug)]
pub(crate) struct RequestIdentity {
    /// Address of the client, for which limits and fairness count the request.
    pub(crate) client: IpAddr,
    /// Id of the usage record. No other request has it.
    pub(crate) record_id: Uuid,
    /// Request id that the backend, the client and the log get: the client's id, or `record_id` if the
    /// client sent none.
    pub(crate) id: HeaderValue,
    pub(crate) method: Method,
    /// A copy: the path in the request's head would keep the buffer that the head was read into.
    pub(crate) path: Box<str>,
    pub(crate) endpoint: Endpoint,
    pub(crate) started: Instant,
}

impl RequestIdentity {
    pub(super) fn new(
        ids: &Ids,
        client: IpAddr,
        headers: &HeaderMap,
        method: Method,
        path: Box<str>,
        endpoint: Endpoint,
    ) -> Self {
        let record_id = ids.next();
        Self {
            client,
            id: id::request_id(headers, &record_id),
            record_id,
            method,
            path,
            endpoint,
            started: Instant::now(),
        }
    }

    /// Time of the usage record, in milliseconds since 1970.
    pub(crate) fn time_ms(&self) -> u64 {
        id::time_ms(&self.record_id)
    }

    /// Milliseconds from the start of the request.
    pub(crate) fn ms_until(&self, end: Instant) -> u64 {
        let passed = end.saturating_duration_since(self.started);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }
}
