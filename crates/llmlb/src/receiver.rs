//! HTTP options for the receiver of usage records, shared by `serve` and `usage deliver`.

use spool::{CloudEvents, HttpError, HttpOptions, Token};

use crate::config::Format;

/// Value of `source` in every CloudEvent. It must never change: receivers deduplicate by `source`
/// and `id`, so a new value would count old records a second time.
const SOURCE: &str = "llmlb";
/// Value of `type` in every CloudEvent. Receivers select by it the events to meter, so it must not
/// change.
const EVENT: &str = "llm.request";
/// Field of a usage record that becomes the `subject` of its CloudEvent. Receivers bill by the
/// subject.
const SUBJECT_FIELD: &str = "key";

/// Returns the HTTP options that `serve` and `usage deliver` have in common. Both must send
/// identical requests, or the receiver could not deduplicate a batch that both send.
pub(crate) fn options(
    format: Format,
    token: Option<Token>,
    allow_http: bool,
) -> Result<HttpOptions, HttpError> {
    let mut options = HttpOptions::default();
    options.format = match format {
        Format::Json => spool::Format::Json,
        Format::CloudEvents => {
            let events = CloudEvents::new(SOURCE, EVENT)?.subject_from(SUBJECT_FIELD);
            spool::Format::CloudEvents(events)
        }
    };
    options.token = token;
    options.allow_plain_http = allow_http;
    options.user_agent = format!("llmlb/{}", env!("CARGO_PKG_VERSION"));
    Ok(options)
}
