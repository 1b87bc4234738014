//! What a request asks for, and its body, which passes as it came.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, Uri, header, request};
use hyper::body::{Body, Incoming};

use super::error::Refusal;
use super::explain::explain;
use super::{alike, body, form, is_inference, prefix, query, scan};
use crate::app::Shared;
use crate::forward;
use crate::meter::api::Api;
use crate::meter::request::{Asking, Edit, Places};
use crate::meter::{self, estimate};

/// What a request asks for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) model: Option<String>,
    /// Where the model's name is, and how it is written there.
    named_at: Option<(Range<usize>, Spelling)>,
    /// It wants its answer as it is made.
    pub(crate) stream: bool,
    /// Who asks for its usage.
    pub(crate) asking: Asking,
    /// How many tokens its prompt has, roughly.
    pub(crate) prompt_tokens: u64,
    /// What its prompt begins with.
    pub(crate) blocks: Vec<u64>,
    /// An id that some backend issued.
    pub(crate) issued: Option<u64>,
    /// It says that its answer is to be kept, and may be asked for.
    pub(crate) is_stored: bool,
    pub(crate) payload: Payload,
}

/// A request's body: read already, so that it can be sent again, or passing through, once.
#[derive(Debug)]
pub(crate) enum Payload {
    Read(Bytes),
    Passing(Option<Incoming>),
}

#[derive(Clone, Copy, Debug)]
enum Spelling {
    /// In JSON, with its quotation marks.
    Json,
    /// In a form, as it is.
    Form,
    /// In the query, percent-encoded.
    Query,
}

/// The fields of a JSON request that we look at.
#[derive(Default)]
struct Fields {
    model: Option<Range<usize>>,
    usage: Places,
    tools: Option<Range<usize>>,
    system: Option<Range<usize>>,
    prompt: Option<Range<usize>>,
    /// How many tokens the other texts have that a model is given.
    other_tokens: u64,
    previous: Option<Range<usize>>,
    store: Option<Range<usize>>,
    /// One that is there twice, or that another name could be taken for.
    ambiguous: Option<&'static str>,
}

/// Why a request is not read.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    /// It is no JSON object.
    Malformed(String),
    /// It would be routed and billed as one thing, and might be served as another.
    Ambiguous(&'static str),
}

impl Asked {
    fn nothing(payload: Payload) -> Self {
        Self {
            model: None,
            named_at: None,
            stream: false,
            asking: Asking::Nobody,
            prompt_tokens: 0,
            blocks: Vec::new(),
            issued: None,
            is_stored: false,
            payload,
        }
    }

    /// A request whose body names no model: its query may.
    fn in_query(head: &request::Parts, payload: Payload) -> Result<Self, Refusal> {
        let named = query::model(target(&head.uri))?;
        let (model, named_at) = named.unzip();
        Ok(Self {
            model,
            named_at: named_at.map(|at| (at, Spelling::Query)),
            ..Self::nothing(payload)
        })
    }

    /// The target for a backend that calls the model so.
    pub(crate) fn target_for<'a>(&self, uri: &'a Uri, model: Option<&str>) -> Cow<'a, str> {
        let target = target(uri);
        match (model, &self.named_at) {
            (Some(model), Some((place, Spelling::Query))) => {
                let (before, after) = (&target[..place.start], &target[place.end..]);
                Cow::Owned([before, &query::encoded(model), after].concat())
            }
            _ => Cow::Borrowed(target),
        }
    }

    /// The body for a backend that calls the model so, and that is asked for usage or not; `None`
    /// for one that passes through.
    pub(crate) fn body_for(&self, model: Option<&str>, ask_usage: bool) -> Option<Bytes> {
        let Payload::Read(bytes) = &self.payload else {
            return None;
        };
        let mut edits = Vec::new();
        if let (Some(model), Some((place, spelling))) = (model, &self.named_at) {
            let text = match spelling {
                Spelling::Json => Some(serde_json::Value::from(model).to_string()),
                Spelling::Form => Some(model.to_owned()),
                Spelling::Query => None,
            };
            let place = place.clone();
            edits.extend(text.map(|text| Edit { place, text }));
        }
        if let (Asking::Us(edit), true) = (&self.asking, ask_usage) {
            edits.push(edit.clone());
        }
        Some(match edits.as_mut_slice() {
            [] => bytes.clone(),
            edits => meter::request::apply(bytes, edits),
        })
    }
}

