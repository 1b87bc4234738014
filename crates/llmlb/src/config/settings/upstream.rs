//! The section `[upstream]`, about connections to backends.

use std::time::Duration;

use super::super::setting::DefaultValue::{Constant, Described};
use super::super::setting::Reload::Applies;
use super::super::setting::{Setting, section};
use super::super::types::{DAY, HeaderNames, MINUTE, Number, SECOND, TIMEOUT, TimeSpan};
use crate::headers::HeaderPatterns;

section! {
    /// The section `[upstream]`.
    UpstreamConfig {
        connect_timeout: Duration = CONNECT_TIMEOUT,
        /// Maximum time from sending a request to a backend until the first byte of its response.
        first_byte_timeout: Duration = FIRST_BYTE_TIMEOUT,
        /// Maximum pause between two parts of a backend's response.
        idle_timeout: Duration = IDLE_TIMEOUT,
        /// Request headers that are forwarded in addition to the default ones.
        forward_headers: HeaderPatterns = FORWARD_HEADERS,
        probe_interval: Duration = PROBE_INTERVAL,
        probe_timeout: Duration = PROBE_TIMEOUT,
        /// Maximum number of models of one backend; further ones are ignored.
        max_models: usize = MAX_MODELS,
    }
}

pub(crate) static CONNECT_TIMEOUT: Setting<Duration> = Setting {
    name: "upstream.connect_timeout",
    reload: Applies,
    variable: Some("LLMLB_CONNECT_TIMEOUT"),
    flag: None,
    default: Constant(|| 5 * SECOND),
    value: &TIMEOUT,
    about: "Maximum time to connect to a backend.",
};
pub(crate) static FIRST_BYTE_TIMEOUT: Setting<Duration> = Setting {
    name: "upstream.first_byte_timeout",
    reload: Applies,
    variable: Some("LLMLB_FIRST_BYTE_TIMEOUT"),
    flag: None,
    default: Constant(|| 10 * MINUTE),
    value: &TIMEOUT,
    about: "Maximum time to the first byte of a backend's response.",
};
pub(crate) static IDLE_TIMEOUT: Setting<Duration> = Setting {
    name: "upstream.idle_timeout",
    reload: Applies,
    variable: Some("LLMLB_IDLE_TIMEOUT"),
    flag: None,
    default: Constant(|| 5 * MINUTE),
    value: &TIMEOUT,
    about: "Maximum pause within a backend's response.",
};
pub(crate) static FORWARD_HEADERS: Setting<HeaderPatterns> = Setting {
    name: "upstream.forward_headers",
    reload: Applies,
    variable: Some("LLMLB_FORWARD_HEADERS"),
    flag: None,
    default: Described("none", HeaderPatterns::default),
    value: &HeaderNames,
    about: "Request headers that are forwarded to backends in addition to the default ones.",
};
pub(crate) static PROBE_INTERVAL: Setting<Duration> = Setting {
    name: "upstream.probe_interval",
    reload: Applies,
    variable: Some("LLMLB_PROBE_INTERVAL"),
    flag: None,
    default: Constant(|| 5 * SECOND),
    value: &TimeSpan {
        range: Duration::from_millis(100)..=DAY,
    },
    about: "Interval between probes of a backend.",
};
pub(crate) static PROBE_TIMEOUT: Setting<Duration> = Setting {
    name: "upstream.probe_timeout",
    reload: Applies,
    variable: Some("LLMLB_PROBE_TIMEOUT"),
    flag: None,
    default: Constant(|| 5 * SECOND),
    value: &TIMEOUT,
    about: "Maximum time for a backend's response to a probe.",
};
pub(crate) static MAX_MODELS: Setting<usize> = Setting {
    name: "upstream.max_models",
    reload: Applies,
    variable: Some("LLMLB_MAX_MODELS"),
    flag: None,
    default: Constant(|| 10_000),
    value: &Number {
        range: 1..=1_000_000,
    },
    about: "Maximum number of models of one backend; further ones are not used.",
};
