//! Recognizes and hides the usage event: the event that a backend sends for `include_usage`, with
//! `usage` and empty `choices`.
//!
//! The event is hidden from a client that did not request it. But a backend may put other fields
//! into its last event, such as llama.cpp's `timings`. Without `include_usage` they would be in an
//! event with choices. So such an event is forwarded without `usage`, and with one empty choice:
//! many clients read `choices[0]` without a check.

use std::ops::Range;

use super::super::json::{Choices, Finder};
use super::lines::lines;
use crate::endpoint::Api;
use crate::json;

/// Fields that every event of a stream has. A usage event without other fields is removed from the
/// stream as a whole, because it contains nothing else for the client. `obfuscation` pads all
/// events to the same length.
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

/// Range of a chunk that is not forwarded, and the text that replaces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Splice {
    pub(super) range: Range<usize>,
    pub(super) with: &'static str,
}

impl Splice {
    /// A splice without replacement.
    pub(super) fn removal(range: Range<usize>) -> Self {
        Self { range, with: "" }
    }

    /// Splits the splice in two at offset `at`, where one chunk ends and the next one starts,
    /// because each chunk is edited by its own list. The range of the second splice counts from the
    /// start of the second chunk.
    pub(super) fn split(self, at: usize) -> (Option<Self>, Option<Self>) {
        let Range { start, end } = self.range;
        if end <= at {
            return (Some(self), None);
        }
        let after = start.max(at) - at..end - at;
        if start < at {
            let range = start..at;
            (Some(Self { range, ..self }), Some(Self::removal(after)))
        } else {
            let range = after;
            (None, Some(Self { range, ..self }))
        }
    }
}

/// True if the event, as far as it was read, has `usage` and empty `choices`, so that it is hidden
/// from a client that did not request usage.
pub(super) fn is_usage_event(finder: &Finder) -> bool {
    finder.facts().has_usage && finder.facts().choices == Choices::Empty
}

/// True for `null`, an empty object, list or string. A field with such a value has nothing for the
/// client, so it does not prevent the removal of a usage event.
fn is_empty_value(value: &[u8]) -> bool {
    matches!(value, b"null" | b"{}" | b"[]" | b"\"\"")
}

/// Returns the splices, in ascending order, that remove only `usage` from a usage event with other fields
/// for the client. `None` if the whole event can be removed.
pub(super) fn without_usage(api: Api, event: &[u8]) -> Option<[Splice; 2]> {
    let (base, data) = only_data(event)?;
    let (mut usage, mut choices) = (None, None);
    let (mut has_other_fields, mut is_duplicate) = (false, false);
    let (mut count, mut before) = (0, 0);
    json::fields(data, |name, value| {
        match name {
            b"usage" => {
                is_duplicate |= usage.is_some();
                usage = Some((count, before, value.clone()));
            }
            b"choices" => choices = Some(value.clone()),
            name => {
                has_other_fields |= !COMMON.iter().any(|common| name == common.as_bytes())
                    && !is_empty_value(&data[value.clone()]);
            }
        }
        count += 1;
        before = value.end;
    })
    .ok()?;
    let ((number, before, usage), choices) = usage.zip(choices)?;
    if !has_other_fields || is_duplicate {
        return None;
    }
    let usage = if number == 0 {
        // `usage` is the first field, and `choices` follows. Remove the comma between them,
        // otherwise the event would be invalid JSON.
        let brace = data.iter().position(|byte| *byte == b'{')?;
        let comma = data[usage.end..].iter().position(|byte| *byte == b',')?;
        brace + 1..usage.end + comma + 1
    } else {
        before..usage.end
    };
    let empty_choice = match api {
        Api::Completions => r#"[{"index":0,"text":"","finish_reason":null}]"#,
        _ => r#"[{"index":0,"delta":{},"finish_reason":null}]"#,
    };
    let mut splices = [
        Splice::removal(base + usage.start..base + usage.end),
        Splice {
            range: base + choices.start..base + choices.end,
            with: empty_choice,
        },
    ];
    splices.sort_by_key(|splice| splice.range.start);
    Some(splices)
}

/// Returns the data of an event and its offset. `None` if the event has several `data:` lines,
/// which are not edited.
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
        begin = event.len() - lines.remaining();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(api: Api, event: &str) -> Option<String> {
        let mut out = event.to_owned();
        for splice in without_usage(api, event.as_bytes())?.iter().rev() {
            out.replace_range(splice.range.clone(), splice.with);
        }
        Some(out)
    }

    #[test]
    fn event_with_other_fields_is_forwarded_without_usage() {
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
    fn event_with_common_or_empty_fields_only_is_removed() {
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
    fn splice_is_split_at_an_offset() {
        let splice = |range| Splice { range, with: "x" };
        assert_eq!(splice(3..5).split(5), (Some(splice(3..5)), None));
        assert_eq!(splice(3..5).split(3), (None, Some(splice(0..2))));
        assert_eq!(splice(3..5).split(1), (None, Some(splice(2..4))));
        let both = (Some(splice(3..4)), Some(Splice::removal(0..1)));
        assert_eq!(splice(3..5).split(4), both);
    }
}
