//! Tests of the demo servers over real sockets.

mod ending;
mod refusals;
mod requests;
mod streams;
mod support;
mod timing;
