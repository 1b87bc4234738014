//! Actions on the spool.

use http::StatusCode;
use serde_json::{Value, json};

use super::{SpoolAccess, failed, refused};
use crate::exporter;
use crate::request::Refusal;

/// Maximum number of errors in a response.
const MAX_PROBLEMS: usize = 5;

/// Moves all failed batches back into the spool.
pub(super) fn resend(spool: &SpoolAccess) -> Result<Value, Refusal> {
    let instance = format!("{}:resend", spool.instance);
    let resent = exporter::resend_failed(&spool.data, &spool.fleet, &instance).map_err(failed)?;
    let problems = resent.problems.iter().take(MAX_PROBLEMS);
    Ok(json!({ "resent": resent.batches, "problems": problems.collect::<Vec<_>>() }))
}

/// Returns the error for a server that records no usage.
pub(super) fn off() -> Refusal {
    let message = "This server records no usage (usage.enabled), or has no data directory.";
    refused(StatusCode::CONFLICT, "usage_is_off", message)
}
