//! The last requests that failed, for the snapshot of the server.
//!
//! Errors of clients and errors of the server are kept apart, so that a client that sends many bad requests
//! does not push the others out.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use crate::meter::record::Outcome;
use crate::text;

/// Maximum number of errors of each kind.
const MAX_ERRORS: usize = 25;
/// Maximum number of characters of a name or an id.
const MAX_NAME: usize = 128;
/// Maximum number of characters of a message.
const MAX_MESSAGE: usize = 300;

/// A request that failed.
#[derive(Debug)]
pub(super) struct RecentError<'a> {
    pub(super) at: SystemTime,
    pub(super) id: &'a str,
    /// Status of the response; 0 if there is none.
    pub(super) status: u16,
    pub(super) code: Option<&'static str>,
    pub(super) model: Option<&'a str>,
    pub(super) backend: Option<&'a str>,
    pub(super) key: Option<&'a str>,
    pub(super) outcome: Outcome,
    pub(super) message: Option<&'a str>,
}

/// A request that failed, with texts that are short and safe to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorReport {
    pub(crate) at: SystemTime,
    pub(crate) id: String,
    pub(crate) status: u16,
    pub(crate) code: Option<&'static str>,
    pub(crate) model: Option<String>,
    pub(crate) backend: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) outcome: &'static str,
    pub(crate) message: Option<String>,
}

/// The last errors of a server.
#[derive(Debug, Default)]
pub(crate) struct RecentErrors {
    /// Requests that were refused because of the request itself: a status below 500.
    of_clients: Mutex<VecDeque<ErrorReport>>,
    others: Mutex<VecDeque<ErrorReport>>,
}

impl RecentErrors {
    pub(super) fn note(&self, error: &RecentError<'_>) {
        let is_of_client = (400..500).contains(&error.status);
        let errors = if is_of_client {
            &self.of_clients
        } else {
            &self.others
        };
        let report = ErrorReport::new(error);
        let mut errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() == MAX_ERRORS {
            errors.pop_front();
        }
        errors.push_back(report);
    }

    /// Returns the errors, newest first.
    pub(crate) fn report(&self) -> Vec<ErrorReport> {
        let mut all = Vec::new();
        for errors in [&self.of_clients, &self.others] {
            let errors = errors.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend(errors.iter().cloned());
        }
        all.sort_by_key(|error| std::cmp::Reverse(error.at));
        all
    }
}

impl ErrorReport {
    fn new(error: &RecentError<'_>) -> Self {
        let short = |text: &str, max| text::plain(&text::shortened(text, max)).into_owned();
        let name = |text: Option<&str>| text.map(|text| short(text, MAX_NAME));
        Self {
            at: error.at,
            id: short(error.id, MAX_NAME),
            status: error.status,
            code: error.code,
            model: name(error.model),
            backend: name(error.backend),
            key: name(error.key),
            outcome: error.outcome.name(),
            message: error.message.map(|text| short(text, MAX_MESSAGE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn errors_of_clients_do_not_push_out_those_of_backends() {
        let errors = RecentErrors::default();
        let note = |second, status, id: &str| {
            errors.note(&RecentError {
                at: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
                id,
                status,
                code: None,
                model: Some("a\u{1b}[2Jb"),
                backend: None,
                key: None,
                outcome: Outcome::Refused,
                message: Some(&"x".repeat(1000)),
            });
        };
        note(1, 502, "first");
        for second in 2..100 {
            note(second, 401, "client");
        }
        let report = errors.report();
        assert_eq!(report.len(), MAX_ERRORS + 1);
        assert_eq!(
            report[0].at,
            SystemTime::UNIX_EPOCH + Duration::from_secs(99)
        );
        let last = &report[MAX_ERRORS];
        assert_eq!((last.status, last.id.as_str()), (502, "first"));
        assert_eq!(last.model.as_deref(), Some("a?[2Jb"));
        assert_eq!(
            last.message.as_ref().unwrap().chars().count(),
            MAX_MESSAGE + 1
        );
    }
}
