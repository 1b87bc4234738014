//! Every metric of the server. docs/metrics.md has the same table; a test compares them.

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}

impl MetricKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Definition of a metric.
#[derive(Debug)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    /// Names of the labels, in the order in which their values are passed.
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

pub(crate) static REQUESTS: Metric = Metric {
    name: "llmlb_requests_total",
    kind: MetricKind::Counter,
    labels: &["model", "backend", "api", "outcome", "status_class"],
    help: "Requests that have ended, without those for llmlb's own pages.",
};

pub(crate) static REFUSED: Metric = Metric {
    name: "llmlb_refused_requests_total",
    kind: MetricKind::Counter,
    labels: &["code"],
    help: "Requests that llmlb refused or could not serve, by error code.",
};

pub(crate) static TOKENS: Metric = Metric {
    name: "llmlb_tokens_total",
    kind: MetricKind::Counter,
    labels: &["model", "backend", "key", "type", "source"],
    help: "Tokens in usage records. `cached` is a part of `prompt`, and `reasoning` in general a part of `completion`.",
};

pub(crate) static DURATION: Metric = Metric {
    name: "llmlb_request_duration_seconds",
    kind: MetricKind::Histogram,
    labels: &["model", "backend"],
    help: "Time from the head of a request to the end of its response. Refused requests do not count.",
};

pub(crate) static FIRST_TOKEN: Metric = Metric {
    name: "llmlb_time_to_first_token_seconds",
    kind: MetricKind::Histogram,
    labels: &["model", "backend"],
    help: "Time from the head of a request to the first byte of its stream. Only streams count.",
};

pub(crate) static OUTPUT_TOKEN: Metric = Metric {
    name: "llmlb_time_per_output_token_seconds",
    kind: MetricKind::Histogram,
    labels: &["model", "backend"],
    help: "Time from the first byte of a complete stream to its end, divided by the output tokens after the first one.",
};

pub(crate) static QUEUE_TIME: Metric = Metric {
    name: "llmlb_queue_seconds",
    kind: MetricKind::Histogram,
    labels: &["model"],
    help: "Time that a request waited for a slot. Requests that found a free slot count as 0.",
};

pub(crate) static ATTEMPTS: Metric = Metric {
    name: "llmlb_attempts_total",
    kind: MetricKind::Counter,
    labels: &["backend", "result"],
    help: "Attempts to get a response from a backend. `result` is `response`, `failed`, or `abandoned` if the request ended first.",
};

pub(crate) static RETRIES: Metric = Metric {
    name: "llmlb_retries_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Attempts after the first one of a request.",
};

pub(crate) static CHOICES: Metric = Metric {
    name: "llmlb_choice_total",
    kind: MetricKind::Counter,
    labels: &["why"],
    help: "Choices of a backend, by the reason for the choice.",
};

pub(crate) static IN_FLIGHT: Metric = Metric {
    name: "llmlb_in_flight",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Requests in flight.",
};

pub(crate) static QUEUE_LENGTH: Metric = Metric {
    name: "llmlb_queue_length",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Requests that wait for a slot.",
};

pub(crate) static BACKEND_UP: Metric = Metric {
    name: "llmlb_backend_up",
    kind: MetricKind::Gauge,
    labels: &["backend"],
    help: "1 if the backend responds to probes, else 0.",
};

pub(crate) static BACKEND_STATE: Metric = Metric {
    name: "llmlb_backend_state",
    kind: MetricKind::Gauge,
    labels: &["backend", "state"],
    help: "1 for the state of the backend, 0 for the other states: `up`, `ejected`, `drained`, `down`.",
};

pub(crate) static BACKEND_IN_FLIGHT: Metric = Metric {
    name: "llmlb_backend_in_flight",
    kind: MetricKind::Gauge,
    labels: &["backend"],
    help: "Requests in flight at the backend.",
};

pub(crate) static BACKEND_SLOTS: Metric = Metric {
    name: "llmlb_backend_max_concurrent",
    kind: MetricKind::Gauge,
    labels: &["backend"],
    help: "`max_concurrent` of the backend; absent without a limit.",
};

