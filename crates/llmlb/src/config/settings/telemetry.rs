//! The section `[telemetry]`.

use super::super::setting::DefaultValue::Constant;
use super::super::setting::Reload::Applies;
use super::super::setting::{Setting, section};
use super::super::types::Boolean;

section! {
    /// The section `[telemetry]`.
    TelemetryConfig {
        /// True if every response of a backend has the header `x-llmlb-why`, not only those to requests that
        /// ask for it.
        why_header: bool = WHY_HEADER,
    }
}

pub(crate) static WHY_HEADER: Setting<bool> = Setting {
    name: "telemetry.why_header",
    reload: Applies,
    variable: Some("LLMLB_WHY_HEADER"),
    flag: None,
    default: Constant(|| false),
    value: &Boolean,
    about: "Add the header `x-llmlb-why` to every response of a backend, not only to those of requests that have `x-llmlb-why: 1`.",
};
