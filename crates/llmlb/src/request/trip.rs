//! What is told of a request when it is over, however it ended. Never what it says, nor what is
//! answered.

use std::sync::Arc;
use std::time::Instant;

use http::{HeaderValue, Method, StatusCode, Uri, request};
use uuid::Uuid;

use super::{Caller, InFlight, Refusal, id};
use crate::balance::Backend;
use crate::worker::Worker;

/// A request, from its head to the last byte of its answer. It is told when it is dropped: dropped
/// before its end, it was left by the client.
#[derive(Debug)]
pub(crate) struct Trip {
    worker: Arc<Worker>,
    /// Ours alone; no other request has it.
    pub(crate) own_id: Uuid,
    /// What it is called from end to end.
    pub(crate) id: HeaderValue,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) model: Option<String>,
    pub(crate) backend: Option<Arc<Backend>>,
    /// Backends that did not answer, or not well.
    pub(crate) failed: Vec<Tried>,
    pub(crate) status: u16,
    /// Why it was refused.
    pub(crate) code: Option<&'static str>,
    pub(crate) started: Instant,
    /// When the answer began.
    pub(crate) answered: Option<Instant>,
    pub(crate) bytes: u64,
    pub(crate) end: End,
    in_flight: Option<InFlight>,
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

impl Trip {
    pub(super) fn start(caller: &Caller, head: &request::Parts) -> Self {
        let worker = Arc::clone(&caller.worker);
        let own_id = worker.shared.ids.next();
        Self {
            id: id::of_request(&head.headers, &own_id),
            own_id,
            worker,
            method: head.method.clone(),
            uri: head.uri.clone(),
            model: None,
            backend: None,
            failed: Vec::new(),
            status: 0,
            code: None,
            started: Instant::now(),
            answered: None,
            bytes: 0,
            end: End::Left,
            in_flight: None,
        }
    }

    /// It counts as in flight until it is over.
    pub(super) fn in_flight(&mut self, in_flight: InFlight) {
        self.in_flight = Some(in_flight);
    }

    /// It was tried on this backend in vain.
    pub(crate) fn tried(&mut self, backend: &Arc<Backend>, why: &str) {
        self.failed.push(Tried {
            backend: Arc::clone(backend),
            why: why.to_owned(),
        });
    }

    /// A backend answers it.
    pub(crate) fn answered(&mut self, backend: &Arc<Backend>, status: StatusCode) {
        self.backend = Some(Arc::clone(backend));
        self.status = status.as_u16();
        self.answered = Some(Instant::now());
    }

    /// It was answered without a backend.
    pub(super) fn answered_here(&mut self, status: StatusCode) {
        self.status = status.as_u16();
        self.end = End::Complete;
    }

    pub(super) fn refused(&mut self, refusal: &Refusal) {
        self.status = refusal.status.as_u16();
        self.code = Some(refusal.code);
        self.end = End::Refused;
    }
}

impl Drop for Trip {
    fn drop(&mut self) {
        // What asks about this server itself is asked again and again.
        if self.uri.path().starts_with("/v1/") || self.end != End::Complete {
            self.worker.journal.tell(self);
        }
    }
}