/// Reads a body in which a model may be named; any other body is left to pass through.
///
/// `path` is what follows `/v1/`. Where a model is asked, a body that cannot be read is refused;
/// elsewhere it is the backend's affair.
pub(super) async fn read(
    head: &request::Parts,
    path: &str,
    body: Incoming,
    shared: &Shared,
) -> Result<Asked, Refusal> {
    let api = Api::of(&head.method, head.uri.path());
    if body.is_end_stream() && head.method == Method::POST && is_inference(path) {
        return Err(Unread::Malformed("there is none".to_owned()).refusal());
    }
    if body.is_end_stream() {
        return Asked::in_query(head, Payload::Read(Bytes::new()));
    }
    let boundary = form::boundary(&head.headers);
    // A question is read whatever it is said to be. A file that is put may be anything.
    let is_post = head.method == Method::POST;
    let is_read = boundary.is_some()
        || is_json(&head.headers)
        || (is_post && (may_be_json(&head.headers) || is_inference(path)));
    if !is_read {
        return Asked::in_query(head, Payload::Passing(Some(body)));
    }
    // What a backend might read, and we cannot, is not for it.
    let must_be_readable = is_inference(path);
    if must_be_readable && is_compressed(&head.headers) {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "compressed_body",
            "The request's body is compressed; send it as it is, so that its model can be found.",
        ));
    }
    let pause = shared.limits.body;
    let bytes = body::read_whole(body, shared.max_body, pause, &shared.bodies).await?;
    let asked = match boundary {
        Some(boundary) => in_form(&bytes, &boundary),
        None => in_json(&bytes, api),
    };
    match asked {
        Ok(mut asked) => {
            asked.payload = Payload::Read(bytes);
            Ok(asked)
        }
        // It is none of the questions that we must understand.
        Err(Unread::Malformed(_)) if !must_be_readable => {
            Asked::in_query(head, Payload::Read(bytes))
        }
        Err(unread) => Err(unread.refusal()),
    }
}

/// What is asked for, as the client wrote it.
fn target(uri: &Uri) -> &str {
    uri.path_and_query().map_or("/", |target| target.as_str())
}

fn in_form(body: &[u8], boundary: &[u8]) -> Result<Asked, Unread> {
    let mut fields = form::fields(body, boundary, b"model");
    let named_at = fields.next();
    let is_plain = named_at.as_ref().is_none_or(|(name, _)| *name == b"model");
    if !is_plain || fields.next().is_some() {
        return Err(Unread::Ambiguous("model"));
    }
    let named_at = named_at.map(|(_, at)| at);
    let model = named_at
        .clone()
        .and_then(|at| std::str::from_utf8(&body[at]).ok())
        .map(str::to_owned);
    Ok(Asked {
        named_at: named_at.map(|at| (at, Spelling::Form)),
        model: model.filter(|name| !name.is_empty()),
        ..Asked::nothing(Payload::Passing(None))
    })
}

