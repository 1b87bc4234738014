//! Backend's response whose head was read, and its conversion for the client.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName};
use http::{Response, StatusCode, Version};
use http_body_util::{Either, Full};

use super::{ClientResponse, ForwardContext, Outbound, Relay, tunnel};
use crate::balance::{Backend, Fault, Slot};
use crate::headers::{REQUEST_ID, WHY};
use crate::issued_ids::IssuedIdFinder;
use crate::meter::sse::UsageEvents;
use crate::meter::usage_tap::UsageTap;
use crate::request::RequestGuard;
use crate::upstream::{Exchange, Head};

/// Response header that names the backend which responded, so that clients can report it with a
/// problem.
const SERVED_BY: HeaderName = HeaderName::from_static("x-llmlb-backend");
/// Response header with the request id that the backend assigned. The backend's operators need the
/// id to find the request in their own logs.
const UPSTREAM_ID: HeaderName = HeaderName::from_static("x-upstream-request-id");

#[derive(Debug)]
pub(super) struct UpstreamResponse {
    pub(super) head: Head,
    pub(super) exchange: Box<Exchange>,
    pub(super) backend: Arc<Backend>,
    /// Name by which the backend knows the model, if it differs from the client's name.
    pub(super) model: Option<String>,
    /// `Hide` if llmlb added `include_usage` to the request: the client did not request usage events.
    pub(super) usage_events: UsageEvents,
    /// Slot at the backend. `None` after it was released, because the response is held while
    /// another backend is tried.
    pub(super) slot: Option<Slot>,
}

impl UpstreamResponse {
    /// Converts the response for the client. If the body has arrived completely, the guard of the
    /// request is returned too: the caller persists the usage record before the response is sent.
    pub(super) fn into_client_response(
        mut self,
        context: &Arc<ForwardContext>,
        outbound: Outbound<'_>,
        mut guard: Box<RequestGuard>,
    ) -> (ClientResponse, Option<Box<RequestGuard>>) {
        let status = self.head.status;
        guard.note_sent(&self.backend, self.model.as_deref());
        guard.note_response(&self.backend, status);
        if context.accounting.meter.is_on() {
            self.start_metering(&mut guard);
        }
        let mut response = Response::new(());
        // Declare the response as HTTP/1.1 even if the backend uses HTTP/1.0, in which a response
        // that is cut looks like a complete one.
        *response.version_mut() = Version::HTTP_11;
        *response.status_mut() = status;
        *response.headers_mut() = self.client_headers(&guard);
        if outbound.settings.why_header || guard.asks_why {
            response.headers_mut().insert(WHY, guard.why());
        }
        if status == StatusCode::SWITCHING_PROTOCOLS
            && let Some(upgrade) = outbound.upgrade
        {
            let upgraded = outbound.head.headers.get(header::UPGRADE);
            let timeouts = outbound.settings.timeouts;
            tunnel::open(context, upgrade, self.exchange, self.slot, timeouts, guard);
            tunnel::announce(response.headers_mut(), upgraded);
            return (response.map(|()| Either::Left(Full::default())), None);
        }
        let issued = status
            .is_success()
            .then(|| IssuedIdFinder::new(outbound.endpoint.issues, outbound.parsed.is_stored))
            .flatten();
        if let Some(data) = self.exchange.take_complete() {
            let body = self.finish_whole(context, data, issued, &mut guard);
            let response = response.map(|()| Either::Left(Full::new(body)));
            return (response, Some(guard));
        }
        let timeouts = outbound.settings.timeouts;
        let if_cut = (status.is_success() && outbound.endpoint.is_inference)
            .then(|| outbound.evidence(Fault::Cut));
        let relay = Relay::new(Arc::clone(context), self, issued, if_cut, timeouts, guard);
        (response.map(|()| Either::Right(relay)), None)
    }

    fn start_metering(&self, guard: &mut RequestGuard) {
        let (head, api) = (&self.head, guard.identity.endpoint.api);
        let tap = UsageTap::new(api, head.status, &head.headers, self.usage_events);
        if self.usage_events == UsageEvents::Hide && tap.is_compressed() {
            // llmlb cannot hide a usage event in a compressed stream, so it no longer requests usage
            // from this backend for this model.
            let model = self.model.as_deref().or(guard.route.model.as_deref());
            let why = "compresses streams despite the request's Accept-Encoding, so llmlb cannot \
                       hide usage events";
            self.backend
                .opt_out_of_usage(model.unwrap_or_default(), why);
        }
        guard.metering.tap = Some(tap);
    }

    /// Returns the header fields for the client, moved out of the backend's response.
    fn client_headers(&mut self, guard: &RequestGuard) -> HeaderMap {
        let mut headers = std::mem::take(&mut self.head.headers);
        if guard.metering.may_shorten() {
            headers.remove(header::CONTENT_LENGTH);
        }
        let id = headers.remove(REQUEST_ID);
        if let Some(id) = id.filter(|id| *id != guard.identity.id) {
            headers.insert(UPSTREAM_ID, id);
        }
        headers.insert(SERVED_BY, self.backend.label.clone());
        headers
    }

    /// Ends the metering of a response whose body arrived with its head. Returns the body for the
    /// client.
    fn finish_whole(
        self,
        context: &ForwardContext,
        data: Bytes,
        issued: Option<IssuedIdFinder>,
        guard: &mut RequestGuard,
    ) -> Bytes {
        if let Some(mut finder) = issued {
            finder.read(&data, |id| context.pool.note_issued(id, &self.backend));
        }
        let body = guard.pass_whole(data);
        if let Some(stream) = self
            .exchange
            .into_idle(self.backend.settings.reuse_after_errors)
        {
            context.keep_idle(&self.backend, stream);
        }
        if let Some(slot) = self.slot {
            slot.note_ended();
        }
        body
    }
}
