//! The guard of a request, from its head to the last byte of its response. When it is dropped, the
//! request is logged and metered, however it ended. Prompts and responses are never recorded.

mod identity;
mod metering;
mod route;

use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, Method, Response, StatusCode, request};
use http_body_util::Full;
use hyper::body::Body;

use super::body::{INCOMPLETE, OVERLOADED, STALLED};
use super::recent_errors::RecentError;
use super::{Accounting, InFlight, ParsedRequest, Refusal};
use crate::balance::Backend;
use crate::endpoint::{self, Endpoint};
use crate::keys::ApiKey;
use crate::limits::Admission;
use crate::meter::in_flight_list::{self, RequestState, Row};
use crate::meter::record::{Outcome, Record};
use crate::meter::usage::TokenUsage;
use crate::text;

pub(crate) use identity::RequestIdentity;
pub(crate) use metering::Metering;
pub(crate) use route::{AfterFailure, RequestRoute};

/// Code in the access log and the usage record of a request whose tunnel, such as a WebSocket,
/// llmlb ended because it was idle for too long.
const TUNNEL_IDLE: &str = "tunnel_idle";
/// Code in the access log and the usage record of a request that llmlb ended because its client did
/// not read the response in time.
const SEND_TIMEOUT: &str = "send_timeout";
/// Maximum number of characters of a message that is kept for the list of recent errors.
const MAX_MESSAGE: usize = 300;

/// A request, from its head to the last byte of its response. A guard that is dropped before the end
/// of the response means that the client disconnected.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    accounting: Arc<Accounting>,
    pub(crate) identity: RequestIdentity,
    pub(crate) route: RequestRoute,
    pub(crate) metering: Metering,
    /// Status of the response; 0 if there is none.
    pub(crate) status: u16,
    /// Error code of a refusal, or the limit for which llmlb ended the request. `None` for all other
    /// requests.
    pub(crate) code: Option<&'static str>,
    pub(crate) end: End,
    /// Outcome of the request; `None` until the usage record is final.
    pub(crate) outcome: Option<Outcome>,
    in_flight: Option<InFlight>,
    /// API key of the client; `None` if the server needs no keys, or before the client is
    /// authenticated.
    pub(crate) key: Option<Arc<ApiKey>>,
    /// Message of a refusal, for the list of recent errors.
    message: Option<Box<str>>,
    /// True if the request gets no usage record: its API key does not permit the request.
    is_unrecorded: bool,
    /// Share of the request in the limits of its key, held until the guard is dropped.
    pub(crate) admission: Option<Admission>,
    /// Row in the list of requests in flight, until the record is persisted.
    row: Option<Row>,
}

/// The end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The response has not ended: a client that disconnects now cancels the request.
    Unfinished,
    Complete,
    /// The backend ended its response early.
    Cut,
    /// llmlb responded with an error of its own: it rejected the request, or no backend served it.
    Refused,
}

impl RequestGuard {
    /// Returns the guard of a request from the address `client`, whose head has been read.
    pub(crate) fn start(
        accounting: &Arc<Accounting>,
        client: IpAddr,
        head: &request::Parts,
        endpoint: Endpoint,
    ) -> Self {
        let (method, path) = (head.method.clone(), head.uri.path().into());
        let ids = &accounting.ids;
        let identity = RequestIdentity::new(ids, client, &head.headers, method, path, endpoint);
        Self::new(accounting, identity)
    }

    /// Returns the guard of a request whose head cannot be parsed, apart from its method and path.
    pub(crate) fn unparsed(
        accounting: &Arc<Accounting>,
        client: IpAddr,
        method: Method,
        path: Box<str>,
    ) -> Self {
        let (ids, headers) = (&accounting.ids, HeaderMap::new());
        let endpoint = Endpoint::NOT_SERVED;
        let identity = RequestIdentity::new(ids, client, &headers, method, path, endpoint);
        Self::new(accounting, identity)
    }

    fn new(accounting: &Arc<Accounting>, identity: RequestIdentity) -> Self {
        Self {
            accounting: Arc::clone(accounting),
            identity,
            route: RequestRoute::default(),
            metering: Metering::default(),
            status: 0,
            code: None,
            end: End::Unfinished,
            outcome: None,
            in_flight: None,
            key: None,
            message: None,
            is_unrecorded: false,
            admission: None,
            row: None,
        }
    }

