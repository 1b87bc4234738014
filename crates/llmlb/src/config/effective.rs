//! The effective settings as text, with their origins, for `llmlb check`.

use super::settings::{self, Setting};
use super::{Config, Origin, Receiver, values};
use spool::Keep;

/// Effective value of one setting.
pub(crate) struct Effective<'a> {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) origin: &'a Origin,
}

impl Config {
    pub(crate) fn effective(&self) -> Vec<Effective<'_>> {
        let (server, upstream, usage) = (&self.server, &self.upstream, &self.usage);
        let line = |setting: &Setting, value: String| Effective {
            name: setting.name,
            value,
            origin: self.origins.origin(setting),
        };
        let duration = values::duration_in_words;
        let listed = |list: &str| if list.is_empty() { "-" } else { list }.to_owned();
        vec![
            line(&settings::HOST, server.host.to_string()),
            line(&settings::PORT, server.port.to_string()),
            line(&settings::ALLOW_PUBLIC, server.allow_public.to_string()),
            line(&settings::HOSTS, listed(&server.hosts.join(", "))),
            line(
                &settings::TRUSTED_PROXIES,
                listed(&server.trusted_proxies.to_string()),
            ),
            line(&settings::WORKERS, server.workers.to_string()),
            line(&settings::DRAIN_TIMEOUT, duration(server.drain_timeout)),
            line(&settings::MAX_BODY, values::size_in_words(server.max_body)),
            line(
                &settings::BODY_MEMORY,
                values::size_in_words(server.body_memory),
            ),
            line(&settings::BODY_TIMEOUT, duration(server.body_timeout)),
            line(
                &settings::MIN_BODY_RATE,
                values::size_in_words(server.min_body_rate),
            ),
            line(&settings::SEND_TIMEOUT, duration(server.send_timeout)),
            line(&settings::STALL_TIMEOUT, duration(server.stall_timeout)),
            line(
                &settings::MAX_CONNECTIONS,
                or_derived(server.max_connections),
            ),
            line(
                &settings::MAX_CONNECTIONS_PER_ADDRESS,
                or_derived(server.max_connections_per_address),
            ),
            line(
                &settings::CLIENT_IDLE_TIMEOUT,
                duration(server.idle_timeout),
            ),
            line(
                &settings::MAX_HEADER,
                values::size_in_words(server.max_header),
            ),
            line(&settings::MAX_STREAMS, server.max_streams.to_string()),
            line(&settings::TUNNEL_IDLE, duration(server.tunnel_idle)),
            line(&settings::MAX_RESETS, server.max_resets.to_string()),
            line(&settings::QUEUE, server.queue.to_string()),
            line(&settings::QUEUE_TIMEOUT, duration(server.queue_timeout)),
            line(
                &settings::UNKNOWN_ENDPOINTS,
                server.unknown_endpoints.name().to_owned(),
            ),
            line(
                &settings::CONNECT_TIMEOUT,
                duration(upstream.connect_timeout),
            ),
            line(
                &settings::FIRST_BYTE_TIMEOUT,
                duration(upstream.first_byte_timeout),
            ),
            line(&settings::IDLE_TIMEOUT, duration(upstream.idle_timeout)),
            line(
                &settings::FORWARD_HEADERS,
                upstream.forward_headers.to_string(),
            ),
            line(&settings::PROBE_INTERVAL, duration(upstream.probe_interval)),
            line(&settings::PROBE_TIMEOUT, duration(upstream.probe_timeout)),
            line(&settings::MAX_MODELS, upstream.max_models.to_string()),
            line(&settings::LOG_REQUESTS, self.log.requests.to_string()),
            line(&settings::USAGE_ENABLED, usage.enabled.to_string()),
            line(
                &settings::USAGE_URL,
                usage.url.as_ref().map_or("-", Receiver::shown).to_owned(),
            ),
            line(&settings::USAGE_TOKEN_ENV, usage.token_env.clone()),
            line(&settings::USAGE_EVERY, duration(usage.every)),
            line(&settings::USAGE_FORMAT, usage.format.name().to_owned()),
            line(
                &settings::USAGE_ON_FAILURE,
                usage.on_failure.name().to_owned(),
            ),
            line(&settings::USAGE_ALLOW_HTTP, usage.allow_http.to_string()),
            line(&settings::USAGE_ARCHIVE_MAX_AGE, max_age(&usage.archive)),
            line(&settings::USAGE_ARCHIVE_MAX_SIZE, max_size(&usage.archive)),
            line(&settings::USAGE_FAILED_MAX_AGE, max_age(&usage.failed)),
            line(&settings::USAGE_FAILED_MAX_SIZE, max_size(&usage.failed)),
        ]
    }
}

fn max_age(keep: &Keep) -> String {
    keep.max_age.map_or_else(no_limit, values::age_in_words)
}

fn max_size(keep: &Keep) -> String {
    let bytes = |bytes| values::size_in_words(usize::try_from(bytes).unwrap_or(usize::MAX));
    keep.max_bytes.map_or_else(no_limit, bytes)
}

fn no_limit() -> String {
    "no limit".to_owned()
}

/// Formats a number that is derived from the limit of open files unless it is set.
fn or_derived(number: Option<usize>) -> String {
    number.map_or_else(|| "by ulimit -Hn".to_owned(), |number| number.to_string())
}
