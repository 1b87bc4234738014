//! What is told of a request when it is over, however it ended. Never what it says, nor what is
//! answered.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, request};
use http_body_util::Full;
use hyper::body::Body;
use uuid::Uuid;

use super::body::{INCOMPLETE, OVERLOADED, STALLED};
use super::{Accounting, InFlight, ParsedRequest, Refusal, id};
use crate::balance::Backend;
use crate::endpoint::{self, Endpoint};
use crate::meter::record::{Attempt, Outcome, Record};
use crate::meter::usage::Usage;
use crate::meter::usage_tap::UsageTap;
use crate::upstream::AddressShare;

/// Reason of a request that ends because its tunnel carries nothing.
const TUNNEL_IDLE: &str = "tunnel_idle";
/// Reason of a request that ends because its client does not take the response.
const SEND_TIMEOUT: &str = "send_timeout";

/// A request, from its head to the last byte of its answer. It is told when it is dropped: dropped
/// before its end, it was left by the client.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    accounting: Arc<Accounting>,
    /// The address that it is counted for.
    pub(crate) client: IpAddr,
    /// Ours alone; no other request has it.
    pub(crate) own_id: Uuid,
    /// What it is called from end to end.
    pub(crate) id: HeaderValue,
    pub(crate) method: Method,
    /// A copy: the request's own is a part of the buffer that its head was read into, which would be
    /// kept as long as this.
    pub(crate) path: Box<str>,
    pub(crate) model: Option<String>,
    /// What the backend calls the model, if not so.
    pub(crate) served_model: Option<String>,
    pub(crate) endpoint: Endpoint,
    /// The answer comes as it is made.
    pub(crate) stream: bool,
    /// How many tokens the prompt has, roughly: needed if the backend does not tell.
    pub(crate) prompt_tokens: u64,
    /// What the answer says it took.
    pub(crate) tap: Option<UsageTap>,
    /// What it took, once that is settled.
    pub(crate) usage: Option<Usage>,
    /// How it ended, once that is settled.
    pub(crate) outcome: Option<Outcome>,
    pub(crate) backend: Option<Arc<Backend>>,
    /// A backend has it, and may be at work on it.
    is_worked_on: bool,
    /// Backends that did not answer, or not well.
    pub(crate) failed: Vec<Tried>,
    pub(crate) status: u16,
    /// Why it was refused, or ended by this server.
    pub(crate) code: Option<&'static str>,
    pub(crate) started: Instant,
    /// When the first byte of the answer's body came.
    pub(crate) first_byte: Option<Instant>,
    /// Bytes of the answer's body that came from the backend.
    received: u64,
    /// Bytes of the answer's body that went on to the client, or that our own answer has.
    pub(crate) bytes: u64,
    pub(crate) end: End,
    in_flight: Option<InFlight>,
    /// The right to use a connection to a backend.
    address_share: Option<AddressShare>,
}

/// A backend that a request was tried on in vain.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) backend: Arc<Backend>,
    pub(crate) why: String,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It has not: whoever drops it now leaves before its end.
    Left,
    Complete,
    /// By the backend, before the end of its answer.
    Cut,
    /// It was not served.
    Refused,
}

impl RequestGuard {
    /// Starts with the head of a request from the address `client`.
    pub(crate) fn start(
        accounting: &Arc<Accounting>,
        client: IpAddr,
        head: &request::Parts,
        endpoint: Endpoint,
    ) -> Self {
        let (method, path) = (head.method.clone(), head.uri.path().into());
        Self::with_line(accounting, client, &head.headers, method, path, endpoint)
    }

    /// A request whose head cannot be parsed, apart from its first line.
    pub(crate) fn unparsed(
        accounting: &Arc<Accounting>,
        client: IpAddr,
        method: Method,
        path: Box<str>,
    ) -> Self {
        let headers = HeaderMap::new();
        Self::with_line(
            accounting,
            client,
            &headers,
            method,
            path,
            Endpoint::NOTHING,
        )
    }

    fn with_line(
        accounting: &Arc<Accounting>,
        client: IpAddr,
        headers: &HeaderMap,
        method: Method,
        path: Box<str>,
        endpoint: Endpoint,
    ) -> Self {
        let own_id = accounting.ids.next();
        Self {
            id: id::of_request(headers, &own_id),
            own_id,
            accounting: Arc::clone(accounting),
            client,
            method,
            path,
            model: None,
            served_model: None,
            endpoint,
            stream: false,
            prompt_tokens: 0,
            tap: None,
            usage: None,
            outcome: None,
            backend: None,
            is_worked_on: false,
            failed: Vec::new(),
            status: 0,
            code: None,
            started: Instant::now(),
            first_byte: None,
            received: 0,
            bytes: 0,
            end: End::Left,
            in_flight: None,
            address_share: None,
        }
    }

