//! A request as llmlb understands it: its sender, the checks before it is served, its content, and
//! the guard that logs and meters it when it ends.

mod accounting;
mod alike;
mod asked;
mod body;
mod browser;
mod cancelled;
mod client;
mod error;
mod explain;
mod form;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod host;
mod id;
mod in_flight;
mod journal;
mod method;
mod prefix;
mod prompt_fields;
mod query;
mod trip;

pub(crate) use accounting::Accounting;
pub(crate) use asked::{Asked, BodyLimits, Payload, read};
pub(crate) use body::{
    H1_BUFFER, RECEIVING, SMALL_BODY, expect_none, incomplete, too_many, too_slow,
};
pub(crate) use browser::{KnownHosts, refuse_foreign_pages};
pub(crate) use cancelled::Cancelled;
pub(crate) use client::{client_address, is_local};
pub(crate) use error::{Refusal, backend_auth, json_response};
pub(crate) use host::check as check_host;
pub(crate) use id::{Ids, client_key};
pub(crate) use in_flight::{Counter, InFlight};
pub(crate) use journal::{Journal, Lines};
pub(crate) use method::check as check_method;
pub(crate) use trip::{End, Trip};
