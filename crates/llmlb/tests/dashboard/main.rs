//! The dashboard: its rules, its actions, and the page in a real browser. (promise L13)

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

mod actions;
#[cfg(unix)]
mod browser;
mod rules;
mod support;