    /// It counts as in flight until it is over.
    pub(crate) fn in_flight(&mut self, in_flight: InFlight) {
        self.in_flight = Some(in_flight);
    }

    /// What it asks for.
    pub(crate) fn parsed(&mut self, parsed: &ParsedRequest) {
        self.model.clone_from(&parsed.model);
        self.stream = parsed.stream;
        self.prompt_tokens = parsed.prompt_tokens;
    }

    /// True if the client's address may use a connection to a backend, now and until this is over.
    #[must_use]
    pub(crate) fn may_use_backend(&mut self) -> bool {
        if self.address_share.is_none() {
            self.address_share = self.accounting.address_limit.acquire(self.client);
        }
        self.address_share.is_some()
    }

    /// It is sent to this backend, which calls the model so.
    pub(crate) fn sent(&mut self, backend: &Arc<Backend>, model: Option<&str>) {
        self.backend = Some(Arc::clone(backend));
        self.served_model = model.map(str::to_owned);
    }

    /// A backend has it now, or part of it.
    pub(crate) fn handed_over(&mut self) {
        self.is_worked_on = true;
    }

    /// It was tried on this backend in vain. Who was not waited for any longer may still work on it.
    pub(crate) fn tried(&mut self, backend: &Arc<Backend>, why: &str, is_given_up: bool) {
        self.backend = None;
        self.is_worked_on &= is_given_up;
        self.failed.push(Tried {
            backend: Arc::clone(backend),
            why: why.to_owned(),
        });
    }

    /// A backend answers it.
    pub(crate) fn answered(&mut self, backend: &Arc<Backend>, status: StatusCode) {
        self.backend = Some(Arc::clone(backend));
        // What it said the first time is good enough after all.
        self.failed.retain(|tried| tried.backend.id != backend.id);
        self.status = status.as_u16();
    }

    /// It was answered without a backend.
    pub(crate) fn answered_here(&mut self, response: &Response<Full<Bytes>>) {
        self.status = response.status().as_u16();
        self.end = End::Complete;
        self.note_own_body(response);
    }

    /// Counts the body of an answer of our own.
    pub(crate) fn note_own_body(&mut self, response: &Response<Full<Bytes>>) {
        if self.method != Method::HEAD {
            self.bytes = response.body().size_hint().lower();
        }
    }

    /// It is a tunnel that carried nothing for too long.
    pub(crate) fn idled(&mut self) {
        self.code = Some(TUNNEL_IDLE);
    }

    /// The client does not take its response.
    pub(crate) fn not_taken(&mut self) {
        if self.end == End::Left {
            self.code = Some(SEND_TIMEOUT);
        }
    }

    /// True if the client leaves it when it is dropped now. Some clients end a stream after its end
    /// mark, when all of it is settled.
    pub(crate) fn is_left(&self) -> bool {
        self.end == End::Left && self.outcome.is_none()
    }

    pub(crate) fn refused(&mut self, refusal: &Refusal) {
        self.status = refusal.status.as_u16();
        self.code = Some(refusal.code);
        self.end = End::Refused;
    }
}

impl RequestGuard {
    /// Whether less may go to the client than comes.
    pub(crate) fn may_shorten(&self) -> bool {
        self.tap.as_ref().is_some_and(UsageTap::may_shorten)
    }

    /// So much of the answer came. Its head may have come long before.
    fn came(&mut self, length: usize) {
        self.received += length as u64;
        self.first_byte.get_or_insert_with(Instant::now);
    }

    /// So much of the answer came, and goes on to the client unchanged.
    pub(crate) fn passed(&mut self, length: usize) {
        self.came(length);
        self.bytes += length as u64;
    }

