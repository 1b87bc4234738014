//! The event that answers a question for usage: it has a `usage` and no choices.
//!
//! A client that did not ask does not see it. But a backend may put more into its last event, such
//! as llama.cpp its `timings`, and without our question the last one would have been another. So
//! what rides there goes on without the usage. It then has a choice that says nothing, as the last
//! event of such a client has: many read the first of the choices unseen.

use std::ops::Range;

use super::super::json::{Choices, Finder};
use super::lines::lines;
use crate::endpoint::Api;
use crate::json;

/// What is in every event of a stream. `obfuscation` makes all events equally long.
const COMMON: [&str; 9] = [
    "id",
    "object",
    "created",
    "model",
    "choices",
    "usage",
    "system_fingerprint",
    "service_tier",
    "obfuscation",
];

/// Bytes that do not go on, and what goes on instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) place: Range<usize>,
    pub(super) with: &'static str,
}

impl Cut {
    /// Takes these bytes out.
    pub(super) fn out(place: Range<usize>) -> Self {
        Self { place, with: "" }
    }

    /// The part of it before a place, and the part from there on, which begins anew there.
    pub(super) fn split(self, at: usize) -> (Option<Self>, Option<Self>) {
        let Range { start, end } = self.place;
        if end <= at {
            return (Some(self), None);
        }
        let after = start.max(at) - at..end - at;
        if start < at {
            let place = start..at;
            (Some(Self { place, ..self }), Some(Self::out(after)))
        } else {
            let place = after;
            (None, Some(Self { place, ..self }))
        }
    }
}

/// Whether this is such an event, as far as it goes.
pub(super) fn is_alone(finder: &Finder) -> bool {
    finder.facts().has_usage && finder.facts().choices == Choices::None
}

/// A value that says nothing.
fn is_nothing(value: &[u8]) -> bool {
    matches!(value, b"null" | b"{}" | b"[]" | b"\"\"")
}

/// What to cut out of such an event, if something rides with its usage; in their order.
pub(super) fn without_usage(api: Api, event: &[u8]) -> Option<[Cut; 2]> {
    let (base, data) = only_data(event)?;
    let (mut usage, mut choices) = (None, None);
    let (mut has_riders, mut is_told_twice) = (false, false);
    let (mut count, mut before) = (0, 0);
    json::fields(data, |name, value| {
        match name {
            b"usage" => {
                is_told_twice |= usage.is_some();
                usage = Some((count, before, value.clone()));
            }
            b"choices" => choices = Some(value.clone()),
            name => {
                has_riders |= !COMMON.iter().any(|common| name == common.as_bytes())
                    && !is_nothing(&data[value.clone()]);
            }
        }
        count += 1;
        before = value.end;
    })
    .ok()?;
    let ((number, before, usage), choices) = usage.zip(choices)?;
    if !has_riders || is_told_twice {
        return None;
    }
    let usage = if number == 0 {
        // With the comma behind it; it is not alone.
        let brace = data.iter().position(|byte| *byte == b'{')?;
        let comma = data[usage.end..].iter().position(|byte| *byte == b',')?;
        brace + 1..usage.end + comma + 1
    } else {
        before..usage.end
    };
    let nothing = match api {
        Api::Completions => r#"[{"index":0,"text":"","finish_reason":null}]"#,
        _ => r#"[{"index":0,"delta":{},"finish_reason":null}]"#,
    };
    let mut cuts = [
        Cut::out(base + usage.start..base + usage.end),
        Cut {
            place: base + choices.start..base + choices.end,
            with: nothing,
        },
    ];
    cuts.sort_by_key(|cut| cut.place.start);
    Some(cuts)
}

/// The data of an event and where it stands, if it is on one line.
fn only_data(event: &[u8]) -> Option<(usize, &[u8])> {
    let mut found = None;
    let mut lines = lines(event);
    let mut begin = 0;
    while let Some(line) = lines.next() {
        if let Some(data) = line.strip_prefix(b"data:") {
            if found.is_some() {
                return None;
            }
            found = Some((begin + line.len() - data.len(), data));
        }
        begin = event.len() - lines.left();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(api: Api, event: &str) -> Option<String> {
        let mut out = event.to_owned();
        for cut in without_usage(api, event.as_bytes())?.iter().rev() {
            out.replace_range(cut.place.clone(), cut.with);
        }
        Some(out)
    }

    #[test]
    fn what_rides_goes_on() {
        for (event, expected) in [
            (
                r#"data: {"choices":[],"id":"c","usage":{"a":{}},"timings":{"n":1}}"#,
                r#"data: {"choices":[{"index":0,"delta":{},"finish_reason":null}],"id":"c","timings":{"n":1}}"#,
            ),
            (
                r#"data: { "usage" : {}, "timings" : 1, "choices" : [ ] }"#,
                r#"data: { "timings" : 1, "choices" : [{"index":0,"delta":{},"finish_reason":null}] }"#,
            ),
            (
                "id: 7\r\ndata:{\"timings\":1,\"choices\":[] , \"usage\":{}}\r\nretry: 5\r\n\r\n",
                "id: 7\r\ndata:{\"timings\":1,\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":null}]}\r\nretry: 5\r\n\r\n",
            ),
        ] {
            assert_eq!(passed(Api::Chat, event).unwrap(), expected);
        }
        let event = r#"data: {"choices":[],"usage":{},"x":1}"#;
        let expected = r#"data: {"choices":[{"index":0,"text":"","finish_reason":null}],"x":1}"#;
        assert_eq!(passed(Api::Completions, event).unwrap(), expected);
    }

    #[test]
    fn what_all_events_have_does_not_ride() {
        for event in [
            r#"data: {"id":"","object":"","created":1,"model":"m","choices":[],"usage":{}}"#,
            r#"data: {"choices":[],"usage":{},"service_tier":"x","system_fingerprint":"x"}"#,
            r#"data: {"choices":[],"usage":{},"obfuscation":"abc"}"#,
            r#"data: {"choices":[],"usage":{},"timings":null}"#,
            r#"data: {"choices":[],"usage":{},"usage":{},"timings":1}"#,
            r#"data: {"usage":{},"usage":{},"timings":1,"choices":[]}"#,
            "data: {\"choices\":[],\ndata: \"usage\":{},\"timings\":1}",
            r#"data: {"choices":[],"usage":{},"timings":1"#,
        ] {
            assert_eq!(passed(Api::Chat, event), None, "{event}");
        }
    }

    #[test]
    fn a_cut_may_be_cut() {
        let cut = |place| Cut { place, with: "x" };
        assert_eq!(cut(3..5).split(5), (Some(cut(3..5)), None));
        assert_eq!(cut(3..5).split(3), (None, Some(cut(0..2))));
        assert_eq!(cut(3..5).split(1), (None, Some(cut(2..4))));
        let both = (Some(cut(3..4)), Some(Cut::out(0..1)));
        assert_eq!(cut(3..5).split(4), both);
    }
}
