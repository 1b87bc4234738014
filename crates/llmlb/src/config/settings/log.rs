//! The section `[log]`.

use super::super::setting::DefaultValue::Constant;
use super::super::setting::Reload::{AfterRestart, Applies};
use super::super::setting::{Setting, section};
use super::super::types::{Boolean, Word};

section! {
    /// The section `[log]`.
    LogConfig {
        /// True if the access log has a line for each request.
        requests: bool = LOG_REQUESTS,
        format: LogFormat = LOG_FORMAT,
    }
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object on each line.
    Json,
}

pub(crate) static LOG_REQUESTS: Setting<bool> = Setting {
    name: "log.requests",
    reload: Applies,
    variable: Some("LLMLB_LOG_REQUESTS"),
    flag: None,
    default: Constant(|| true),
    value: &Boolean,
    about: "Write one line for each request to stderr.",
};
pub(crate) static LOG_FORMAT: Setting<LogFormat> = Setting {
    name: "log.format",
    reload: AfterRestart,
    variable: Some("LLMLB_LOG_FORMAT"),
    flag: None,
    default: Constant(|| LogFormat::Text),
    value: &Word {
        words: &[("text", LogFormat::Text), ("json", LogFormat::Json)],
        noun: "a word",
    },
    about: "Write the log as text or as JSON, one object on each line.",
};