    /// Looks at a piece of the answer. What it returns goes on to the client.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        let Some(tap) = &mut self.tap else {
            self.passed(data.len());
            return data;
        };
        let length = data.len();
        let passed = tap.pass(data);
        self.bytes += passed.len() as u64;
        let saw_end = tap.saw_end();
        self.came(length);
        // Whoever has the end mark has the answer: the record must not come later.
        if self.outcome.is_none() && saw_end {
            self.settle(End::Complete);
        }
        passed
    }

    /// The answer is over. Returns what was held back of it, which goes on to the client if the
    /// answer is complete.
    pub(crate) fn finish(&mut self, end: End) -> Bytes {
        let rest = self.tap.as_mut().map(UsageTap::finish).unwrap_or_default();
        if end == End::Complete {
            self.bytes += rest.len() as u64;
        }
        self.end = end;
        self.settle(end);
        rest
    }

    /// All of the answer is here. Returns what goes on to the client, and the record that must be
    /// kept before it does.
    pub(crate) fn whole(&mut self, data: Bytes) -> (Bytes, Option<spool::Record>) {
        self.came(data.len());
        self.end = End::Complete;
        let passed = match &mut self.tap {
            Some(tap) => tap.whole(data),
            None => data,
        };
        self.bytes += passed.len() as u64;
        (passed, self.record(End::Complete))
    }

    /// Keeps the record, once: when this returns it is with the kernel.
    fn settle(&mut self, end: End) {
        if let Some(record) = self.record(end) {
            self.accounting.meter.keep(&record);
        }
    }

    /// The record, once.
    fn record(&mut self, end: End) -> Option<spool::Record> {
        if self.outcome.is_some() {
            return None;
        }
        let outcome = self.judged(end);
        self.outcome = Some(outcome);
        // What did not get past the door asked for nothing.
        if self.in_flight.is_none() || !self.accounting.meter.is_on() {
            return None;
        }
        let prompt = self.prompt_tokens;
        let usage = match &self.tap {
            Some(tap) => tap.usage(self.received, || prompt),
            // It was left, or given up, before its answer began. The prompt was read all the same.
            None if self.is_worked_on && self.endpoint.api.reads_text() => Usage::of_prompt(prompt),
            None => Usage::default(),
        };
        let attempts: Vec<_> = self.failed.iter().map(Tried::in_record).collect();
        let ms = |until: Instant| {
            let passed = until.saturating_duration_since(self.started);
            u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
        };
        let record = Record {
            id: self.own_id,
            time_ms: id::time_ms(&self.own_id),
            request_id: self.id.to_str().unwrap_or_default(),
            key: None,
            model: self.model.as_deref(),
            served_model: self.served_model.as_deref(),
            backend: self.backend.as_ref().map(|backend| backend.name.as_str()),
            api: self.endpoint.api,
            path: &endpoint::label(&self.path),
            is_stream: self.stream || self.tap.as_ref().is_some_and(UsageTap::is_stream),
            status: (self.status > 0).then_some(self.status),
            outcome,
            reason: self.code.filter(|_| end == End::Left),
            attempts: &attempts,
            usage,
            ms: ms(Instant::now()),
            first_byte_ms: self.first_byte.map(ms),
            bytes: self.bytes,
        };
        let record = record.staged();
        self.usage = Some(usage);
        Some(record)
    }

    /// What such an end means.
    fn judged(&self, end: End) -> Outcome {
        let is_complete = self.tap.as_ref().is_none_or(UsageTap::is_complete);
        match end {
            End::Complete if is_complete => Outcome::Complete,
            End::Complete | End::Cut => Outcome::Cut,
            // It is we who end it.
            End::Left if self.accounting.abort.is_cancelled() => Outcome::Cut,
            End::Left => Outcome::Cancelled,
            End::Refused if self.code == Some(OVERLOADED) => Outcome::Refused,
            End::Refused if self.status >= 500 => Outcome::Failed,
            End::Refused if matches!(self.code, Some(INCOMPLETE | STALLED)) => Outcome::Cancelled,
            End::Refused => Outcome::Refused,
        }
    }
}

impl RequestGuard {
    /// True if a backend works on it, and the client is about to cancel that. A tunnel has no end that
    /// its client could await, and a request that this server ended has a code.
    fn is_cancelled_work(&self) -> bool {
        let is_tunnel = self.status == StatusCode::SWITCHING_PROTOCOLS.as_u16();
        self.is_left() && self.is_worked_on && self.code.is_none() && !is_tunnel
    }
}

impl Tried {
    fn in_record(&self) -> Attempt<'_> {
        Attempt {
            backend: &self.backend.name,
            error: &self.why,
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let is_cancelled_work = self.is_cancelled_work();
        self.settle(self.end);
        if is_cancelled_work {
            let cancelled = &self.accounting.cancelled;
            cancelled.note(self.client, Instant::now());
        }
        // Monitoring requests the server's own pages again and again.
        if self.endpoint.is_logged() || self.end != End::Complete {
            self.accounting.access_log.tell(self);
        }
    }
}
