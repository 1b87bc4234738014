//! JSON output of the `usage` verbs: docs/billing.md. Every field is always present; an unknown value
//! is `null`.

use std::time::SystemTime;

use serde::Serialize;

use crate::cli::exit::Failure;
use crate::cli::output;
use crate::lock::rfc3339;

/// Version of the JSON output, which changes when a field is removed or changes its meaning.
pub(super) const VERSION: u32 = 1;

pub(super) fn print(document: &impl Serialize) -> Result<(), Failure> {
    output::data(&output::json(document)?)
}

pub(super) fn point(time: Option<SystemTime>) -> Option<String> {
    time.map(rfc3339)
}

/// Reason and end of a pause in the delivery of usage records.
#[derive(Serialize)]
pub(super) struct Pause {
    to: String,
    until: Option<String>,
    why: String,
    misconfigured: bool,
    rejecting: bool,
}

impl From<spool::Pause> for Pause {
    fn from(pause: spool::Pause) -> Self {
        Self {
            to: pause.to.clone(),
            until: Some(rfc3339(pause.until())),
            why: pause.why,
            misconfigured: pause.is_misconfigured,
            rejecting: pause.is_rejecting,
        }
    }
}