/// What a JSON request asks for. Its bytes are not copied.
fn in_json(body: &[u8], api: Api) -> Result<Asked, Unread> {
    let mut fields = Fields::default();
    let found = scan::fields(body, |name, at| fields.note(name, at, body));
    if found.is_err() {
        return Err(Unread::Malformed(explain(body)));
    }
    if let Some(name) = fields.ambiguous {
        return Err(Unread::Ambiguous(name));
    }
    let value = |at: &Option<Range<usize>>| at.clone().map(|at| &body[at]);
    let model = match value(&fields.model) {
        None | Some(b"null") => None,
        Some(raw) => Some(model_name(raw).map_err(Unread::Malformed)?),
    };
    let before = [&fields.model, &fields.tools, &fields.system];
    let before = before.into_iter().filter_map(value);
    let prompt = value(&fields.prompt).unwrap_or_default();
    let system = value(&fields.system).unwrap_or_default();
    // Tools are given as the JSON that they are.
    let tools = fields.tools.as_ref().map_or(0, |at| at.len() as u64);
    let prompt_tokens = estimate::prompt(prompt)
        + estimate::prompt(system)
        + estimate::by_length(tools)
        + fields.other_tokens;
    let issued = value(&fields.previous).and_then(scan::text);
    Ok(Asked {
        model,
        named_at: fields.model.clone().map(|at| (at, Spelling::Json)),
        stream: match value(&fields.usage.stream) {
            None => api.streams_unless_told(),
            Some(said) => said == b"true",
        },
        asking: Asking::of(api, body, &fields.usage),
        prompt_tokens,
        blocks: prefix::blocks(before, prompt),
        issued: issued.map(|id| forward::hash(id.as_bytes())),
        is_stored: value(&fields.store) == Some(b"true"),
        payload: Payload::Passing(None),
    })
}

impl Fields {
    fn note(&mut self, name: &[u8], at: Range<usize>, body: &[u8]) {
        let (place, known) = match name {
            b"model" => (&mut self.model, "model"),
            b"stream" => (&mut self.usage.stream, "stream"),
            b"stream_options" => (&mut self.usage.stream_options, "stream_options"),
            // Of these the last one counts: they decide nothing that another could be told.
            b"tools" => return self.tools = Some(at),
            b"system" | b"instructions" => return self.system = Some(at),
            b"messages" | b"prompt" | b"input" => return self.prompt = Some(at),
            b"query" | b"documents" | b"text_1" | b"text_2" => {
                return self.other_tokens += estimate::prompt(&body[at]);
            }
            b"previous_response_id" => return self.previous = Some(at),
            b"store" => return self.store = Some(at),
            _ => return self.ambiguous = self.ambiguous.or_else(|| alike::meant(name)),
        };
        if place.replace(at).is_some() {
            self.ambiguous = Some(known);
        }
    }
}

impl Unread {
    fn refusal(self) -> Refusal {
        let status = StatusCode::BAD_REQUEST;
        match self {
            Self::Malformed(why) => Refusal::new(
                status,
                "invalid_json",
                format!("The request's body is not a JSON object with a model's name: {why}"),
            ),
            Self::Ambiguous(name) => Refusal::new(
                status,
                "ambiguous_field",
                format!(
                    "The request's body has `{name}` twice, or in another case: not all servers \
                     agree on which one counts."
                ),
            )
            .param(name),
        }
    }
}

fn model_name(raw: &[u8]) -> Result<String, String> {
    serde_json::from_slice(raw).map_err(|error| format!("`model`: {error}"))
}

fn is_json(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|kind| {
        kind.eq_ignore_ascii_case("application/json")
            || kind.to_ascii_lowercase().ends_with("+json")
    })
}

fn is_compressed(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|coding| coding != "identity")
}

/// curl's `-d` says that JSON is a form; some programs say nothing.
fn may_be_json(headers: &HeaderMap) -> bool {
    is_json(headers)
        || media_type(headers).is_none_or(|kind| {
            kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
                || kind.eq_ignore_ascii_case("text/plain")
        })
}

