//! W3C Trace Context: `traceparent` and `tracestate` of clients, and the ids of a request's own spans.

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// Names of the fields for searches: a name as text would be parsed by each search.
static PARENT_FIELD: HeaderName = HeaderName::from_static(TRACEPARENT);
static STATE_FIELD: HeaderName = HeaderName::from_static(TRACESTATE);
/// Length of a `traceparent` of version 00.
const LENGTH: usize = 55;
/// Maximum length of all `tracestate` fields, and of their members.
const MAX_STATE: usize = 512;
const MAX_MEMBERS: usize = 32;
/// Flag of a trace that is recorded.
const SAMPLED: u8 = 1;

pub(crate) type SpanId = [u8; 8];

/// A valid `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceParent {
    trace_id: [u8; 16],
    span_id: SpanId,
    flags: u8,
}

/// Trace of a request: the ids of its span and of the spans of its attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpanContext {
    pub(crate) trace_id: [u8; 16],
    /// Span of the client; `None` if the client sent no trace.
    pub(crate) parent: Option<SpanId>,
    flags: u8,
    /// Number from which the ids of the spans are derived.
    seed: u64,
}

impl TraceParent {
    /// Returns the trace of a client. `None` if the client sent none, a malformed one, or several.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(&PARENT_FIELD).iter();
        let value = values.next().filter(|_| values.next().is_none())?;
        Self::parse(value.as_bytes())
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let (known, rest) = value.split_at_checked(LENGTH)?;
        let separators = [2, 35, 52].map(|place| known[place]);
        let version = hex::<1>(&known[..2])?[0];
        // Later versions may append fields. Version 255 is invalid.
        let is_version = match version {
            0 => rest.is_empty(),
            255 => false,
            _ => rest.is_empty() || rest[0] == b'-',
        };
        let parent = Self {
            trace_id: hex(&known[3..35])?,
            span_id: hex(&known[36..52])?,
            flags: hex::<1>(&known[53..55])?[0],
        };
        let is_valid = is_version
            && separators == *b"---"
            && parent.trace_id != [0; 16]
            && parent.span_id != [0; 8];
        is_valid.then_some(parent)
    }
}

impl SpanContext {
    /// Returns the trace of a request that has this parent. `None` if the trace is not recorded: then the
    /// request has no spans. `id` is unique among all requests.
    pub(crate) fn new(parent: Option<TraceParent>, id: &Uuid) -> Option<Self> {
        let (_, seed) = id.as_u64_pair();
        match parent {
            Some(parent) if parent.flags & SAMPLED == 0 => None,
            Some(parent) => Some(Self {
                trace_id: parent.trace_id,
                parent: Some(parent.span_id),
                flags: parent.flags,
                seed,
            }),
            None => Some(Self {
                trace_id: *id.as_bytes(),
                parent: None,
                flags: SAMPLED,
                seed,
            }),
        }
    }

    /// Id of the request's own span.
    #[cfg_attr(
        not(feature = "otlp"),
        expect(dead_code, reason = "only the exporter of traces reads it")
    )]
    pub(crate) fn server_span(&self) -> SpanId {
        span_id(self.seed)
    }

    /// Id of the span of an attempt.
    pub(crate) fn attempt_span(&self, number: u8) -> SpanId {
        span_id(self.seed.wrapping_add(u64::from(number) + 1))
    }

    /// Value of `traceparent` for the backend of an attempt.
    pub(crate) fn traceparent(&self, number: u8) -> [u8; LENGTH] {
        let mut value = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&self.trace_id, &mut value[3..35]);
        write_hex(&self.attempt_span(number), &mut value[36..52]);
        write_hex(&[self.flags & SAMPLED], &mut value[53..55]);
        value
    }
}

/// Decides which trace fields of a client are forwarded. Malformed ones are not: backends disagree about them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TraceFields {
    /// True if llmlb sends a `traceparent` of its own.
    is_replaced: bool,
}

impl TraceFields {
    pub(crate) fn new(is_replaced: bool) -> Self {
        Self { is_replaced }
    }

    /// True if a field with this name, in lower case, is forwarded, as far as traces are concerned.
    pub(crate) fn forwards(self, name: &str, headers: &HeaderMap) -> bool {
        match name {
            TRACEPARENT => !self.is_replaced && TraceParent::of(headers).is_some(),
            TRACESTATE => TraceParent::of(headers).is_some() && is_state(headers),
            _ => true,
        }
    }
}