pub(crate) static BACKEND_MODELS: Metric = Metric {
    name: "llmlb_backend_models",
    kind: MetricKind::Gauge,
    labels: &["backend"],
    help: "Models that the backend serves; 0 while it is down.",
};

pub(crate) static EJECTIONS: Metric = Metric {
    name: "llmlb_ejections_total",
    kind: MetricKind::Counter,
    labels: &["backend"],
    help: "Ejections of the backend because of failures, and pauses that it requested.",
};

pub(crate) static LIMIT: Metric = Metric {
    name: "llmlb_limit",
    kind: MetricKind::Gauge,
    labels: &["key", "kind"],
    help: "Limit of an API key: `requests_per_minute`, `tokens_per_minute`, `concurrency`, `budget_day` or `budget_month`.",
};

pub(crate) static LIMIT_USED: Metric = Metric {
    name: "llmlb_limit_used",
    kind: MetricKind::Gauge,
    labels: &["key", "kind"],
    help: "Use of the limit at present, with tokens that requests in flight have reserved. The 200 keys nearest to a limit are shown.",
};

pub(crate) static LIMIT_REFUSALS: Metric = Metric {
    name: "llmlb_limit_refusals_total",
    kind: MetricKind::Counter,
    labels: &["key", "kind"],
    help: "Requests that a limit refused: `requests`, `tokens`, `concurrency` or `budget`.",
};

pub(crate) static STAGED: Metric = Metric {
    name: "llmlb_records_staged_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Usage records that the kernel has.",
};

pub(crate) static LOST: Metric = Metric {
    name: "llmlb_records_lost_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Usage records that could not be staged. Their requests are not billed.",
};

pub(crate) static STAGING_ERRORS: Metric = Metric {
    name: "llmlb_staging_errors_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Failed attempts to stage usage records.",
};

pub(crate) static STAGING_FAILING: Metric = Metric {
    name: "llmlb_staging_failing",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "1 while usage records cannot be staged or synced, else 0.",
};

pub(crate) static PENDING: Metric = Metric {
    name: "llmlb_delivery_pending_batches",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Batches that are not delivered yet, after the last run.",
};

pub(crate) static FAILED_FILES: Metric = Metric {
    name: "llmlb_delivery_failed_files",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Files in `failed/`, after the last run: `llmlb usage failed` lists them.",
};

pub(crate) static DELIVERED: Metric = Metric {
    name: "llmlb_delivery_delivered_records_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Records that this server delivered or archived.",
};

pub(crate) static LAST_SUCCESS: Metric = Metric {
    name: "llmlb_delivery_last_success_timestamp_seconds",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Time at which records were last delivered or archived; absent before the first time.",
};

pub(crate) static LAST_RUN: Metric = Metric {
    name: "llmlb_delivery_last_run_timestamp_seconds",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Time of the last run of consolidation and delivery.",
};

pub(crate) static DELIVERY_FAILING: Metric = Metric {
    name: "llmlb_delivery_failing",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "1 if the last run reported a problem, which `llmlb status` shows, else 0.",
};

pub(crate) static BOOKS_BALANCED: Metric = Metric {
    name: "llmlb_books_balanced",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "1 if the last check of the books found no problem, else 0; absent before the first check.",
};

pub(crate) static BOOKS_PROBLEMS: Metric = Metric {
    name: "llmlb_books_problems",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Problems that the last check of the books found: `llmlb usage verify` lists them.",
};

pub(crate) static BOOKS_CHECKED: Metric = Metric {
    name: "llmlb_books_checked_timestamp_seconds",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Time of the last conclusive check of the books.",
};

pub(crate) static CONFIG_RELOADS: Metric = Metric {
    name: "llmlb_config_reloads_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "Reloads of the configuration, without refused ones.",
};

pub(crate) static CONFIG_SINCE: Metric = Metric {
    name: "llmlb_config_last_reload_timestamp_seconds",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Time at which the server began to use its configuration.",
};

