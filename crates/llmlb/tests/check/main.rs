//! `llmlb check`, its schema, and what it finds on this machine and at the backends. (promise L12)

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod machine;
mod schema;