    /// Counts the request as in flight until the guard is dropped, and lists it, so that it has a record
    /// even if the server is killed.
    pub(crate) fn set_in_flight(&mut self, in_flight: InFlight) {
        self.in_flight = Some(in_flight);
        let (identity, key) = (&self.identity, self.key.as_deref());
        self.row = self.accounting.commits.list(&in_flight_list::Request {
            record_id: identity.record_id,
            request_id: identity.id.to_str().unwrap_or_default(),
            path: &endpoint::label(&identity.path),
            api: identity.endpoint.api,
            key: key.map(|key| &*key.name),
            team: key.and_then(|key| key.team.as_deref()),
        });
    }

    /// Notes the model, the stream option and the prompt's tokens of the parsed request.
    pub(crate) fn note_parsed(&mut self, parsed: &ParsedRequest) {
        self.route.model.clone_from(&parsed.model);
        self.metering.is_stream = parsed.stream;
        self.metering.prompt_tokens = parsed.prompt_tokens;
        if let (Some(row), Some(model)) = (&self.row, &parsed.model) {
            row.note_model(model);
        }
        self.update_row();
    }

    /// Notes that the request is sent to a backend. `model` is the backend's own name of the model, if
    /// that differs.
    pub(crate) fn note_sent(&mut self, backend: &Arc<Backend>, model: Option<&str>) {
        self.route.note_sent(backend, model);
        if let Some(row) = &self.row {
            row.note_backend(&backend.name, model);
            row.note_served_by(Some(backend.id));
        }
    }

    /// Notes that the backend received the request, or part of it.
    pub(crate) fn note_delivered(&mut self) {
        self.route.note_delivered();
        self.update_row();
    }

    /// Notes that the attempt at this backend failed.
    pub(crate) fn note_failed(&mut self, backend: &Arc<Backend>, why: &str, after: AfterFailure) {
        self.route.note_failed(backend, why, after);
        self.update_row();
    }

    /// Notes the progress of the request in the list of requests in flight.
    fn update_row(&self) {
        if let Some(row) = &self.row {
            let usage = self.measure();
            row.note_state(&self.state(usage));
        }
    }

    fn measure(&self) -> TokenUsage {
        let api = self.identity.endpoint.api;
        self.metering.measure(api, self.route.is_delivered())
    }

    fn state(&self, usage: TokenUsage) -> RequestState {
        let (identity, metering) = (&self.identity, &self.metering);
        RequestState {
            usage,
            is_stream: metering.is_stream(),
            status: self.status,
            bytes: metering.bytes,
            first_byte_ms: metering.first_byte.map(|at| identity.ms_until(at)),
        }
    }

    /// Acquires the permission of the client's address to use a connection to a backend, which is
    /// held until the guard is dropped. Returns `false` if the address is at its limit.
    #[must_use]
    pub(crate) fn acquire_address_share(&mut self) -> bool {
        let share = &mut self.route.address_share;
        if share.is_none() {
            *share = self.accounting.address_limit.acquire(self.identity.client);
        }
        share.is_some()
    }

    /// Notes that the client gets the response of this backend.
    pub(crate) fn note_response(&mut self, backend: &Arc<Backend>, status: StatusCode) {
        self.route.note_response(backend);
        self.status = status.as_u16();
    }

    /// Notes a response of llmlb's own.
    pub(crate) fn note_own_response(&mut self, response: &Response<Full<Bytes>>) {
        self.status = response.status().as_u16();
        self.end = End::Complete;
        self.note_own_body(response);
    }

    /// Notes the length of the body of llmlb's own response, for the access log and the usage
    /// record.
    pub(crate) fn note_own_body(&mut self, response: &Response<Full<Bytes>>) {
        if self.identity.method != Method::HEAD {
            self.metering.bytes = response.body().size_hint().lower();
        }
    }

    /// Notes that the tunnel ends because neither side sent anything for too long.
    pub(crate) fn note_tunnel_idle(&mut self) {
        self.code = Some(TUNNEL_IDLE);
    }

    /// Notes that the client did not read its response in time.
    pub(crate) fn note_send_timeout(&mut self) {
        if self.end == End::Unfinished {
            self.code = Some(SEND_TIMEOUT);
        }
    }

    /// True if dropping the guard now means that the client cancelled the request. After the end mark of
    /// a stream the record is final, and some clients then close the stream.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.end == End::Unfinished && self.outcome.is_none()
    }

    /// Notes that the request is not served.
    pub(crate) fn note_refusal(&mut self, refusal: &Refusal) {
        self.status = refusal.status.as_u16();
        self.code = Some(refusal.code);
        self.message = Some(text::shortened(&refusal.message, MAX_MESSAGE).into());
        self.end = End::Refused;
        if refusal.is_unrecorded {
            self.is_unrecorded = true;
            self.accounting.refused.count(refusal.code);
        }
    }
}

