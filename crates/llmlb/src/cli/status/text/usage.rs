//! Text output of `llmlb status` about the delivery of usage records.

use std::time::{Duration, SystemTime};

use super::plain;
use crate::cli::status_client::UsageStatus;
use crate::cli::time;

/// Formats the state of the usage exporter in one line, and each problem of the exporter on a line
/// of its own.
pub(super) fn lines(usage: &UsageStatus, now: SystemTime) -> Vec<String> {
    let recorded = usage.recorded.map(|count| format!("{count} recorded"));
    let mut words: Vec<_> = recorded.into_iter().collect();
    words.push(match &usage.to {
        Some(to) => format!("sent to {}", plain(to)),
        None => "kept in archive/".to_owned(),
    });
    let last = usage.last_delivery.as_deref().map(|at| ago(at, now));
    words.push(match (last, &usage.to) {
        (Some(ago), Some(_)) => format!("last delivery {ago}"),
        (Some(ago), None) => format!("last archived {ago}"),
        (None, Some(_)) => "no delivery since the start".to_owned(),
        (None, None) => "nothing archived since the start".to_owned(),
    });
    match usage.waiting {
        None | Some(0) => {}
        Some(1) => words.push("1 batch pending".to_owned()),
        Some(count) => words.push(format!("{count} batches pending")),
    }
    match usage.failed {
        None | Some(0) => {}
        Some(1) => words.push("1 file in failed/ (`llmlb usage failed`)".to_owned()),
        Some(count) => words.push(format!("{count} files in failed/ (`llmlb usage failed`)")),
    }
    if let Some(count) = usage.lost.filter(|count| *count > 0) {
        words.push(format!("{count} records lost since the start"));
    }
    let mut lines = vec![format!("  {:<10} {}", "usage", words.join(", "))];
    let large = usage.kept.iter().flat_map(|kept| &kept.large);
    let notes = usage.error.iter().chain(large);
    lines.extend(notes.map(|note| format!("    {}", plain(note))));
    lines
}

/// Formats the time that has passed since an RFC 3339 timestamp, such as `5 min ago`.
pub(super) fn ago(at: &str, now: SystemTime) -> String {
    let Ok(at) = at.parse::<jiff::Timestamp>() else {
        return "at a time that the server reported in an invalid format".to_owned();
    };
    match now.duration_since(at.into()).unwrap_or_default() {
        passed if passed < Duration::from_secs(1) => "just now".to_owned(),
        passed => format!("{} ago", time::span(passed)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::tests::now;
    use super::*;

    fn usage(json: &str) -> Vec<String> {
        lines(&serde_json::from_str(json).unwrap(), now())
    }

    #[test]
    fn usage_is_one_line_unless_there_is_a_problem() {
        assert_eq!(
            usage(
                r#"{"to":"https://b.example/u","last_delivery":"2026-01-30T12:09:48Z","waiting":0}"#
            ),
            ["  usage      sent to https://b.example/u, last delivery 12 s ago"]
        );
        assert_eq!(
            usage(r#"{"to":null,"waiting":0,"failed":0}"#),
            ["  usage      kept in archive/, nothing archived since the start"]
        );
        assert_eq!(
            usage(
                r#"{"to":"http://[::1]/","last_delivery":"2026-01-30T12:10:00Z","waiting":2,
                    "failed":1,"error":"it said:\u001b[2J 503"}"#
            ),
            [
                "  usage      sent to http://[::1]/, last delivery just now, 2 batches pending, \
                 1 file in failed/ (`llmlb usage failed`)",
                "    it said: [2J 503",
            ]
        );
        assert_eq!(
            usage(
                r#"{"waiting":0,"kept":{"archive":{"files":2,"bytes":9},"large":["archive/ has 9"]}}"#
            ),
            [
                "  usage      kept in archive/, nothing archived since the start",
                "    archive/ has 9",
            ]
        );
        assert_eq!(
            usage(r#"{"last_delivery":"long ago","waiting":1}"#),
            [
                "  usage      kept in archive/, last archived at a time that the server reported in an \
                 invalid format, 1 batch pending"
            ]
        );
    }
}