pub(super) fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or(value).trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(body: &str) -> Result<Option<String>, Unread> {
        in_json(body.as_bytes(), Api::Chat).map(|asked| asked.model)
    }

    #[test]
    fn the_model_is_the_top_level_field_of_that_name() {
        let found = |text: &str| model(text).unwrap().unwrap();
        assert_eq!(found(r#"{"model":"a"}"#), "a");
        assert_eq!(
            found(r#"{"messages":[{"model":"no"}],"x":{"model":"no"},"model":"a"}"#),
            "a"
        );
        assert_eq!(found(r#" { "mod\u0065l" : "\u00e9\n" } "#), "é\n");
        assert_eq!(model(r#"{"messages":[]}"#), Ok(None));
        assert_eq!(model(r#"{"model":null}"#), Ok(None));
    }

    #[test]
    fn what_is_no_request_is_refused_with_the_place() {
        for (text, why) in [
            ("", "EOF while parsing"),
            ("[]", "expected a map"),
            (
                r#"{"model":5}"#,
                "`model`: invalid type: integer `5`, expected a string",
            ),
            (
                r#"{"model":"a"} x"#,
                "trailing characters at line 1 column 15",
            ),
            (r#"{"model":"a","#, "EOF while parsing"),
        ] {
            let Err(Unread::Malformed(error)) = model(text) else {
                panic!("{text}");
            };
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn a_name_that_is_there_twice_is_refused_if_it_is_acted_on() {
        for (text, name) in [
            (r#"{"model":"a","model":"a"}"#, "model"),
            (r#"{"model":"a","Model":"b"}"#, "model"),
            (r#"{"stream":true,"\u0053tream":false}"#, "stream"),
            (
                r#"{"stream_options":{},"stream_options":1}"#,
                "stream_options",
            ),
        ] {
            assert_eq!(model(text), Err(Unread::Ambiguous(name)), "{text}");
        }
        assert_eq!(model(r#"{"input":"a","input":"b","Input":"c"}"#), Ok(None));
    }

    #[test]
    fn an_alias_is_replaced_and_nothing_else() {
        let body = r#"{ "messages":[{"model":"x"}], "model" : "al\u0069as", "n": 1.0 }"#;
        let mut asked = in_json(body.as_bytes(), Api::Chat).unwrap();
        asked.payload = Payload::Read(Bytes::from_static(body.as_bytes()));
        assert_eq!(asked.body_for(None, true).unwrap(), body);
        assert_eq!(
            asked.body_for(Some("re\"al"), true).unwrap(),
            r#"{ "messages":[{"model":"x"}], "model" : "re\"al", "n": 1.0 }"#
        );
    }

    #[test]
    fn an_alias_and_the_question_for_usage_go_into_one_body() {
        let body = r#"{"model":"alias","stream":true,"stream_options":{"include_usage":false}}"#;
        let mut asked = in_json(body.as_bytes(), Api::Chat).unwrap();
        asked.payload = Payload::Read(Bytes::from_static(body.as_bytes()));
        assert_eq!(asked.body_for(None, false).unwrap(), body);
        assert_eq!(
            asked.body_for(Some("real"), true).unwrap(),
            r#"{"model":"real","stream":true,"stream_options":{"include_usage":true}}"#
        );
    }

    #[test]
    fn whether_a_stream_is_wanted_and_which_answer_is_continued() {
        let asked = in_json(
            br#"{"stream":true,"previous_response_id":"resp_1"}"#,
            Api::Chat,
        )
        .unwrap();
        assert!(asked.stream);
        assert_eq!(asked.issued, Some(forward::hash(b"resp_1")));
        assert!(!in_json(br#"{"stream":"true"}"#, Api::Chat).unwrap().stream);
    }

    #[test]
    fn json_is_known_by_its_type_and_suspected_without_one() {
        let with = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            headers
        };
        assert!(is_json(&with("Application/JSON; charset=utf-8")));
        assert!(is_json(&with("application/problem+json")));
        assert!(may_be_json(&HeaderMap::new()));
        assert!(may_be_json(&with("application/x-www-form-urlencoded")));
        assert!(!may_be_json(&with("multipart/form-data; boundary=x")));
        assert!(!may_be_json(&with("application/octet-stream")));
    }
}
