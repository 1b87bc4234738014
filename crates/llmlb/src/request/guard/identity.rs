//! Facts from the head of a request, for its log line and its usage record.

use std::net::IpAddr;
use std::time::Instant;

use http::{HeaderMap, HeaderValue, Method};
use uuid::Uuid;

use crate::endpoint::Endpoint;
use crate::request::id::{self, Ids};

#[derive(Debug)]
pub(crate) struct RequestIdentity {
    /// Address of the client, for which limits and fairness count the request. Behind a trusted
    /// proxy it is the one that the proxy reports.
    pub(crate) client: IpAddr,
    /// Id of the usage record, which no other request has. The spool counts records with the same
    /// id once.
    pub(crate) record_id: Uuid,
    /// Request id that the backend, the client and the log get: the client's id, or `record_id` if
    /// the client sent none.
    pub(crate) id: HeaderValue,
    pub(crate) method: Method,
    /// Copy of the request's path. The path in the head would keep the whole buffer that the head
    /// was read into.
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

    /// Returns the time of the usage record, in milliseconds since 1970.
    pub(crate) fn time_ms(&self) -> u64 {
        id::time_ms(&self.record_id)
    }

    pub(crate) fn ms_until(&self, end: Instant) -> u64 {
        let passed = end.saturating_duration_since(self.started);
        u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
    }
}
