//! Fuzz targets for the parsers of requests.

#![expect(
    clippy::missing_panics_doc,
    reason = "a panic is how a fuzz target reports a broken property"
)]

use std::fmt;
use std::net::IpAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Uri};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::client::reported;
use super::parse::{Payload, in_json};
use super::{form, query};
use crate::config::{Network, Networks};
use crate::endpoint::Api;
use crate::endpoint::{self, PathError};
use crate::json;

/// Fields of a JSON object as serde_json reads them. The fuzz targets compare llmlb's scanner with
/// it.
struct ReferenceObject<'a>(Vec<(String, &'a str)>);

impl<'de> Deserialize<'de> for ReferenceObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ReferenceVisitor;
        impl<'de> Visitor<'de> for ReferenceVisitor {
            type Value = ReferenceObject<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    fields.push((name, value.get()));
                }
                Ok(ReferenceObject(fields))
            }
        }
        deserializer.deserialize_map(ReferenceVisitor)
    }
}

impl<'a> ReferenceObject<'a> {
    fn parse(data: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(data).ok()
    }

    /// Returns the names and values of all fields that have this name in any case, as a decoder
    /// that ignores case finds them.
    fn variants(&self, wanted: &str) -> Vec<(&str, &str)> {
        let is_variant = |name: &str| folded(name) == wanted;
        let fields = self.0.iter().filter(|(name, _)| is_variant(name));
        fields.map(|(name, value)| (&**name, *value)).collect()
    }

    /// True if the object has a field of this name at most once, and in no other case, so that all
    /// servers read the same value.
    fn is_plain(&self, name: &str) -> bool {
        match self.variants(name).as_slice() {
            [] => true,
            [(found, _)] => *found == name,
            _ => false,
        }
    }
}

fn folded(name: &str) -> String {
    name.to_uppercase().to_lowercase()
}

/// Returns the deepest nesting of brackets outside of strings. llmlb rejects bodies that are nested
/// too deep.
fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest, mut is_string, mut is_escaped) = (0_usize, 0, false, false);
    for byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            b'{' | b'[' if !is_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !is_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// Fuzz target: the scanner finds the same fields of a JSON object as serde_json.
pub fn json_fields(data: &[u8]) {
    let mut found = Vec::new();
    let scanned = json::fields(data, |name, at| found.push((name.to_vec(), at)));
    let mut end = 0;
    for (_, at) in &found {
        assert!(end <= at.start && at.start < at.end && at.end <= data.len());
        end = at.end;
    }
    let mut begun = 0;
    let _ = json::beginnings(data, |name, at| {
        if let Some((known, range)) = found.get(begun) {
            assert_eq!((known.as_slice(), range.start), (name, at));
        }
        begun += 1;
    });
    assert!(begun >= found.len());
    let Some(object) = ReferenceObject::parse(data) else {
        return;
    };
    if scanned.is_err() {
        assert!(depth(data) > 128, "a valid object is rejected");
        return;
    }
    assert_eq!(found.len(), object.0.len());
    for ((name, at), (wanted, value)) in found.iter().zip(&object.0) {
        assert_eq!(name.as_slice(), wanted.as_bytes());
        assert_eq!(&data[at.clone()], value.as_bytes());
        let text: Option<String> = serde_json::from_str(value).ok();
        assert_eq!(json::text(value.as_bytes()).as_deref(), text.as_deref());
    }
    // To save time, the meter scans a response only from its last `usage` field to its end. Such a
    // scan must find the same fields as the end of the full scan.
    for name in memchr::memmem::find_iter(data, b"\"usage\":") {
        let mut last = Vec::new();
        if json::last_fields(data, name, |name, at| last.push((name.to_vec(), at))).is_ok() {
            assert!(found.ends_with(&last));
        }
    }
}

const APIS: [Api; 12] = [
    Api::Chat,
    Api::Completions,
    Api::Responses,
    Api::Embeddings,
    Api::Messages,
    Api::Rerank,
    Api::Score,
    Api::Images,
    Api::OllamaChat,
    Api::OllamaGenerate,
    Api::OllamaEmbed,
    Api::Unknown,
];

