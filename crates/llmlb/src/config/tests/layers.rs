//! Tests of the precedence of the layers: flags override the environment, which overrides the file.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::super::{Origin, settings};
use super::*;

#[test]
fn defaults_apply_without_any_layer() {
    let config = LoadCase::new().good();
    assert_eq!(config.file, None);
    assert_eq!(config.server.host, IpAddr::V4(Ipv4Addr::LOCALHOST));
    assert_eq!(config.server.port, 32768);
    assert!(!config.server.allow_public);
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert_eq!(config.server.workers, cpus.min(1024));
    assert_eq!(config.server.drain_timeout, Duration::from_secs(30));
    assert_eq!(config.server.max_body, 32 << 20);
    assert_eq!(config.upstream.connect_timeout, Duration::from_secs(5));
    assert_eq!(config.upstream.probe_interval, Duration::from_secs(5));
    assert_eq!(config.server.queue, 1000);
    assert_eq!(config.server.queue_timeout, Duration::from_secs(30));
    assert_eq!(config.upstream.first_byte_timeout, Duration::from_secs(600));
    assert_eq!(config.upstream.idle_timeout, Duration::from_secs(300));
    assert_eq!(config.upstream.probe_timeout, Duration::from_secs(5));
    assert!(config.log.requests);
    assert!(config.backends.is_empty());
    assert!(config.aliases.is_empty());
    let effective = config.effective();
    assert!(effective.iter().all(|line| *line.origin == Origin::Default));
}

#[test]
fn environment_overrides_the_file_and_flags_override_both() {
    let file = "[server]\nport = 1\nworkers = 1\ndrain_timeout = \"1s\"\n";
    let run = LoadCase::with_file(file);
    assert_eq!(run.good().server.port, 1);
    let run = run.env("LLMLB_PORT", "2").env("LLMLB_WORKERS", "2");
    assert_eq!(run.good().server.port, 2);
    let run = run.flags(Flags {
        port: Some(3),
        ..Flags::default()
    });
    let config = run.good();
    assert_eq!(config.server.port, 3);
    assert_eq!(config.server.workers, 2);
    assert_eq!(config.server.drain_timeout, Duration::from_secs(1));

    let from = |setting| config.origins.origin(setting).to_string();
    assert_eq!(from("server.port"), "--port");
    assert_eq!(from("server.workers"), "LLMLB_WORKERS");
    assert_eq!(from("server.drain_timeout"), "llmlb.toml:4");
    assert_eq!(from("server.host"), "default");
}

#[test]
fn overridden_value_is_validated_too() {
    let run = LoadCase::with_file("[server]\nport = 70000\n").env("LLMLB_PORT", "80");
    assert!(
        run.problems()
            .starts_with("llmlb.toml:2: server.port: 70000")
    );
}

#[test]
fn empty_variable_counts_as_not_set() {
    let run = LoadCase::with_file("[server]\nport = 7\n").env("LLMLB_PORT", "");
    assert_eq!(run.good().server.port, 7);
}

