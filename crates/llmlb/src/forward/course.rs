//! The course of a request over its attempts: when another backend is tried, and which response
//! reaches the client if none is better.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use tokio::time::timeout;

use super::response::UpstreamResponse;
use super::{ForwardContext, ForwardError, Outbound, judge};
use crate::balance::{Backend, Evidence, Fault, Pool, Slot};
use crate::upstream::UpstreamError;

/// Timeout of the connection by which llmlb checks if a backend refuses connections, and so may
/// have crashed.
const REFUSES_WITHIN: Duration = Duration::from_secs(1);

/// Outcome so far of the attempts to get a response to one request.
#[derive(Debug)]
pub(super) struct Course {
    /// Response that the client gets unless another backend has a better one.
    held: Option<Box<UpstreamResponse>>,
    pub(super) error: ForwardError,
    /// First backend that responded 500. The 500 counts against this backend unless a second
    /// backend responds 500 to the same request.
    suspect: Option<Arc<Backend>>,
    /// Number of backends that have received the request or a part of it.
    deliveries: usize,
    /// Maximum number of backends that may receive the request. It is lowered after a response 500,
    /// which permits only one more attempt.
    max_deliveries: usize,
    /// First backend that closed the connection after it received the request, and the value of
    /// `deliveries` at that time. The request may have crashed this backend. While the backend is
    /// down, at most one further backend may receive the request, so that one request cannot crash
    /// all backends.
    closed: Option<(Arc<Backend>, usize)>,
}

/// Step that follows a response of a backend to one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Respond,
    /// Another backend is tried. The client gets this response if no other backend has a better
    /// one.
    Hold,
    /// Another backend is tried, and this response is dropped because an earlier one is held.
    Retry,
    /// The response is dropped, and no other backend is tried: the response is no better than a
    /// held one, or rejects llmlb's own key. The client gets the held response, or an error from
    /// llmlb.
    Stop,
}

impl Course {
    pub(super) fn new() -> Self {
        Self {
            held: None,
            error: ForwardError::Unreachable(None),
            suspect: None,
            deliveries: 0,
            max_deliveries: usize::MAX,
            closed: None,
        }
    }

    /// True if the request may be sent to one more backend. May connect to a backend that closed
    /// its connection, to check that the request did not crash it.
    pub(super) async fn check_retry(&self, context: &ForwardContext) -> bool {
        if self.deliveries >= self.max_deliveries {
            return false;
        }
        match &self.closed {
            // The request may have crashed the backend that closed its connection, and was sent to
            // a second backend since. If the first backend is down, stop here, so that the request
            // does not crash a third one.
            Some((backend, by_then)) if self.deliveries > *by_then => {
                !refuses_connections(context, backend).await
            }
            _ => true,
        }
    }

    /// Counts a response with `status` from the backend of this slot. Returns the next step:
    /// whether the client gets the response, or another backend is tried.
    pub(super) fn note_response(
        &mut self,
        slot: &Slot,
        status: StatusCode,
        pool: &Pool,
        outbound: &Outbound<'_>,
    ) -> Next {
        self.deliveries += 1;
        if status.is_success() {
            return Next::Respond;
        }
        let backend = slot.backend();
        let is_500 = status == StatusCode::INTERNAL_SERVER_ERROR;
        let may_repeat = outbound.endpoint.is_inference && outbound.repeatable && slot.has_model();
        if is_500 && may_repeat {
            if let Some(first) = self.suspect.take() {
                // Two backends responded 500 to the same request, so the request is the cause.
                // Count it against neither backend.
                pool.note_inconclusive(&first);
                pool.note_inconclusive(backend);
                return Next::Stop;
            }
            self.suspect = Some(Arc::clone(backend));
            self.max_deliveries = self.deliveries + 1;
            return Next::Hold;
        }
        if judge::is_suspect(status) {
            if outbound.endpoint.is_inference {
                pool.suspect(backend, outbound.evidence(Fault::Status(status)));
            } else {
                pool.note_inconclusive(backend);
            }
        }
        let is_rejected = judge::rejects_credential(status);
        if is_rejected && backend.settings.credential.is_some() {
            backend.note_rejected_key(status);
            self.error = ForwardError::BackendAuth(status);
            return Next::Stop;
        }
        if outbound.repeatable && judge::is_retryable_status(status) {
            return match self.suspect {
                Some(_) => Next::Retry,
                None => Next::Hold,
            };
        }
        match self.suspect {
            Some(_) if is_rejected || status.is_server_error() => Next::Stop,
            _ => Next::Respond,
        }
    }

    pub(super) fn hold(&mut self, response: UpstreamResponse) {
        self.held = Some(Box::new(response));
    }

