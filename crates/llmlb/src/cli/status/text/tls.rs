//! Text output of `llmlb status` about a server's certificate.

use std::time::{Duration, SystemTime};

use super::plain;
use crate::cli::status_client::TlsStatus;
use crate::cli::time;

/// Maximum number of the certificate's names that are shown.
const MAX_NAMES: usize = 3;

/// Formats the server's certificate, and a problem with its files on a line of its own.
pub(super) fn lines(tls: &TlsStatus, now: SystemTime) -> Vec<String> {
    let mut names: Vec<_> = tls
        .names
        .iter()
        .take(MAX_NAMES)
        .map(|name| plain(name))
        .collect();
    if tls.names.len() > MAX_NAMES {
        names.push("…".to_owned());
    }
    let mut words = vec![format!("certificate for {}", names.join(", "))];
    words.extend(tls.not_after.as_deref().map(|end| validity(end, now)));
    if tls.client_certificates == Some(true) {
        words.push("client certificates required".to_owned());
    }
    let mut lines = vec![format!("  {:<10} {}", "tls", words.join(", "))];
    let error = tls.error.iter();
    lines.extend(error.map(|why| format!("    not replaced: {}", plain(why))));
    lines
}

/// Formats the time until the certificate expires, or since it expired.
fn validity(end: &str, now: SystemTime) -> String {
    let Ok(at) = end.parse::<jiff::Timestamp>() else {
        return "expires at a time that the server reported in an invalid format".to_owned();
    };
    let at = SystemTime::from(at);
    match (at.duration_since(now), now.duration_since(at)) {
        (Ok(left), _) if left > Duration::ZERO => format!("expires in {}", time::span(left)),
        (_, passed) => format!("EXPIRED {} ago", time::span(passed.unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::now;
    use super::*;

    fn tls(json: &str) -> Vec<String> {
        lines(&serde_json::from_str(json).unwrap(), now())
    }

    #[test]
    fn certificate_is_one_line_unless_there_is_a_problem() {
        assert_eq!(
            tls(r#"{"names":["llm.example.com","10.0.0.5"],"not_after":"2026-02-01T12:10:00Z"}"#),
            ["  tls        certificate for llm.example.com, 10.0.0.5, expires in 2 days"]
        );
        assert_eq!(
            tls(
                r#"{"names":["a","b","c","d"],"not_after":"2026-01-30T12:09:50Z",
                    "client_certificates":true,"error":"the key\u001b does not match"}"#
            ),
            [
                "  tls        certificate for a, b, c, …, EXPIRED 10 s ago, client certificates \
                 required",
                "    not replaced: the key  does not match",
            ]
        );
    }
}
