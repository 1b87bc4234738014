//! How the receiver of usage records is spoken to, by `serve` and by `usage deliver`.

use spool::{CloudEvents, HttpError, HttpOptions, Token};

use crate::config::Format;

/// Who made an event. Never another one: a receiver would count what it has for new.
const SOURCE: &str = "llmlb";
/// What meters of a receiver go by.
const EVENT: &str = "llm.request";

/// What both have in common.
pub(crate) fn options(
    format: Format,
    token: Option<Token>,
    allow_http: bool,
) -> Result<HttpOptions, HttpError> {
    let mut options = HttpOptions::default();
    options.format = match format {
        Format::Json => spool::Format::Json,
        Format::CloudEvents => spool::Format::CloudEvents(CloudEvents::new(SOURCE, EVENT)?),
    };
    options.token = token;
    options.allow_plain_http = allow_http;
    options.user_agent = format!("llmlb/{}", env!("CARGO_PKG_VERSION"));
    Ok(options)
}