    /// Counts an attempt that failed without a response. `responses` is the number of the backend's
    /// responses when the attempt started: if the backend has responded since, a failed connection
    /// does not mark it down. Returns true if another backend may be tried.
    pub(super) fn note_error(
        &mut self,
        context: &ForwardContext,
        backend: &Arc<Backend>,
        error: UpstreamError,
        responses: u64,
        outbound: &Outbound<'_>,
    ) -> Result<bool, ForwardError> {
        if outbound.is_delivered {
            self.deliveries += 1;
            self.note_closed(backend, &error);
        }
        // The text for the client names the backend without its host and port, which clients must
        // not learn. The log has them.
        let why = format!("backend {}: {error}", backend.label());
        let logged = format!("backend {}: {error}", backend.name);
        match error {
            UpstreamError::ClientBody(why) => Err(ForwardError::BadUpload(why)),
            UpstreamError::ClientBodyTimeout(_) => {
                Err(ForwardError::Stalled(outbound.settings.timeouts.body))
            }
            UpstreamError::LocalExhausted(why) => {
                self.error = ForwardError::Shortage(why);
                Ok(false)
            }
            // Local ports run out for each backend address separately, so a backend at another
            // address may still be reached.
            UpstreamError::NoLocalPort(_) => {
                self.error = ForwardError::Shortage(why);
                Ok(true)
            }
            UpstreamError::ConnectionRefused(ref reason)
            | UpstreamError::HostUnreachable(ref reason)
            | UpstreamError::ConnectFailed(ref reason) => {
                // Ignore the failure if the backend has responded to any request since this attempt
                // started. DNS errors are often transient and do not mark the backend down.
                let is_down = !matches!(error, UpstreamError::ConnectFailed(_));
                if is_down && backend.health.responses() == responses {
                    backend.set_refuses_connections(matches!(
                        error,
                        UpstreamError::ConnectionRefused(_)
                    ));
                    context.pool.mark_down(backend, reason);
                }
                backend.health.recheck.notify_one();
                // Keep the error of an earlier backend that was reached: it explains more to the
                // client than a failed connection.
                if matches!(self.error, ForwardError::Unreachable(_)) {
                    self.error = ForwardError::Unreachable(Some(why));
                }
                Ok(true)
            }
            UpstreamError::Timeout(_) => {
                backend.health.recheck.notify_one();
                tracing::warn!("{logged}");
                self.error = ForwardError::TimedOut(why);
                Ok(false)
            }
            UpstreamError::Hung(_)
            | UpstreamError::Closed(_)
            | UpstreamError::InvalidResponse(_) => {
                backend.health.recheck.notify_one();
                tracing::warn!("{logged}");
                self.error = ForwardError::NoResponse(why);
                Ok(outbound.repeatable)
            }
        }
    }

    fn note_closed(&mut self, backend: &Arc<Backend>, error: &UpstreamError) {
        // Count a refused connection and an unreachable host as a close: a backend that crashes
        // while it reads the request on an idle connection is sent the request again on a new
        // connection, and the attempt fails with the error of that connection.
        let is_closed = matches!(
            error,
            UpstreamError::Closed(_)
                | UpstreamError::ConnectionRefused(_)
                | UpstreamError::HostUnreachable(_)
        );
        if is_closed && self.closed.is_none() {
            self.closed = Some((Arc::clone(backend), self.deliveries));
        }
    }

    /// Counts the response 500 of the first backend against it, unless a second backend responded
    /// 500 to the same request.
    pub(super) fn report_suspect(&mut self, pool: &Pool, outbound: &Outbound<'_>) {
        if let Some(backend) = self.suspect.take() {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            pool.suspect(&backend, outbound.evidence(Fault::Status(status)));
        }
    }

    /// Returns the response for the client after the last attempt: the held response, or the error
    /// of the attempts if no response is held.
    pub(super) fn end(self) -> Result<UpstreamResponse, ForwardError> {
        self.held.map(|held| *held).ok_or(self.error)
    }
}

impl Outbound<'_> {
    pub(super) fn evidence(&self, fault: Fault) -> Evidence {
        Evidence {
            fault,
            client: self.hints.client,
            prompt: self.parsed.body_hash(),
        }
    }
}

async fn refuses_connections(context: &ForwardContext, backend: &Backend) -> bool {
    if !backend.responds() {
        return true;
    }
    let connecting = context.connector.connect(&backend.url);
    // Box this future, because it is large and the check is rare. Otherwise every request would
    // need its memory.
    matches!(
        Box::pin(timeout(REFUSES_WITHIN, connecting)).await,
        Ok(Err(
            UpstreamError::ConnectionRefused(_) | UpstreamError::HostUnreachable(_)
        ))
    )
}