pub(crate) static CONFIG_REFUSED: Metric = Metric {
    name: "llmlb_config_refused",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "1 while the configuration file on disk was refused, else 0.",
};

pub(crate) static CONNECTIONS: Metric = Metric {
    name: "llmlb_connections",
    kind: MetricKind::Gauge,
    labels: &["side"],
    help: "Open connections: `client` or `backend`.",
};

pub(crate) static CONNECTIONS_MAX: Metric = Metric {
    name: "llmlb_connections_max",
    kind: MetricKind::Gauge,
    labels: &["side"],
    help: "Maximum number of open connections.",
};

pub(crate) static CONNECTIONS_REJECTED: Metric = Metric {
    name: "llmlb_connections_rejected_total",
    kind: MetricKind::Counter,
    labels: &["side"],
    help: "Client connections, or requests that needed a backend connection, rejected at that limit.",
};

pub(crate) static CERTIFICATE_EXPIRY: Metric = Metric {
    name: "llmlb_tls_certificate_expiry_timestamp_seconds",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "End of the validity of the certificate in use; absent without TLS.",
};

pub(crate) static CERTIFICATE_FAILING: Metric = Metric {
    name: "llmlb_tls_certificate_failing",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "1 while the files of the certificate cannot be used and an older one stays in use, else 0; absent without TLS.",
};

pub(crate) static HANDSHAKES: Metric = Metric {
    name: "llmlb_tls_handshakes_total",
    kind: MetricKind::Counter,
    labels: &["result"],
    help: "TLS handshakes: `completed`, `failed`, or `plain_http` for a client without TLS.",
};

pub(crate) static DRAINING: Metric = Metric {
    name: "llmlb_draining",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "1 while the server drains, else 0.",
};

pub(crate) static BUILD_INFO: Metric = Metric {
    name: "llmlb_build_info",
    kind: MetricKind::Gauge,
    labels: &["version"],
    help: "1, labelled with the version.",
};

pub(crate) static START_TIME: Metric = Metric {
    name: "process_start_time_seconds",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Time at which the server started.",
};

pub(crate) static CPU: Metric = Metric {
    name: "process_cpu_seconds_total",
    kind: MetricKind::Counter,
    labels: &[],
    help: "CPU time of the process; absent on Windows.",
};

pub(crate) static MEMORY: Metric = Metric {
    name: "process_resident_memory_bytes",
    kind: MetricKind::Gauge,
    labels: &[],
    help: "Resident memory of the process; only on Linux.",
};

/// All metrics, in the order of the page.
#[cfg(test)]
pub(crate) static ALL: &[&Metric] = &[
    &REQUESTS,
    &REFUSED,
    &TOKENS,
    &DURATION,
    &FIRST_TOKEN,
    &OUTPUT_TOKEN,
    &QUEUE_TIME,
    &ATTEMPTS,
    &RETRIES,
    &CHOICES,
    &IN_FLIGHT,
    &QUEUE_LENGTH,
    &BACKEND_UP,
    &BACKEND_STATE,
    &BACKEND_IN_FLIGHT,
    &BACKEND_SLOTS,
    &BACKEND_MODELS,
    &EJECTIONS,
    &LIMIT,
    &LIMIT_USED,
    &LIMIT_REFUSALS,
    &STAGED,
    &LOST,
    &STAGING_ERRORS,
    &STAGING_FAILING,
    &PENDING,
    &FAILED_FILES,
    &DELIVERED,
    &LAST_SUCCESS,
    &LAST_RUN,
    &DELIVERY_FAILING,
    &BOOKS_BALANCED,
    &BOOKS_PROBLEMS,
    &BOOKS_CHECKED,
    &CONFIG_RELOADS,
    &CONFIG_SINCE,
    &CONFIG_REFUSED,
    &CONNECTIONS,
    &CONNECTIONS_MAX,
    &CONNECTIONS_REJECTED,
    &CERTIFICATE_EXPIRY,
    &CERTIFICATE_FAILING,
    &HANDSHAKES,
    &DRAINING,
    &BUILD_INFO,
    &START_TIME,
    &CPU,
    &MEMORY,
];
