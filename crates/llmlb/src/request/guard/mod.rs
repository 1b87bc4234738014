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
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, request};
use http_body_util::Full;
use hyper::body::Body;

use super::body::{INCOMPLETE, OVERLOADED, STALLED};
use super::recent_errors::RecentError;
use super::{Accounting, InFlight, ParsedRequest, Refusal};
use crate::backend_id::BackendId;
use crate::balance::{Backend, ChoiceReason, SelectHints, Slot};
use crate::endpoint::{self, Endpoint, Service};
use crate::keys::ApiKey;
use crate::limits::Admission;
use crate::meter::in_flight_list::{self, RequestState, Row};
use crate::meter::record::{Outcome, Record};
use crate::meter::usage::TokenUsage;
use crate::metrics::{self, ModelLabel};
use crate::recent::FinishedRequest;
use crate::text;
use crate::trace_context::{SpanContext, TraceParent};

pub(crate) use identity::RequestIdentity;
pub(crate) use metering::Metering;
pub(crate) use route::{AfterFailure, RequestRoute};

/// Code in the access log and the usage record of a tunnel, such as a WebSocket, that llmlb closed
/// because neither side sent anything for too long.
const TUNNEL_IDLE: &str = "tunnel_idle";
/// Code in the access log and the usage record of a request that llmlb aborted because its client
/// did not read the response in time.
const SEND_TIMEOUT: &str = "send_timeout";
/// Maximum number of characters of a message that is kept for the list of recent errors.
const MAX_MESSAGE: usize = 300;

/// Guard of a request, from its head to the last byte of its response. If it is dropped before the
/// end of the response, the client has disconnected, and the request counts as cancelled.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    accounting: Arc<Accounting>,
    pub(crate) identity: RequestIdentity,
    pub(crate) route: RequestRoute,
    pub(crate) metering: Metering,
    pub(crate) status: u16,
    /// Error code of a refusal, or name of the limit for which llmlb aborted the request; `None`
    /// for all other requests.
    pub(crate) code: Option<&'static str>,
    pub(crate) end: End,
    pub(crate) outcome: Option<Outcome>,
    in_flight: Option<InFlight>,
    /// API key of the client; `None` if the server needs no keys, or before the client is
    /// authenticated.
    pub(crate) key: Option<Arc<ApiKey>>,
    /// Message of a refusal, for the list of recent errors.
    message: Option<Box<str>>,
    /// True if the request gets no usage record, because its API key does not permit it.
    is_unrecorded: bool,
    /// The client asks why its backend is selected.
    pub(crate) asks_why: bool,
    /// Trace of the request; `None` if it is not recorded.
    trace: Option<SpanContext>,
    /// True if the request has a usage record.
    is_recorded: bool,
    /// Share of the request in the limits of its API key, such as concurrent requests. Dropping the
    /// guard frees it.
    pub(crate) admission: Option<Admission>,
    /// Row of the request in the list of requests in flight. It is freed only after the usage
    /// record is persisted, so that a kill loses neither.
    row: Option<Row>,
}

/// End of a request, from which its outcome is derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The response has not ended. If the guard is dropped now, the client has cancelled the
    /// request.
    Unfinished,
    Complete,
    Cut,
    /// llmlb sent an error response of its own, because it rejected the request or no backend
    /// served it.
    Refused,
}

impl RequestGuard {
    /// Returns the guard of a request whose head was read. `client` is the client's address.
    pub(crate) fn start(
        accounting: &Arc<Accounting>,
        client: IpAddr,
        head: &request::Parts,
        endpoint: Endpoint,
    ) -> Self {
        let (method, path) = (head.method.clone(), head.uri.path().into());
        let ids = &accounting.ids;
        let identity = RequestIdentity::new(ids, client, &head.headers, method, path, endpoint);
        let mut guard = Self::new(accounting, identity);
        if accounting.spans.is_some() {
            let parent = TraceParent::of(&head.headers);
            guard.trace = SpanContext::new(parent, &guard.identity.record_id);
        }
        guard
    }