/// Methods for the response and the usage record. Every record is added to the worker's commit group,
/// which is flushed before the client gets the last bytes of the response. A response that arrived
/// completely waits for the next flush. The end of a stream flushes the group at once: otherwise the
/// last bytes would be delayed and need a write of their own.
impl RequestGuard {
    /// Counts `length` bytes of the response that the client gets without a search for usage, such
    /// as bytes of a tunnel. The access log and the usage record contain the sum.
    pub(crate) fn count(&mut self, length: usize) {
        self.metering.count(length);
        self.update_row();
    }

    /// Starts to meter a WebSocket, whose usage is the sum of its responses.
    pub(crate) fn start_session(&mut self) {
        if self.accounting.meter.is_on() {
            self.metering.start_session();
        }
    }

    /// Reads bytes of a WebSocket that come from the backend. [`Self::count`] counts them when the client has
    /// accepted them.
    pub(crate) fn read_session(&mut self, data: &[u8]) {
        if self.metering.read_session(data) {
            self.update_row();
        }
    }

    /// Reads a chunk of the response. Returns the bytes for the client. If the response has its end
    /// mark, the usage record is persisted before this method returns.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        let (passed, saw_end) = self.metering.pass(data);
        self.note_first_byte();
        // Clients treat the end mark as the end of the stream, so the usage record is persisted
        // before the end mark is forwarded.
        if saw_end && self.outcome.is_none() {
            self.persist(End::Complete);
        } else {
            self.update_row();
        }
        passed
    }

    /// Ends the response and persists the usage record. Returns the bytes that were held back,
    /// which the client gets if the response is complete.
    pub(crate) fn finish(&mut self, end: End) -> Bytes {
        let rest = self.metering.finish();
        if end == End::Complete {
            self.metering.bytes += rest.len() as u64;
        }
        self.end = end;
        self.persist(end);
        rest
    }

    /// Reads a response that is complete. Returns the bytes for the client, which must be sent after
    /// [`RequestGuard::persisted`].
    pub(crate) fn pass_whole(&mut self, data: Bytes) -> Bytes {
        let passed = self.metering.pass_whole(data);
        self.end = End::Complete;
        passed
    }

    /// Makes the usage record final, and waits until the record is persisted. The last bytes of a
    /// response must not be sent earlier.
    pub(crate) async fn persisted(&mut self) {
        if let Some(record) = self.finalize(self.end) {
            let commits = &self.accounting.commits;
            let ticket = commits.add(record, self.row.take());
            poll_fn(|cx| commits.poll_persisted(ticket, cx)).await;
        }
    }

    /// Makes the usage record final and persists the record before returning.
    fn persist(&mut self, end: End) {
        if let Some(record) = self.finalize(end) {
            let row = self.row.take();
            self.accounting.commits.persist(record, row);
        }
    }

    /// Makes the usage record final. Returns the record at the first call and `None` afterwards, so
    /// that a request is never metered twice. Requests that are not metered have no record.
    fn finalize(&mut self, end: End) -> Option<spool::Record> {
        if self.outcome.is_some() {
            return None;
        }
        let outcome = self.classify(end);
        self.outcome = Some(outcome);
        // Requests that were rejected at admission are not in flight and have no usage record.
        let is_served = self.in_flight.is_some() && !self.is_unrecorded;
        let is_metered = is_served && self.accounting.meter.is_on();
        let record = is_metered.then(|| self.record(end, outcome));
        if is_served {
            self.note_traffic(outcome);
        }
        self.note_error(outcome);
        self.settle(outcome);
        record
    }

    /// Adds the request to the sums of its backends.
    fn note_traffic(&mut self, outcome: Outcome) {
        self.note_first_byte();
        for attempt in &self.route.failed {
            attempt.backend.traffic.note_failed();
        }
        let Some(backend) = &self.route.backend else {
            return;
        };
        if let Some(usage) = &self.metering.usage {
            backend.traffic.note_tokens(usage.prompt, usage.completion);
        }
        if outcome == Outcome::Cut || self.status >= 500 {
            backend.traffic.note_failed();
        }
        // The tokens are counted now, so they no longer count as those of a request in flight.
        if let Some(row) = &self.row {
            row.note_served_by(None);
        }
    }

    /// Adds the time until the first byte of the response to the sums of its backend, once.
    fn note_first_byte(&mut self) {
        if let (Some(backend), Some(first)) = (&self.route.backend, self.metering.first_byte)
            && let Some(sent) = self.route.sent_at.take()
        {
            let after = first.saturating_duration_since(sent);
            backend.traffic.note_first_byte(after);
        }
    }

    /// Adds the request to the recent errors, unless it was served or its client cancelled it.
    fn note_error(&self, outcome: Outcome) {
        let is_error = self.status >= 400 || matches!(outcome, Outcome::Cut | Outcome::Failed);
        if !is_error || outcome == Outcome::Cancelled {
            return;
        }
        let last_failure = self.route.failed.last();
        let backend = self.route.backend.as_ref();
        let backend = backend.or(last_failure.map(|attempt| &attempt.backend));
        let message = self.message.as_deref();
        let message = message.or(last_failure.map(|attempt| attempt.why.as_str()));
        self.accounting.errors.note(&RecentError {
            at: SystemTime::now(),
            id: self.identity.id.to_str().unwrap_or_default(),
            status: self.status,
            code: self.code,
            model: self.route.model.as_deref(),
            backend: backend.map(|backend| backend.name.as_str()),
            key: self.key.as_ref().map(|key| &*key.name),
            outcome,
            message,
        });
    }

    /// Replaces the tokens that the request has reserved with those of its usage record.
    fn settle(&mut self, outcome: Outcome) {
        let Some(admission) = &mut self.admission else {
            return;
        };
        let usage = self.metering.usage;
        admission.settle(usage.map(|usage| usage.total));
        if let (Outcome::Complete, Some(usage), Some(model)) = (outcome, usage, &self.route.model)
            && usage.completion > 0
            && admission.has_token_limit()
        {
            admission.learn(model, usage.completion);
        }
    }

    fn record(&mut self, end: End, outcome: Outcome) -> spool::Record {
        let (identity, route, metering) = (&self.identity, &self.route, &self.metering);
        let api = identity.endpoint.api;
        let usage = self.measure();
        let record = Record {
            id: identity.record_id,
            time_ms: identity.time_ms(),
            request_id: identity.id.to_str().unwrap_or_default(),
            key: self.key.as_ref().map(|key| &*key.name),
            team: self.key.as_ref().and_then(|key| key.team.as_deref()),
            model: route.model.as_deref(),
            served_model: route.served_model.as_deref(),
            backend: route.backend.as_ref().map(|backend| backend.name.as_str()),
            api,
            path: &endpoint::label(&identity.path),
            is_stream: metering.is_stream(),
            status: (self.status > 0).then_some(self.status),
            outcome,
            reason: self.code.filter(|_| end == End::Unfinished),
            attempts: &route.attempts(),
            usage,
            ms: identity.ms_until(Instant::now()),
            first_byte_ms: metering.first_byte.map(|at| identity.ms_until(at)),
            bytes: metering.bytes,
            instance: self.accounting.meter.instance(),
        };
        let record = record.staged();
        if let Some(row) = &self.row {
            row.note_record(&record);
        }
        self.metering.usage = Some(usage);
        record
    }

    fn classify(&self, end: End) -> Outcome {
        match end {
            End::Complete if self.metering.is_complete() => Outcome::Complete,
            End::Complete | End::Cut => Outcome::Cut,
            // The server aborts the request during its shutdown. The client did not cancel it.
            End::Unfinished if self.accounting.abort.is_cancelled() => Outcome::Cut,
            End::Unfinished => Outcome::Cancelled,
            End::Refused if self.code == Some(OVERLOADED) => Outcome::Refused,
            End::Refused if self.status >= 500 => Outcome::Failed,
            End::Refused if matches!(self.code, Some(INCOMPLETE | STALLED)) => Outcome::Cancelled,
            End::Refused => Outcome::Refused,
        }
    }

    /// True if dropping the guard cancels work of a backend on behalf of the client. False for tunnels,
    /// because a client can end a tunnel at any time, and for requests that llmlb ended, which have a
    /// `code`.
    fn is_cancelled_work(&self) -> bool {
        let is_tunnel = self.status == StatusCode::SWITCHING_PROTOCOLS.as_u16();
        self.is_unfinished() && self.route.is_delivered() && self.code.is_none() && !is_tunnel
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let is_cancelled_work = self.is_cancelled_work();
        // No response waits for the usage record here, so the next flush of the commit group
        // persists the record.
        if let Some(record) = self.finalize(self.end) {
            let row = self.row.take();
            self.accounting.commits.add(record, row);
        }
        if is_cancelled_work {
            let cancelled = &self.accounting.cancelled;
            cancelled.note(self.identity.client, Instant::now());
        }
        // Successful requests for the server's own pages are not logged: monitoring sends many.
        if self.identity.endpoint.is_logged() || self.end != End::Complete {
            self.accounting.access_log.write(self);
        }
    }
}
