//! `llmlb check --ask`: contacts the backends and the receiver of usage records. No request runs a model, and
//! none is billed.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Uri;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::exit::{self, Failure};
use super::output;
use crate::balance::Backend;
use crate::config::{BackendUrl, Config, Kind, Receiver};
use crate::descriptors::Division;
use crate::health::{self, Reply};
use crate::text;
use crate::upstream::{self, Connector};

/// Maximum number of models whose names are shown for a backend.
const MAX_NAMED: usize = 5;

/// Contacts all backends and the receiver of usage records, and prints a line for each. Returns
/// false if one of them failed.
pub(super) fn ask(config: &Config) -> Result<bool, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::new(exit::FAILED, format!("cannot start the runtime: {error}"))
        })?;
    let division = Division::for_this_process(&config.server, false)
        .map_err(|few| Failure::new(exit::FAILED, few.to_string()))?;
    let connector = Connector::new(config.upstream.connect_timeout, &division);
    let lines = runtime.block_on(contact(config, &connector));
    runtime.shutdown_background();
    let mut report = String::from("\ncontacted:");
    for (is_ok, line) in &lines {
        let word = if *is_ok { "ok  " } else { "FAIL" };
        // Ignore the result: writing into memory cannot fail.
        let _ = write!(report, "\n  {word}  {line}");
    }
    output::data(&report)?;
    Ok(lines.iter().all(|(is_ok, _)| *is_ok))
}

/// Result for one backend or receiver: true if it works, and the line that is printed about it.
type Line = (bool, String);

async fn contact(config: &Config, connector: &Connector) -> Vec<Line> {
    let limits = health::ProbeLimits {
        timeout: config.upstream.probe_timeout,
        models: config.upstream.max_models,
    };
    let mut replies = JoinSet::new();
    for (index, backend) in config.backends.iter().enumerate() {
        let (backend, connector) = (Backend::new(backend.clone()), connector.clone());
        replies.spawn(async move {
            let began = Instant::now();
            let reply = health::ask(&backend, &connector, limits).await;
            (index, began.elapsed(), reply)
        });
    }
    let mut found = replies.join_all().await;
    found.sort_by_key(|(index, ..)| *index);
    let mut lines = Vec::new();
    let mut served: HashSet<Arc<str>> = HashSet::new();
    for (index, took, reply) in found {
        let backend = &config.backends[index];
        let (name, url) = (&backend.name, &backend.url);
        let (is_ok, what) = match reply {
            Ok(reply) => {
                served.extend(reply.models.iter().map(|model| Arc::clone(&model.id)));
                (true, in_words(&reply, took))
            }
            Err(why) => (false, why),
        };
        lines.push((is_ok, format!("backend {name} at {url}: {what}")));
    }
    if lines.is_empty() {
        lines.push((
            true,
            "no backends: a server would search this machine".to_owned(),
        ));
    } else if lines.iter().all(|(is_ok, _)| *is_ok) {
        lines.extend(unserved(config, &served));
    }
    if let Some(receiver) = config.usage.url.as_ref().filter(|_| config.usage.enabled) {
        let what = contact_receiver(receiver, connector, limits.timeout).await;
        let is_ok = what.is_ok();
        let what = what.unwrap_or_else(|why| why);
        lines.push((is_ok, format!("usage.url {}: {what}", receiver.shown())));
    }
    lines
}

fn in_words(reply: &Reply, took: Duration) -> String {
    let kind = reply.kind.map_or("kind unknown", Kind::name);
    let names = reply.models.iter().map(|model| text::plain(&model.id));
    let named = names.take(MAX_NAMED).collect::<Vec<_>>().join(", ");
    let count = reply.models.len();
    let more = if count > MAX_NAMED { ", ..." } else { "" };
    let millis = took.as_millis();
    match count {
        0 => format!("{millis} ms, {kind}, no models"),
        1 => format!("{millis} ms, {kind}, 1 model: {named}"),
        count => format!("{millis} ms, {kind}, {count} models: {named}{more}"),
    }
}

/// Returns a warning for each alias whose models no backend serves.
fn unserved(config: &Config, served: &HashSet<Arc<str>>) -> Vec<Line> {
    let is_served = |name: &String| {
        served.contains(name.as_str()) || served.contains(format!("{name}:latest").as_str())
    };
    let aliases = config.aliases.iter();
    let unserved = aliases.filter(|alias| !alias.models.iter().any(is_served));
    unserved
        .map(|alias| {
            let (name, models) = (&alias.name, alias.models.join(", "));
            (false, format!("aliases.{name}: no backend serves {models}"))
        })
        .collect()
}

/// Connects to the receiver of usage records and sends HEAD, which no receiver counts as usage. Any
/// response below 500 shows that the receiver can be reached; receivers need not support HEAD.
async fn contact_receiver(
    receiver: &Receiver,
    connector: &Connector,
    limit: Duration,
) -> Result<String, String> {
    // Do not show the errors of the URL parsers: they may repeat a part of the URL, which may
    // contain a key.
    let invalid = || "the URL has no host that can be contacted".to_owned();
    let uri: Uri = receiver.url().parse().map_err(|_| invalid())?;
    let scheme = uri.scheme_str().ok_or_else(invalid)?;
    let authority = uri.authority().ok_or_else(invalid)?.as_str();
    let host = authority.rsplit('@').next().unwrap_or_default();
    let url = BackendUrl::parse(&format!("{scheme}://{host}")).map_err(|_| invalid())?;
    let head = format!(
        "HEAD {} HTTP/1.1\r\nhost: {host}\r\nuser-agent: llmlb/{}\r\n\r\n",
        uri.path(),
        env!("CARGO_PKG_VERSION")
    );
    let began = Instant::now();
    match timeout(limit, upstream::head(connector, &url, head.into())).await {
        Ok(Ok(status)) if status.is_server_error() => {
            Err(format!("the receiver responded {status} to HEAD"))
        }
        Ok(Ok(status)) => {
            let (millis, status) = (began.elapsed().as_millis(), status.as_u16());
            Ok(format!("{millis} ms, responded {status} to HEAD"))
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no response within {} s", limit.as_secs_f32())),
    }
}