    /// Returns the guard of a request whose head cannot be parsed, except for its method and path,
    /// so that its rejection is logged.
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
            asks_why: false,
            trace: None,
            is_recorded: false,
            admission: None,
            row: None,
        }
    }

    /// Counts the request as in flight until the guard is dropped, and adds it to the list of
    /// requests in flight, so that it has a record even if the server is killed.
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

    /// Stores the model, the stream option and the estimated prompt tokens of the parsed request,
    /// for the usage record.
    pub(crate) fn note_parsed(&mut self, parsed: &ParsedRequest) {
        self.route.model.clone_from(&parsed.model);
        self.metering.is_stream = parsed.stream;
        self.metering.prompt_tokens = parsed.prompt_tokens;
        if let (Some(row), Some(model)) = (&self.row, &parsed.model) {
            row.note_model(model);
        }
        self.update_row();
    }

    /// Notes the start of an attempt at the backend of this slot, which was selected among candidates that are
    /// not in `tried`. `started` is the start of the attempt.
    pub(crate) fn note_selected(
        &mut self,
        slot: &Slot,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
        started: Instant,
    ) {
        self.route.note_selected(slot, hints, tried, started);
        self.note_sent(slot.backend(), slot.model());
    }

    /// Notes that the request has a route: backends are known for its model.
    pub(crate) fn note_routed(&mut self) {
        self.route.is_known_model = true;
    }

    /// Counts the choice of a backend for the request, by the reason for it.
    pub(crate) fn count_choice(&self, reason: ChoiceReason) {
        self.accounting.metrics.count_choice(reason.name());
    }

    /// Stores the backend that the request is being sent to, for the log and the usage record.
    /// `model` is the backend's own name of the model, if that differs.
    pub(crate) fn note_sent(&mut self, backend: &Arc<Backend>, model: Option<&str>) {
        self.route.note_sent(backend, model);
        if let Some(row) = &self.row {
            row.note_backend(&backend.name, model);
            row.note_served_by(Some(backend.id));
        }
    }

    /// Notes that a backend received the request or a part of it, and may have read the prompt: the
    /// tokens count from now on.
    pub(crate) fn note_delivered(&mut self) {
        self.route.note_delivered();
        self.update_row();
    }

    /// Adds a failed attempt at this backend to those that the usage record lists.
    pub(crate) fn note_failed(&mut self, backend: &Arc<Backend>, why: &str, after: AfterFailure) {
        self.route.note_failed(backend, why, after);
        self.update_row();
    }

    /// Stores the progress of the request in its row of the in-flight list, from which the next
    /// start writes a record after a kill.
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

    /// Acquires a share of the client's address in the connections to backends, which is held until
    /// the guard is dropped. Returns `false` if the address is at its limit.
    #[must_use]
    pub(crate) fn acquire_address_share(&mut self) -> bool {
        let share = &mut self.route.address_share;
        if share.is_none() {
            *share = self.accounting.address_limit.acquire(self.identity.client);
        }
        share.is_some()
    }

    /// Stores the backend and the status of the response that the client gets.
    pub(crate) fn note_response(&mut self, backend: &Arc<Backend>, status: StatusCode) {
        self.route.note_response(backend);
        self.status = status.as_u16();
    }

    /// Stores the status of a response that llmlb sends itself, such as `/status`.
    pub(crate) fn note_own_response(&mut self, response: &Response<Full<Bytes>>) {
        self.status = response.status().as_u16();
        self.end = End::Complete;
        self.note_own_body(response);
    }

    pub(crate) fn note_own_body(&mut self, response: &Response<Full<Bytes>>) {
        if self.identity.method != Method::HEAD {
            self.metering.bytes = response.body().size_hint().lower();
        }
    }

    /// Stores that llmlb closed the tunnel because neither side sent anything for too long, as the
    /// reason of the request's end.
    pub(crate) fn note_tunnel_idle(&mut self) {
        self.code = Some(TUNNEL_IDLE);
    }

    /// Stores that llmlb aborted the request because its client did not read the response in time.
    pub(crate) fn note_send_timeout(&mut self) {
        if self.end == End::Unfinished {
            self.code = Some(SEND_TIMEOUT);
        }
    }

    /// Returns the `traceparent` for the backend of the current attempt. `None` if the request has no spans.
    pub(crate) fn traceparent(&self) -> Option<[u8; 55]> {
        let attempt = self.route.attempt?;
        Some(self.trace?.traceparent(attempt.number))
    }

    /// Returns why the backend was selected, for the client: `affinity; candidates=3; queue=12ms; attempts=1`.
    /// Clients do not learn the names of backends other than the one that responded.
    pub(crate) fn why(&self) -> HeaderValue {
        let route = &self.route;
        let attempt = route.attempt.as_ref();
        let word = attempt.map_or("none", |attempt| attempt.reason.name());
        let (candidates, queue) = (route.candidates.total, route.queue.ms(Instant::now()));
        let attempts = route.failed.len() + usize::from(attempt.is_some());
        let text = format!("{word}; candidates={candidates}; queue={queue}ms; attempts={attempts}");
        HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
    }

    /// True if dropping the guard now means that the client cancelled the request. False after the
    /// end mark of a stream, because some clients close the stream there.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.end == End::Unfinished && self.outcome.is_none()
    }

    /// Stores the status and error code with which llmlb rejects the request, for the log and the
    /// usage record.
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

