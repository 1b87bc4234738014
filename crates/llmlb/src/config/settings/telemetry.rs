//! The section `[telemetry]`.

use super::super::instance::Instance;
use super::super::setting::DefaultValue::{Constant, Described};
use super::super::setting::Reload::{AfterRestart, Applies};
use super::super::setting::{Setting, section};
use super::super::telemetry::OtlpEndpoint;
use super::super::types::{Boolean, InstanceName, Optional};
use super::super::url::BackendUrl;

section! {
    /// The section `[telemetry]`.
    TelemetryConfig {
        /// Receiver of traces, to which `/v1/traces` is appended. `None`: OpenTelemetry's own variable decides.
        otlp_endpoint: Option<BackendUrl> = OTLP_ENDPOINT,
        /// Name of the service in traces. `None`: OpenTelemetry's own variable decides.
        service_name: Option<Instance> = SERVICE_NAME,
        /// True if every response of a backend has the header `x-llmlb-why`, not only those to requests that
        /// ask for it.
        why_header: bool = WHY_HEADER,
    }
}

pub(crate) static OTLP_ENDPOINT: Setting<Option<BackendUrl>> = Setting {
    name: "telemetry.otlp_endpoint",
    reload: AfterRestart,
    variable: Some("LLMLB_OTLP_ENDPOINT"),
    flag: None,
    default: Described("none: `OTEL_EXPORTER_OTLP_ENDPOINT`, if it is set", || None),
    value: &Optional {
        of: OtlpEndpoint,
        unset: "-",
    },
    about: "Receiver of traces (OTLP over HTTP, protobuf), such as an OpenTelemetry Collector at `http://127.0.0.1:4318`. Needs a build with the feature `otlp`.",
};
pub(crate) static SERVICE_NAME: Setting<Option<Instance>> = Setting {
    name: "telemetry.service_name",
    reload: AfterRestart,
    variable: Some("LLMLB_SERVICE_NAME"),
    flag: None,
    default: Described("the value of `OTEL_SERVICE_NAME`, else llmlb", || None),
    value: &Optional {
        of: InstanceName,
        unset: "-",
    },
    about: "`service.name` of traces.",
};
pub(crate) static WHY_HEADER: Setting<bool> = Setting {
    name: "telemetry.why_header",
    reload: Applies,
    variable: Some("LLMLB_WHY_HEADER"),
    flag: None,
    default: Constant(|| false),
    value: &Boolean,
    about: "Add the header `x-llmlb-why` to every response of a backend, not only to those of requests that have `x-llmlb-why: 1`.",
};