/// Returns the variables that Kubernetes sets for a Service. `service` is the name of the Service
/// in capitals.
fn service_links(service: &str) -> Vec<(String, &'static str)> {
    [
        ("_SERVICE_HOST", "10.0.0.1"),
        ("_SERVICE_PORT", "80"),
        ("_SERVICE_PORT_HTTP", "80"),
        ("_PORT", "tcp://10.0.0.1:80"),
        ("_PORT_80_TCP", "tcp://10.0.0.1:80"),
        ("_PORT_80_TCP_PROTO", "tcp"),
        ("_PORT_80_TCP_PORT", "80"),
        ("_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("_PORT_53_UDP", "udp://[fd00::1]:53"),
        ("_PORT_53_UDP_PROTO", "udp"),
        ("_PORT_53_UDP_PORT", "53"),
        ("_PORT_53_UDP_ADDR", "fd00::1"),
    ]
    .map(|(end, value)| (format!("{service}{end}"), value))
    .to_vec()
}

#[test]
fn service_links_of_kubernetes_are_ignored() {
    for service in [
        "LLMLB",
        "LLMLB_INTERNAL",
        "LLMLB_SERVICE",
        "LLMLB_PORT",
        "LLMLB_USAGE",
        "LLMLB_PORT_80",
        "LLMLB_V2_SERVICE_HOST",
    ] {
        for (name, value) in service_links(service) {
            let run = LoadCase::with_file("[server]\nport = 7\n").env(&name, value);
            assert_eq!(run.good().server.port, 7, "{name}");
        }
    }
}

#[test]
fn misspelt_variable_similar_to_a_service_link_is_reported() {
    for (name, value) in [
        ("LLMLB_SERVICE_HOST", "localhost"),
        ("LLMLB_SERVICE_PORT", "http"),
        ("LLMLB_SERVER_PORT", "8080"),
        ("LLMLB_INTERNAL_PORT", "8080"),
        ("LLMLB_PORTS", "tcp://10.0.0.1:80"),
        ("LLMLB_PORT_TCP", "80"),
        ("LLMLB_PORT_80", "tcp://10.0.0.1:80"),
        ("LLMLB_PORT_80_TCP_ADDR", "everywhere"),
        ("LLMLB_PORT_80_TCP_PROTO", "http"),
        ("LLMLB_PORT_80_HTTP", "http://10.0.0.1:80"),
        ("LLMLB_SERVICE_PORT_", "80"),
        ("LLMLB_SERVICE_", "1"),
        ("LLMLB_QUEU", "5"),
        ("LLMLB_HOSTT", "127.0.0.1"),
    ] {
        let reported = LoadCase::new().env(name, value).problems();
        assert!(
            reported.contains("unknown variable"),
            "{name}={value}: {reported}"
        );
    }
    // `LLMLB_PORT` with a plain number is the setting `server.port`, not a link of a Kubernetes
    // Service.
    let run = LoadCase::new().env("LLMLB_PORT", "8080");
    assert_eq!(run.good().server.port, 8080);
    let reported = LoadCase::new()
        .env("LLMLB_PORT", "http://10.0.0.1")
        .problems();
    assert!(reported.starts_with("LLMLB_PORT: "), "{reported}");
}

/// A value other than the default for each environment variable, and its form in `llmlb check` if
/// that differs.
const VARIABLES: &[(&str, &str, Option<&str>)] = &[
    ("LLMLB_HOST", "0.0.0.0", None),
    ("LLMLB_PORT", "0", None),
    ("LLMLB_ALLOW_PUBLIC", "true", None),
    ("LLMLB_HOSTS", "a.example B,::1", Some("a.example, b, ::1")),
    (
        "LLMLB_TRUSTED_PROXIES",
        "10.0.0.0/8 ::1",
        Some("10.0.0.0/8, ::1"),
    ),
    ("LLMLB_TLS_CERT", "a/chain.pem", None),
    ("LLMLB_TLS_KEY", "/b/key.pem", None),
    ("LLMLB_TLS_CLIENT_CA", "ca.pem", None),
    ("LLMLB_WORKERS", "1024", None),
    ("LLMLB_DRAIN_TIMEOUT", "0s", None),
    ("LLMLB_MAX_BODY", "1000", None),
    ("LLMLB_BODY_MEMORY", "64GiB", None),
    ("LLMLB_BODY_TIMEOUT", "5s", None),
    ("LLMLB_MIN_BODY_RATE", "2KiB", None),
    ("LLMLB_SEND_TIMEOUT", "6s", None),
    ("LLMLB_STALL_TIMEOUT", "5s", None),
    ("LLMLB_MAX_CONNECTIONS", "5000", None),
    ("LLMLB_MAX_CONNECTIONS_PER_ADDRESS", "50", None),
    ("LLMLB_SERVER_IDLE_TIMEOUT", "7s", None),
    ("LLMLB_MAX_HEADER", "16KiB", None),
    ("LLMLB_MAX_STREAMS", "8", None),
    ("LLMLB_TUNNEL_IDLE", "7s", None),
    ("LLMLB_MAX_RESETS", "0", None),
    ("LLMLB_QUEUE", "0", None),
    ("LLMLB_QUEUE_TIMEOUT", "1m", None),
    ("LLMLB_UNKNOWN_ENDPOINTS", "reject", None),
    ("LLMLB_LIMITS", "dry-run", None),
    ("LLMLB_INSTANCE", "eu-1.gpu_2:80", None),
    ("LLMLB_CONNECT_TIMEOUT", "250ms", None),
    ("LLMLB_LOG_FORMAT", "json", None),
    ("LLMLB_OTLP_ENDPOINT", "http://collector:4318", None),
    ("LLMLB_SERVICE_NAME", "llm-eu", None),
    ("LLMLB_WHY_HEADER", "true", None),
    ("LLMLB_FIRST_BYTE_TIMEOUT", "3m", None),
    ("LLMLB_IDLE_TIMEOUT", "4m", None),
    (
        "LLMLB_FORWARD_HEADERS",
        "X-Team x-corp-*",
        Some("x-team, x-corp-*"),
    ),
    ("LLMLB_PROBE_INTERVAL", "2m", None),
    ("LLMLB_PROBE_TIMEOUT", "1ms", None),
    ("LLMLB_MAX_MODELS", "77", None),
    ("LLMLB_LOG_REQUESTS", "false", None),
    ("LLMLB_USAGE", "false", None),
    ("LLMLB_DATA_DIR", "/var/lib/llmlb", None),
    ("LLMLB_USAGE_URL", "http://10.0.0.9/usage", None),
    ("LLMLB_USAGE_EVERY", "5m", None),
    ("LLMLB_USAGE_FORMAT", "cloudevents", None),
    ("LLMLB_USAGE_ON_FAILURE", "refuse", None),
    ("LLMLB_USAGE_ALLOW_HTTP", "true", None),
    ("LLMLB_USAGE_ARCHIVE_MAX_AGE", "90d", None),
    ("LLMLB_USAGE_ARCHIVE_MAX_SIZE", "20GiB", None),
    ("LLMLB_USAGE_FAILED_MAX_AGE", "36h", None),
    ("LLMLB_USAGE_FAILED_MAX_SIZE", "500MiB", None),
    ("LLMLB_FLEET_STORE", "redis://h:1/2", None),
    ("LLMLB_FLEET_TTL", "10s", None),
];

#[test]
fn every_variable_sets_its_setting() {
    let mut run = LoadCase::new();
    for (variable, value, _) in VARIABLES {
        run = run.env(variable, value);
    }
    let config = run.good();
    let shown: HashMap<_, _> = config
        .effective()
        .into_iter()
        .map(|line| (line.name, line.value))
        .collect();
    for setting in settings::all() {
        let Some(variable) = setting.variable() else {
            continue;
        };
        let row = VARIABLES.iter().find(|(name, ..)| *name == variable);
        let Some((_, given, expected)) = row else {
            panic!("{variable} is missing in this test");
        };
        assert_eq!(
            shown[setting.name()],
            expected.unwrap_or(given),
            "{variable}"
        );
    }
}

#[test]
fn flags_of_serve_set_their_settings() {
    let config = LoadCase::new()
        .flags(Flags {
            host: Some("::".into()),
            port: Some(0),
            allow_public: true,
            ..flags_with_backends(&["http://a", "http://b"])
        })
        .good();
    assert_eq!(config.server.host.to_string(), "::");
    assert_eq!(config.server.port, 0);
    assert!(config.server.allow_public);
    assert_eq!(config.backends.len(), 2);
    assert_eq!(config.origins.backends[1], Origin::Flag("--backend"));
}

#[test]
fn durations_and_sizes_are_parsed_in_all_units() {
    for (text, milliseconds) in [
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("24h", 86_400_000),
    ] {
        let config = LoadCase::new().env("LLMLB_CONNECT_TIMEOUT", text).good();
        assert_eq!(
            config.upstream.connect_timeout.as_millis(),
            milliseconds,
            "{text}"
        );
    }
    for (text, bytes) in [
        ("1", 1),
        ("\"1\"", 1),
        ("0x10", 16),
        ("\"64KiB\"", 65_536),
        ("\"64KB\"", 64_000),
        ("\"32MiB\"", 33_554_432),
        ("\"32MB\"", 32_000_000),
        ("\"1GiB\"", 1_073_741_824),
        ("\"1GB\"", 1_000_000_000),
        ("\"2GiB\"", 2_147_483_648),
    ] {
        let config = LoadCase::with_file(&format!("server.max_body = {text}\n")).good();
        assert_eq!(config.server.max_body, bytes, "{text}");
    }
    for text in [
        "",
        "s",
        "5",
        "1.5s",
        "5 s",
        "5S",
        "-5s",
        "5sec",
        "99999999999999999999h",
    ] {
        let file = format!("[upstream]\nconnect_timeout = \"{text}\"\n");
        assert!(LoadCase::with_file(&file).read().is_err(), "{text}");
    }
    for text in [
        "",
        "KiB",
        "1.5MiB",
        "1 MiB",
        "1mib",
        "-1",
        "3GiB",
        "99999999999999999999GiB",
    ] {
        let file = format!("[server]\nmax_body = \"{text}\"\n");
        assert!(LoadCase::with_file(&file).read().is_err(), "{text}");
    }
}