/// Methods for the response and the usage record. A record is added to the worker's commit group,
/// which is flushed before the client gets the last bytes of the response. A response that arrived
/// completely waits for the next flush. The end of a stream flushes the group at once: otherwise
/// its last bytes would be delayed and need a write of their own.
impl RequestGuard {
    /// Counts `length` bytes of the response that are sent to the client without a search for
    /// usage, such as bytes of a tunnel. The access log and the usage record contain the sum.
    pub(crate) fn count(&mut self, length: usize) {
        self.metering.count(length);
        self.update_row();
    }

    /// Starts to meter a WebSocket session, whose usage is the sum of its responses.
    pub(crate) fn start_session(&mut self) {
        if self.accounting.meter.is_on() {
            self.metering.start_session();
        }
    }

    /// Reads the usage in bytes that the backend sent through a WebSocket. [`Self::count`] counts
    /// the bytes later, when the client has accepted them.
    pub(crate) fn read_session(&mut self, data: &[u8]) {
        if self.metering.read_session(data) {
            self.update_row();
        }
    }

    /// Reads a chunk of the response. Returns the bytes for the client. If the response reaches its
    /// end mark, the usage record is persisted before this method returns.
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

    /// Reads the usage of a response that arrived completely. Returns the bytes for the client,
    /// which must not be sent before [`RequestGuard::persisted`] has returned.
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

    /// Makes the usage record final and persists it before returning.
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
        // A request that was rejected at admission was never in flight and has no usage record.
        let is_served = self.in_flight.is_some() && !self.is_unrecorded;
        let is_metered = is_served && self.accounting.meter.is_on();
        self.is_recorded = is_metered;
        let now = Instant::now();
        let record = is_metered.then(|| self.record(end, outcome, now));
        if is_served {
            self.note_traffic(outcome);
        }
        self.note_error(outcome);
        self.settle(outcome);
        self.count_in_metrics(end, outcome, now);
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

    /// Counts the request in the metrics, unless it was for a page of llmlb's own.
    fn count_in_metrics(&self, end: End, outcome: Outcome, now: Instant) {
        let (identity, route, metering) = (&self.identity, &self.route, &self.metering);
        let endpoint = identity.endpoint;
        if matches!(endpoint.service, Service::Own(_)) {
            return;
        }
        let model = match &route.model {
            Some(name) if route.is_known_model => ModelLabel::Known(name),
            Some(_) => ModelLabel::Unknown,
            None => ModelLabel::None,
        };
        let since_start = |at: Instant| at.saturating_duration_since(identity.started);
        let first_byte = metering.first_byte.filter(|_| metering.is_stream());
        let request = metrics::FinishedRequest {
            model,
            backend: route.backend.as_ref().map(|one| (one.id, &*one.name)),
            key: self.key.as_deref().map(|key| &*key.name),
            api: endpoint.api,
            outcome,
            status: self.status,
            code: self.code.filter(|_| end == End::Refused),
            usage: metering.usage,
            duration: since_start(now),
            first_byte: first_byte.map(since_start),
            queued: route.queue.until(now),
        };
        let failed = route.failed.iter();
        let failed = failed.map(|one| (one.backend.id, &*one.backend.name));
        self.accounting.metrics.record(&request, failed);
    }

