//! The section `[usage]`.

use std::path::PathBuf;
use std::time::Duration;

use super::super::setting::DefaultValue::{Constant, Described};
use super::super::setting::Reload::{AfterRestart, Applies};
use super::super::setting::{Setting, section};
use super::super::types::{
    Age, Boolean, ByteSize, DAY, DirectoryPath, HOUR, MINUTE, Optional, SECOND, TimeSpan,
    VariableName, Word,
};
use super::super::usage::{Format, OnFailure, Receiver, ReceiverUrl};
use super::{DATA_DIR, TOKEN_VARIABLE, URL_VARIABLE};

section! {
    /// The section `[usage]`: recording and delivery of usage records.
    UsageConfig {
        enabled: bool = USAGE_ENABLED,
        /// Directory for usage records and keys. `None`: the user's own data directory. A relative
        /// path in the file is already joined with the directory of the file.
        data_dir: Option<PathBuf> = USAGE_DATA_DIR,
        /// URL of the receiver of usage records. `None`: records are moved to `archive/`.
        url: Option<Receiver> = USAGE_URL,
        /// Name of the environment variable that contains the bearer token for the receiver of
        /// usage records.
        token_env: String = USAGE_TOKEN_ENV,
        every: Duration = USAGE_EVERY,
        format: Format = USAGE_FORMAT,
        on_failure: OnFailure = USAGE_ON_FAILURE,
        allow_http: bool = USAGE_ALLOW_HTTP,
        archive_max_age: Option<Duration> = USAGE_ARCHIVE_MAX_AGE,
        /// Maximum total size of the files in `archive/`, in bytes.
        archive_max_size: Option<u64> = USAGE_ARCHIVE_MAX_SIZE,
        failed_max_age: Option<Duration> = USAGE_FAILED_MAX_AGE,
        /// Maximum total size of the files in `failed/`, in bytes.
        failed_max_size: Option<u64> = USAGE_FAILED_MAX_SIZE,
    }
}

/// Type of `usage.archive_max_age` and `usage.failed_max_age`, the age from which files in
/// `archive/` or `failed/` are deleted.
const MAX_AGE: Optional<Age> = Optional {
    of: Age {
        range: HOUR..=Duration::from_secs(3660 * DAY.as_secs()),
    },
    unset: "no limit",
};

/// Type of `usage.archive_max_size` and `usage.failed_max_size`, the total size beyond which the
/// oldest files in `archive/` or `failed/` are deleted.
const MAX_SIZE: Optional<ByteSize> = Optional {
    of: ByteSize {
        range: 1 << 20..=1 << 40,
        examples: r#""500MiB" or "20GiB""#,
    },
    unset: "no limit",
};

pub(crate) static USAGE_ENABLED: Setting<bool> = Setting {
    name: "usage.enabled",
    reload: AfterRestart,
    variable: Some("LLMLB_USAGE"),
    flag: None,
    default: Constant(|| true),
    value: &Boolean,
    about: "Write a usage record of every request to the data directory (`usage.data_dir`).",
};
pub(crate) static USAGE_DATA_DIR: Setting<Option<PathBuf>> = Setting {
    name: "usage.data_dir",
    reload: AfterRestart,
    variable: Some(DATA_DIR),
    flag: None,
    default: Described("`llmlb` in the user's data directory", || None),
    value: &Optional {
        of: DirectoryPath,
        unset: "the user's own",
    },
    about: "Data directory, for usage records and keys. A relative path in the file is relative to the file. `llmlb usage` also has the flag `--data`; a demo uses the subdirectory `demo`.",
};
pub(crate) static USAGE_URL: Setting<Option<Receiver>> = Setting {
    name: "usage.url",
    reload: AfterRestart,
    variable: Some(URL_VARIABLE),
    flag: None,
    default: Described("none: records are kept in archive/", || None),
    value: &Optional {
        of: ReceiverUrl,
        unset: "-",
    },
    about: "URL of the receiver of usage records, also of `usage deliver`.",
};
pub(crate) static USAGE_TOKEN_ENV: Setting<String> = Setting {
    name: "usage.token_env",
    reload: AfterRestart,
    variable: None,
    flag: None,
    default: Constant(|| TOKEN_VARIABLE.to_owned()),
    value: &VariableName,
    about: "Name of the variable that contains the receiver's bearer token; the token itself is never in the file.",
};
pub(crate) static USAGE_EVERY: Setting<Duration> = Setting {
    name: "usage.every",
    reload: AfterRestart,
    variable: Some("LLMLB_USAGE_EVERY"),
    flag: None,
    default: Constant(|| MINUTE),
    value: &TimeSpan {
        range: SECOND..=DAY,
    },
    about: "Interval between deliveries of usage records.",
};
pub(crate) static USAGE_FORMAT: Setting<Format> = Setting {
    name: "usage.format",
    reload: AfterRestart,
    variable: Some("LLMLB_USAGE_FORMAT"),
    flag: None,
    default: Constant(|| Format::Json),
    value: &Word {
        words: &Format::WORDS,
        noun: "a word",
    },
    about: "Format of delivered batches: llmlb's JSON, or CloudEvents (for OpenMeter).",
};
pub(crate) static USAGE_ON_FAILURE: Setting<OnFailure> = Setting {
    name: "usage.on_failure",
    reload: Applies,
    variable: Some("LLMLB_USAGE_ON_FAILURE"),
    flag: None,
    default: Constant(|| OnFailure::Serve),
    value: &Word {
        words: &OnFailure::WORDS,
        noun: "a word",
    },
    about: "Serve or refuse requests while their usage cannot be recorded.",
};
pub(crate) static USAGE_ALLOW_HTTP: Setting<bool> = Setting {
    name: "usage.allow_http",
    reload: AfterRestart,
    variable: Some("LLMLB_USAGE_ALLOW_HTTP"),
    flag: None,
    default: Constant(|| false),
    value: &Boolean,
    about: "Allow http:// to other machines: the network can read records and token.",
};
pub(crate) static USAGE_ARCHIVE_MAX_AGE: Setting<Option<Duration>> = Setting {
    name: "usage.archive_max_age",
    reload: AfterRestart,
    variable: Some("LLMLB_USAGE_ARCHIVE_MAX_AGE"),
    flag: None,
    default: Described("no limit", || None),
    value: &MAX_AGE,
    about: "Delete files in archive/ that are older than this.",
};
pub(crate) static USAGE_ARCHIVE_MAX_SIZE: Setting<Option<u64>> = Setting {
    name: "usage.archive_max_size",
    reload: AfterRestart,
    variable: Some("LLMLB_USAGE_ARCHIVE_MAX_SIZE"),
    flag: None,
    default: Described("no limit", || None),
    value: &MAX_SIZE,
    about: "Delete the oldest files in archive/ beyond this total size.",
};
pub(crate) static USAGE_FAILED_MAX_AGE: Setting<Option<Duration>> = Setting {
    name: "usage.failed_max_age",
    reload: AfterRestart,
    variable: Some("LLMLB_USAGE_FAILED_MAX_AGE"),
    flag: None,
    default: Described("no limit", || None),
    value: &MAX_AGE,
    about: "Delete files in failed/ that are older than this.",
};
pub(crate) static USAGE_FAILED_MAX_SIZE: Setting<Option<u64>> = Setting {
    name: "usage.failed_max_size",
    reload: AfterRestart,
    variable: Some("LLMLB_USAGE_FAILED_MAX_SIZE"),
    flag: None,
    default: Described("no limit", || None),
    value: &MAX_SIZE,
    about: "Delete the oldest files in failed/ beyond this total size.",
};