/// True if the `tracestate` fields are well-formed.
fn is_state(headers: &HeaderMap) -> bool {
    let values = || {
        headers
            .get_all(&STATE_FIELD)
            .iter()
            .map(HeaderValue::as_bytes)
    };
    let members = || {
        values()
            .flat_map(|value| value.split(|byte| *byte == b','))
            .map(<[u8]>::trim_ascii)
            .filter(|member| !member.is_empty())
    };
    let is_member = |member: &[u8]| {
        let end = member.iter().position(|byte| *byte == b'=');
        let is_plain = |byte: &u8| (b' '..=b'~').contains(byte);
        let is_key = |byte: &u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(byte)
        };
        end.is_some_and(|end| {
            (1..=256).contains(&end)
                && member[..end].iter().all(is_key)
                && member[end + 1..].iter().all(is_plain)
        })
    };
    values().map(<[u8]>::len).sum::<usize>() <= MAX_STATE
        && members().count() <= MAX_MEMBERS
        && members().all(is_member)
}

/// Returns an id that is not 0, from a number that is unique.
fn span_id(seed: u64) -> SpanId {
    // The finalizer of SplitMix64, which maps different numbers to different ids.
    let mut id = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    id = (id ^ (id >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    id = (id ^ (id >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (id ^ (id >> 31)).max(1).to_be_bytes()
}

/// Decodes lower-case hexadecimal digits.
fn hex<const LENGTH: usize>(text: &[u8]) -> Option<[u8; LENGTH]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, rest) = text.as_chunks::<2>();
    let mut bytes = [0; LENGTH];
    if pairs.len() != LENGTH || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

fn write_hex(bytes: &[u8], text: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(text.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn only_one_well_formed_traceparent_counts() {
        let parent = |fields: &[&str]| {
            let fields: Vec<_> = fields.iter().map(|value| (TRACEPARENT, *value)).collect();
            TraceParent::of(&headers(&fields))
        };
        assert!(parent(&[VALID]).is_some());
        assert!(parent(&[&VALID.replacen("00", "cc", 1)]).is_some());
        assert!(parent(&[&format!("{}-more", VALID.replacen("00", "01", 1))]).is_some());
        for malformed in [
            "",
            "00",
            "x",
            &VALID.to_uppercase(),
            &VALID.replacen("00", "ff", 1),
            &format!("{VALID}-more"),
            &format!("{}more", VALID.replacen("00", "01", 1)),
            &VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &VALID.replace("b7ad6b7169203331", &"0".repeat(16)),
            &VALID.replacen('-', "_", 1),
            &VALID[..54],
        ] {
            assert_eq!(parent(&[malformed]), None, "{malformed}");
        }
        assert_eq!(parent(&[VALID, VALID]), None);
        assert_eq!(parent(&[]), None);
    }

    #[test]
    fn tracestate_is_forwarded_only_if_both_fields_are_well_formed() {
        let forwards = |parent: &str, state: &str| {
            let headers = headers(&[(TRACEPARENT, parent), (TRACESTATE, state)]);
            TraceFields::new(false).forwards(TRACESTATE, &headers)
        };
        for state in [
            "a=1",
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
            "a@b=x y, c/d=",
            "",
        ] {
            assert!(forwards(VALID, state), "{state}");
        }
        let long = format!("a={}", "x".repeat(600));
        let many = (0..33)
            .map(|n| format!("k{n}=1"))
            .collect::<Vec<_>>()
            .join(",");
        for state in ["a", "=1", "A=1", "a b=1", &long, &many] {
            assert!(!forwards(VALID, state), "{state}");
        }
        assert!(!forwards("x", "a=1"));
        let alone = headers(&[(TRACESTATE, "a=1")]);
        assert!(!TraceFields::new(false).forwards(TRACESTATE, &alone));
    }

    #[test]
    fn every_attempt_has_a_span_of_its_own_in_the_trace_of_the_client() {
        let id = Uuid::now_v7();
        let parent = TraceParent::parse(VALID.as_bytes());
        let context = SpanContext::new(parent, &id).unwrap();
        let spans = [
            context.server_span(),
            context.attempt_span(0),
            context.attempt_span(1),
        ];
        assert!(spans.iter().all(|span| *span != [0; 8]));
        assert!(spans[0] != spans[1] && spans[1] != spans[2] && spans[0] != spans[2]);
        let sent = context.traceparent(1);
        let sent = TraceParent::parse(&sent).unwrap();
        assert_eq!(sent.trace_id, parent.unwrap().trace_id);
        assert_eq!(sent.span_id, spans[2]);
        assert_eq!(sent.flags, SAMPLED);
        let not_sampled = TraceParent::parse(VALID.replace("-01", "-00").as_bytes());
        assert_eq!(SpanContext::new(not_sampled, &id), None);
        assert_eq!(
            SpanContext::new(None, &id).unwrap().trace_id,
            *id.as_bytes()
        );
    }
}