    /// Replaces the tokens that the request has reserved in the limits of its key with those of its
    /// usage record.
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

    fn record(&mut self, end: End, outcome: Outcome, now: Instant) -> spool::Record {
        let (identity, route, metering) = (&self.identity, &self.route, &self.metering);
        let api = identity.endpoint.api;
        let usage = self.measure();
        let attempt = route.attempt.as_ref();
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
            attempts: &route.attempts(identity),
            why: attempt.map(|attempt| attempt.reason.name()),
            candidates: route.candidates.total,
            queue_ms: route.queue.ms(now),
            sent_ms: attempt.map_or(0, |attempt| identity.ms_until(attempt.started)),
            usage,
            ms: identity.ms_until(now),
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
            // The shutdown of the server aborts this request. It must not count as cancelled by the
            // client.
            End::Unfinished if self.accounting.abort.is_cancelled() => Outcome::Cut,
            End::Unfinished => Outcome::Cancelled,
            End::Refused if self.code == Some(OVERLOADED) => Outcome::Refused,
            End::Refused if self.status >= 500 => Outcome::Failed,
            End::Refused if matches!(self.code, Some(INCOMPLETE | STALLED)) => Outcome::Cancelled,
            End::Refused => Outcome::Refused,
        }
    }

    /// Moves the facts of the request, which ends now, out of the guard.
    fn take_finished(&mut self, now: Instant) -> FinishedRequest {
        let (identity, route, metering) = (&mut self.identity, &mut self.route, &self.metering);
        FinishedRequest {
            id: std::mem::replace(&mut identity.id, HeaderValue::from_static("")),
            record_id: identity.record_id,
            method: std::mem::take(&mut identity.method),
            path: std::mem::take(&mut identity.path),
            api: identity.endpoint.api,
            key: self.key.take(),
            model: route.model.take(),
            served_model: route.served_model.take(),
            backend: route.backend.take(),
            attempt: route.attempt,
            failed: std::mem::take(&mut route.failed),
            candidates: route.candidates,
            is_stream: metering.is_stream(),
            status: self.status,
            code: self.code,
            outcome: self.outcome,
            usage: metering.usage,
            is_recorded: self.is_recorded,
            bytes: metering.bytes,
            started: identity.started,
            queue_ms: route.queue.ms(now),
            first_byte: metering.first_byte,
            ended: now,
            trace: self.trace,
        }
    }

    /// True if dropping the guard cancels work of a backend on behalf of the client, which counts
    /// against its limit on cancelled requests. False for tunnels, which clients may end at any
    /// time, and for requests that llmlb aborted.
    fn is_cancelled_work(&self) -> bool {
        let is_tunnel = self.status == StatusCode::SWITCHING_PROTOCOLS.as_u16();
        self.is_unfinished() && self.route.is_delivered() && self.code.is_none() && !is_tunnel
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let is_cancelled_work = self.is_cancelled_work();
        // No response waits for this usage record, so the next flush of the commit group persists
        // it.
        if let Some(record) = self.finalize(self.end) {
            let row = self.row.take();
            self.accounting.commits.add(record, row);
        }
        if is_cancelled_work {
            let cancelled = &self.accounting.cancelled;
            cancelled.note(self.identity.client, Instant::now());
        }
        // Do not log successful requests for the server's own pages, such as `/status`: monitoring
        // sends many.
        if self.identity.endpoint.is_logged() || self.end != End::Complete {
            let now = Instant::now();
            self.accounting.access_log.write(self, now);
            let finished = self.take_finished(now);
            if let Some(spans) = &self.accounting.spans {
                spans.add(&finished);
            }
            self.accounting.recent.add(finished);
        }
    }
}
