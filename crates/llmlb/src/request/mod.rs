//! A request as llmlb understands it: its sender, the checks before it is served, its content, and
//! the guard that logs and meters it when it ends.

mod access_log;
mod accounting;
mod body;
mod browser;
mod cancelled;
mod case_variant;
mod client;
mod credentials;
mod error;
mod explain;
mod form;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod guard;
mod host;
mod id;
mod in_flight;
mod method;
mod other_models;
mod output_fields;
mod parse;
mod prefix;
mod prompt_fields;
mod query;
mod recent_errors;
mod refused;

pub(crate) use access_log::{AccessLog, LineStyle, LogSink};
pub(crate) use accounting::Accounting;
pub(crate) use body::{
    H1_BUFFER, RECEIVING, SMALL_BODY, expect_none, incomplete, read_whole, too_many, too_slow,
};
pub(crate) use browser::{refuse_foreign_pages, require_own_page};
pub(crate) use cancelled::Cancelled;
pub(crate) use client::{client_address, is_local};
pub(crate) use credentials::{authenticate, check_model};
pub(crate) use error::{RateLimit, Refusal, backend_auth, json_response, no_websocket};
pub(crate) use guard::{AfterFailure, End, RequestGuard};
pub(crate) use host::check as check_host;
pub(crate) use id::{Ids, client_key};
pub(crate) use in_flight::{Counter, InFlight};
pub(crate) use method::check as check_method;
pub(crate) use parse::{AskUsage, BodyLimits, ParsedRequest, Payload, read};
pub(crate) use recent_errors::{ErrorReport, RecentErrors};
pub(crate) use refused::RefusedRequests;