/// Fuzz target: the model of a request is the only one that any parser finds, and the estimate of
/// its prompt cannot be lowered by further fields. The first byte of the input selects the API.
pub fn request_body(data: &[u8]) {
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let api = APIS[usize::from(*first) % APIS.len()];
    let parsed = in_json(body, api);
    let Some(object) = ReferenceObject::parse(body) else {
        return;
    };
    // A body in which `include_usage` appears twice or in another case must be rejected, because a
    // client could keep a backend from reporting usage.
    let options = object.variants("stream_options");
    let options = options
        .first()
        .and_then(|(_, value)| ReferenceObject::parse(value.as_bytes()));
    let is_unique = ["model", "stream", "stream_options"]
        .into_iter()
        .all(|name| object.is_plain(name))
        && options.is_none_or(|options| options.is_plain("include_usage"));
    let Ok(mut parsed) = parsed else {
        let has_model = object
            .variants("model")
            .iter()
            .all(|(_, value)| *value == "null" || serde_json::from_str::<String>(value).is_ok());
        assert!(!is_unique || !has_model || depth(body) > 128);
        return;
    };
    assert!(is_unique);
    let model = object.variants("model").first().map(|(_, value)| *value);
    let name: Option<String> = model.and_then(|value| serde_json::from_str(value).ok());
    assert_eq!(parsed.model, name.filter(|_| model != Some("null")));
    parsed.payload = Payload::Read(Bytes::copy_from_slice(body));
    rewritten(&parsed, &object, model.is_some_and(|value| value != "null"));
    // Add a field to the body. A field that llmlb ignores must not change the estimate, and any
    // other field must not lower it.
    let brace = body.iter().position(|byte| *byte == b'{').unwrap_or(0);
    let comma = if object.0.is_empty() { "" } else { "," };
    for (field, may_raise) in [
        (r#""ignored":"prompt""#, false),
        (r#""messages":[]"#, true),
        (r#""INPUT":"x""#, true),
        (r#""prompt":"""#, true),
    ] {
        let more = [
            &body[..=brace],
            field.as_bytes(),
            comma.as_bytes(),
            &body[brace + 1..],
        ];
        let more = in_json(&more.concat(), api).map(|parsed| parsed.prompt_tokens);
        let more = more.unwrap_or_default();
        let is_kept = if may_raise {
            more >= parsed.prompt_tokens
        } else {
            more == parsed.prompt_tokens
        };
        assert!(is_kept, "{field}: {more}, not {}", parsed.prompt_tokens);
    }
}

/// Checks that the body for a backend differs from the client's body only in the model's name and
/// in `include_usage`.
fn rewritten(parsed: &super::ParsedRequest, object: &ReferenceObject<'_>, has_model: bool) {
    let name = has_model.then_some("an\"other");
    let body = parsed.body_for(name, super::AskUsage::Yes);
    let body: Vec<u8> = body.map_or_else(Vec::new, |pieces| {
        let rest = pieces.rest.iter().rev();
        std::iter::once(&pieces.first)
            .chain(rest)
            .flatten()
            .copied()
            .collect()
    });
    let rewritten = ReferenceObject::parse(&body);
    assert!(rewritten.is_some(), "the rewritten body is not valid");
    let rewritten = rewritten.map(|object| object.0).unwrap_or_default();
    let others = |fields: &[(String, &str)]| -> Vec<(String, String)> {
        let others = fields.iter().filter(|(name, _)| name != "stream_options");
        let others = others.filter(|(name, _)| !has_model || name != "model");
        others
            .map(|(name, value)| (name.clone(), (*value).to_owned()))
            .collect()
    };
    assert_eq!(others(&rewritten), others(&object.0));
    if has_model {
        let model = rewritten.iter().find(|(name, _)| name == "model");
        assert_eq!(model.map(|(_, value)| *value), Some(r#""an\"other""#));
    }
}

/// Fuzz target: llmlb finds at most one model in a multipart form, and rejects a form that is
/// truncated or has a second field `model`. Otherwise a backend could serve another model than
/// llmlb bills. The first line of the input is the Content-Type.
pub fn multipart(data: &[u8]) {
    let line = memchr::memchr(b'\n', data).unwrap_or(data.len());
    let (head, body) = data.split_at(line);
    let body = body.get(1..).unwrap_or_default();
    let Some(boundary) = std::str::from_utf8(head)
        .ok()
        .and_then(|head| form::boundary(head).ok())
    else {
        return;
    };
    assert!(!boundary.is_empty() && boundary.is_ascii());
    let Ok(found) = form::model(body, boundary) else {
        return;
    };
    // A form without its final boundary must be rejected, and so must a form with a second field
    // `model`.
    let end = memchr::memmem::rfind(body, b"--").unwrap_or(0);
    assert!(form::model(&body[..end], boundary).is_err());
    let part =
        format!("--{boundary}\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nb\r\n");
    let more = [part.as_bytes(), body].concat();
    let Some(range) = found else {
        let at = part.len() - 3;
        let parts = memchr::memmem::find_iter(body, boundary).count();
        assert!(parts > 1000 || form::model(&more, boundary) == Ok(Some(at..at + 1)));
        return;
    };
    assert!(form::model(&more, boundary).is_err());
    let model = std::str::from_utf8(&body[range.clone()]);
    assert!(model.is_ok_and(|model| !model.is_empty() && !model.contains(char::is_control)));
    // After the model's name is replaced by another name, that name must be found at the same
    // position.
    let (before, after) = (&body[..range.start], &body[range.end..]);
    let other = [before, b"another", after].concat();
    let expected = Ok(Some(range.start..range.start + 7));
    assert!(boundary.contains("another") || form::model(&other, boundary) == expected);
}

/// Fuzz target: a path means one endpoint, and a known endpoint has one spelling. Otherwise a
/// backend could serve a path as another endpoint than llmlb meters. The first byte of the input
/// selects the method.
pub fn path(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let methods = [Method::POST, Method::GET, Method::DELETE, Method::OPTIONS];
    let method = &methods[usize::from(*first) % methods.len()];
    let Some(uri) = std::str::from_utf8(rest)
        .ok()
        .and_then(|text| text.parse::<Uri>().ok())
    else {
        return;
    };
    let text = uri.path();
    let _ = (endpoint::id_in(text), endpoint::model_in(text));
    let label = endpoint::label(text);
    assert_eq!(
        endpoint::label(&label),
        if label == "other" {
            "other".into()
        } else {
            label.clone()
        }
    );
    let (found, forwarded) = match endpoint::parse(method, text) {
        Ok(parsed) => parsed,
        Err(PathError::Misspelled(plain)) => {
            assert_ne!(plain, text);
            return;
        }
        Err(_) => return,
    };
    // The path that is forwarded to the backend must be parsed as the same endpoint.
    assert!(!forwarded.contains("//"));
    assert!(forwarded.len() <= 1 || !forwarded.ends_with('/'));
    assert_eq!(
        endpoint::parse(method, &forwarded),
        Ok((found, forwarded.clone()))
    );
    // A lenient server, which decodes escapes and ignores case, parameters and empty segments, must
    // find the same endpoint.
    let decoded = endpoint::percent_decoded(&forwarded);
    let segments = decoded
        .split(['/', '\\'])
        .map(|segment| segment.split(';').next());
    let segments: Vec<_> = segments
        .flatten()
        .filter(|segment| !segment.is_empty())
        .collect();
    let lenient = format!("/{}", folded(&segments.join("/")));
    if let Ok((parsed, plain)) = endpoint::parse(&Method::POST, &lenient)
        && parsed.is_inference
        && plain == lenient
    {
        assert_eq!(forwarded, lenient, "{text} may be served as {lenient}");
    }
}

/// Fuzz target: header fields that a client sends itself cannot change the client address that a
/// trusted proxy reports.
pub fn forwarded_for(data: &[u8]) {
    let Ok(sent) = HeaderValue::from_bytes(data) else {
        return;
    };
    let networks = ["127.0.0.1", "10.0.0.0/8"].map(Network::parse);
    let networks = Networks::new(networks.into_iter().flatten().collect());
    let peer = IpAddr::from([127, 0, 0, 1]);
    let client = IpAddr::from([203, 0, 113, 7]);
    for (name, added) in [
        ("x-forwarded-for", "203.0.113.7"),
        ("x-forwarded-for", "203.0.113.7:4711, 10.0.0.8"),
        ("forwarded", "for=203.0.113.7"),
        ("forwarded", "for=203.0.113.7;proto=http, for=10.0.0.8;by=x"),
    ] {
        // A proxy either appends its entry to the client's header field, or adds a second field.
        let appended = [data, b", ", added.as_bytes()].concat();
        let mut joined = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_bytes(&appended) {
            joined.append(name, value);
            assert_eq!(reported(&joined, peer, &networks), client);
        }
        let mut separate = HeaderMap::new();
        separate.append(name, sent.clone());
        separate.append(name, HeaderValue::from_static(added));
        assert_eq!(reported(&separate, peer, &networks), client);
        // A field that the client sent and the proxy forwarded unchanged must not name another
        // client.
        for other in ["x-forwarded-for", "forwarded"] {
            let mut both = joined.clone();
            if other != name {
                both.append(other, sent.clone());
                let found = reported(&both, peer, &networks);
                assert!(found == client || found == peer, "{found}");
            }
        }
    }
}

/// Fuzz target: a model's name in a query can be replaced by another one, and the client's
/// credentials are removed.
pub fn query(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let kept = query::without_credentials(text);
    assert!(kept.len() <= text.len());
    assert_eq!(query::without_credentials(&kept), kept);
    if let Ok(Some((model, range))) = query::model(text)
        && !model.is_empty()
    {
        let other = [
            &text[..range.start],
            &query::encoded("a&b=c %"),
            &text[range.end..],
        ]
        .concat();
        let found = query::model(&other).ok().flatten();
        assert_eq!(found.map(|(name, _)| name).as_deref(), Some("a&b=c %"));
    }
    // A model's name that is encoded into a query must be parsed unchanged.
    let named = format!("model={}", query::encoded(text));
    let found = query::model(&named).ok().flatten().map(|(name, _)| name);
    assert_eq!(found.unwrap_or_default(), text);
}
