//! The schemes of lease stores, and the message for a store that this build does not contain.

use crate::error::{Error, Kind};

/// URL schemes of lease stores, each with the cargo feature that a build needs to support it.
const SCHEMES: [(&str, &str); 6] = [
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+unix", "redis"),
    ("dynamodb", "dynamodb"),
    ("etcd", "etcd"),
    ("etcds", "etcd"),
];

/// Error for a URL whose scheme is unknown, or whose store this build does not contain.
pub(crate) fn unknown_scheme(scheme: &str, shown: &str) -> Error {
    let why = match SCHEMES.iter().find(|(known, _)| *known == scheme) {
        Some((_, feature)) => format!(
            "this build has no support for it; build it with `--features {feature}`, or use the \
             program that `scripts/build-release` builds"
        ),
        None => "its scheme is none of redis://, rediss://, redis+unix://, dynamodb://, etcd:// \
                 and etcds://"
            .to_owned(),
    };
    Error::new(Kind::BadStore {
        store: shown.to_owned(),
        why,
    })
}
