//! Parses a request: the model, the options and the prompt that determine its routing and metering.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::FixedState;
use http::{HeaderMap, StatusCode, header, request};
use hyper::body::{Body, Incoming};
use memchr::memmem;
use serde::de::IgnoredAny;

use super::error::Refusal;
use super::explain::explain;
use super::output_fields::OutputFields;
use super::prompt_fields::{self, PromptFields};
use super::{body, case_variant, form, prefix, query};
use crate::body_deadline::BodyPace;
use crate::body_edit::{self, BodyPieces, Edit};
use crate::endpoint::Api;
use crate::endpoint::{BodyFormat, Endpoint};
use crate::headers::media_type;
use crate::issued_ids::IdHash;
use crate::json::{self, Malformed};
use crate::limits::TokenDemand;
use crate::memory_budget::Budget;
use crate::meter::usage_option::{OptionRanges, UsageOption};

/// A parsed request.
#[derive(Debug)]
pub(crate) struct ParsedRequest {
    pub(crate) model: Option<String>,
    named_at: Option<(Range<usize>, Spelling)>,
    pub(crate) stream: bool,
    /// Origin of the `include_usage` option of a stream: set by the client, added by llmlb, or not
    /// needed.
    pub(crate) usage_option: UsageOption,
    /// Estimated number of tokens of the prompt, for routing, the limits of the key, and metering.
    pub(crate) prompt_tokens: u64,
    /// Fields of the request that limit its output, for the limits of the key.
    pub(crate) output: OutputFields,
    /// Hashes of the beginnings of the prompt. Requests with an equal beginning prefer the same
    /// backend, which may have it in its prompt cache.
    pub(crate) blocks: Vec<u64>,
    /// Hash of an id that a backend issued and that the request names, such as that of a stored
    /// response. The request must go to the same backend.
    pub(crate) issued: Option<IdHash>,
    /// True if the client asks the backend to store the response (`"store": true`). Later requests
    /// can name the response's id and must go to the same backend.
    pub(crate) is_stored: bool,
    pub(crate) payload: Payload,
}

/// Body of a request: either read into memory, so that it can be sent again to another backend, or
/// passed through, so that it can be sent only once.
#[derive(Debug)]
pub(crate) enum Payload {
    Read(Bytes),
    Passing(Option<Incoming>),
}

/// Encoding of the model's name in the request. If a backend uses another name for the model, that
/// name is written in the same encoding.
#[derive(Clone, Copy, Debug)]
enum Spelling {
    /// The model's name is a JSON string, with its quotation marks.
    Json,
    /// The model's name is plain text in a multipart form.
    Form,
    /// The model's name is percent-encoded text in the query of the URL.
    Query,
}

#[derive(Default)]
struct JsonFields {
    model: Option<Range<usize>>,
    usage: OptionRanges,
    prompt_fields: PromptFields,
    output: OutputFields,
    previous: Option<Range<usize>>,
    store: Option<Range<usize>>,
    /// Name of a field that appears twice or in another case. Servers disagree on which value
    /// counts, so the request is rejected.
    ambiguous: Option<&'static str>,
}

/// Reason why llmlb rejects the body of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ParseError {
    Malformed(String),
    /// The body has this field twice, or in another case. llmlb could route and bill the request as one
    /// model while the backend serves another.
    Ambiguous(&'static str),
    /// The body is an HTML form (multipart or URL-encoded) that parsers may read differently, for this
    /// reason.
    Form(&'static str),
    /// The Content-Type names an encoding other than UTF-8, in which a backend could read another
    /// model's name.
    Charset,
    /// The body has a prompt, but the path of the request names a stored result. A backend that matches
    /// prefixes of paths could generate text for the prompt, and llmlb would not meter it.
    Prompt,
}

impl ParsedRequest {
    /// Returns a request that names no model and no options.
    fn without_model(payload: Payload) -> Self {
        Self {
            model: None,
            named_at: None,
            stream: false,
            usage_option: UsageOption::NotNeeded,
            prompt_tokens: 0,
            output: OutputFields::default(),
            blocks: Vec::new(),
            issued: None,
            is_stored: false,
            payload,
        }
    }

    #[cfg(test)]
    pub(super) fn with_model(model: Option<&str>) -> Self {
        Self {
            model: model.map(str::to_owned),
            ..Self::without_model(Payload::Read(Bytes::new()))
        }
    }

    /// Returns a request whose body names no model. The model comes from the parameter `model` of
    /// the URL's query, if there is one.
    fn from_query(query: Option<&str>, payload: Payload) -> Result<Self, Refusal> {
        let named = query.map_or(Ok(None), query::model)?;
        let named = named.filter(|(name, _)| !name.is_empty());
        let (model, named_at) = named.unzip();
        Ok(Self {
            model,
            named_at: named_at.map(|at| (at, Spelling::Query)),
            ..Self::without_model(payload)
        })
    }

    /// Returns the tokens of prompt and output that this request to an API may use, for the limits
    /// of its key.
    pub(crate) fn demand(&self, api: Api) -> TokenDemand {
        TokenDemand {
            prompt: self.prompt_tokens,
            output: self.output.demand(api),
            choices: self.output.choices(),
        }
    }

    /// Returns a hash of the body; 0 if the body was not read. A backend that fails at several
    /// different prompts is probably at fault, but a single prompt may itself cause the failures.
    pub(crate) fn body_hash(&self) -> u64 {
        match &self.payload {
            Payload::Read(bytes) => FixedState::default().hash_one(&bytes[..]),
            Payload::Passing(_) => 0,
        }
    }

    /// True if the client's own text may contain the names by which a backend's error about
    /// `stream_options` is recognized. The error may repeat that text, so it does not prove that
    /// the backend rejects the option.
    pub(crate) fn names_usage_option(&self) -> bool {
        // A JSON escape such as `\u0073` may stand for any letter of the names. So treat a body
        // with such an escape as containing them.
        let names: [&[u8]; 3] = [b"stream_options", b"include_usage", b"\\u"];
        match &self.payload {
            Payload::Read(bytes) => names.iter().any(|name| memmem::find(bytes, name).is_some()),
            Payload::Passing(_) => true,
        }
    }

    /// Returns the path and query for the request to a backend, without the client's credentials.
    /// `model` replaces the model's name in the query.
    pub(crate) fn target_for<'a>(
        &self,
        path: &'a str,
        query: Option<&str>,
        model: Option<&str>,
    ) -> Cow<'a, str> {
        let Some(query) = query else {
            return Cow::Borrowed(path);
        };
        let renamed = match (model, &self.named_at) {
            (Some(model), Some((range, Spelling::Query))) => {
                let (before, after) = (&query[..range.start], &query[range.end..]);
                Cow::Owned([before, &query::encoded(model), after].concat())
            }
            _ => Cow::Borrowed(query),
        };
        Cow::Owned([path, "?", &query::without_credentials(&renamed)].concat())
    }

    /// Returns the body for the request to a backend; `None` if the body passes through. `model`
    /// replaces the model's name.
    pub(crate) fn body_for(&self, model: Option<&str>, usage: AskUsage) -> Option<BodyPieces> {
        let Payload::Read(bytes) = &self.payload else {
            return None;
        };
        let mut edits = Vec::new();
        if let (Some(model), Some((range, spelling))) = (model, &self.named_at) {
            let text = match spelling {
                Spelling::Json => Some(serde_json::Value::from(model).to_string()),
                Spelling::Form => Some(model.to_owned()),
                Spelling::Query => None,
            };
            let range = range.clone();
            edits.extend(text.map(|text| Edit { range, text }));
        }
        if let (UsageOption::Added(edit), AskUsage::Yes) = (&self.usage_option, usage) {
            edits.push(edit.clone());
        }
        Some(match edits.as_mut_slice() {
            [] => bytes.clone().into(),
            edits => body_edit::apply(bytes, edits),
        })
    }
}

/// Decision to add `include_usage`, which makes a backend report the usage of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskUsage {
    /// llmlb adds `include_usage` if the client did not set it, so that the usage of the stream can
    /// be metered.
    Yes,
    /// llmlb does not add `include_usage`, for example because the backend has rejected it.
    No,
}

#[derive(Debug)]
pub(crate) struct BodyLimits<'a> {
    pub(crate) max: usize,
    pub(crate) pace: BodyPace,
    pub(crate) budget: &'a Arc<Budget>,
}

/// Parses a request. If its endpoint has a body that names the model, the whole body is read into
/// memory; any other body passes through unread.
pub(crate) async fn read(
    head: &request::Parts,
    endpoint: Endpoint,
    body: Incoming,
    limits: BodyLimits<'_>,
) -> Result<ParsedRequest, Refusal> {
    let query = head.uri.query();
    let content_type = content_type(&head.headers)?;
    let is_labelled_json = content_type.is_some_and(is_json);
    let is_compressed = is_compressed(&head.headers);
    let is_required = match endpoint.body {
        BodyFormat::Json | BodyFormat::MultipartOrJson => true,
        BodyFormat::JsonWithoutPrompt => false,
        BodyFormat::JsonIfLabelled if is_labelled_json && !is_compressed => false,
        BodyFormat::JsonIfLabelled | BodyFormat::Unread => {
            let payload = if body.is_end_stream() {
                Payload::Read(Bytes::new())
            } else {
                Payload::Passing(Some(body))
            };
            return ParsedRequest::from_query(query, payload);
        }
    };
    if is_compressed {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "compressed_body",
            "The request's body is compressed; send it uncompressed, so that its model is found.",
        ));
    }
    let BodyLimits { max, pace, budget } = limits;
    let bytes = body::read_whole(body, max, pace, budget).await?;
    if bytes.is_empty() && !is_required {
        return ParsedRequest::from_query(query, Payload::Read(bytes));
    }
    let is_form = |kind: &str| media_type(kind).eq_ignore_ascii_case("multipart/form-data");
    let parsed = match content_type.filter(|kind| is_form(kind)) {
        Some(kind) if endpoint.body == BodyFormat::MultipartOrJson => in_form(&bytes, kind),
        None if endpoint.body == BodyFormat::MultipartOrJson
            && content_type.is_some_and(is_simple_form) =>
        {
            Err(ParseError::Form(
                "the Content-Type is application/x-www-form-urlencoded, not multipart/form-data",
            ))
        }
        _ if !is_required && !bytes.trim_ascii_start().starts_with(b"{") => {
            // The body is a JSON list or scalar, so it has no field that names a model. The query
            // may name one.
            match serde_json::from_slice::<IgnoredAny>(&bytes) {
                Ok(IgnoredAny) => return ParsedRequest::from_query(query, Payload::Read(bytes)),
                Err(error) => Err(ParseError::Malformed(error.to_string())),
            }
        }
        _ => in_labelled_json(&bytes, endpoint.api, content_type),
    };
    let mut parsed = parsed.map_err(ParseError::refusal)?;
    if endpoint.body == BodyFormat::JsonWithoutPrompt && has_prompt(&bytes) {
        return Err(ParseError::Prompt.refusal());
    }
    if let Some((named, _)) = query.map_or(Ok(None), query::model)?
        && parsed.model.as_ref() != Some(&named)
    {
        return Err(ParseError::Ambiguous("model").refusal());
    }
    parsed.payload = Payload::Read(bytes);
    Ok(parsed)
}

/// Returns the only Content-Type of a request. Two are rejected, because servers differ in which
/// one they read and could parse the body differently.
fn content_type(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    let mut values = headers.get_all(header::CONTENT_TYPE).iter();
    let refused = |why: &str| {
        let message = format!("The request's Content-Type {why}.");
        Refusal::new(StatusCode::BAD_REQUEST, "bad_content_type", message)
    };
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| refused("is not ASCII"))?;
            Ok(Some(text).filter(|text| !text.trim().is_empty()))
        }
        (Some(_), Some(_)) => Err(refused("is there twice")),
    }
}

fn in_form(body: &[u8], content_type: &str) -> Result<ParsedRequest, ParseError> {
    let boundary = form::boundary(content_type).map_err(ParseError::Form)?;
    let range = form::model(body, boundary).map_err(ParseError::Form)?;
    let text = |range: &Range<usize>| String::from_utf8_lossy(&body[range.clone()]).into_owned();
    Ok(ParsedRequest {
        model: range.as_ref().map(text),
        named_at: range.map(|range| (range, Spelling::Form)),
        ..ParsedRequest::without_model(Payload::Passing(None))
    })
}

/// Parses a JSON request with this Content-Type. Under some types a server could read the same
/// bytes in another encoding or as a form, and find another model, so these are rejected or checked
/// further.
fn in_labelled_json(
    body: &[u8],
    api: Api,
    content_type: Option<&str>,
) -> Result<ParsedRequest, ParseError> {
    let parsed = in_json(body, api)?;
    let Some(kind) = content_type.filter(|kind| !kind.eq_ignore_ascii_case("application/json"))
    else {
        return Ok(parsed);
    };
    if !has_plain_charset(kind) {
        return Err(ParseError::Charset);
    }
    if media_type(kind)
        .to_ascii_lowercase()
        .starts_with("multipart/")
    {
        // Under a multipart type a server may search the body for multipart parts, and find another
        // model there. So the body must be valid JSON, which cannot contain a part: each part
        // begins on a new line, and JSON strings contain no line breaks.
        let parsed = serde_json::from_slice::<IgnoredAny>(body);
        parsed.map_err(|error| ParseError::Malformed(error.to_string()))?;
    }
    Ok(parsed)
}

/// True unless the Content-Type names an encoding in which the same bytes could mean another text,
/// and so another model.
fn has_plain_charset(content_type: &str) -> bool {
    let lower = content_type.to_ascii_lowercase();
    lower.split("charset").skip(1).all(|rest| {
        let value = rest.trim_start_matches(['*', ' ', '\t']).strip_prefix('=');
        value.is_some_and(|value| {
            let value = value.split(';').next().unwrap_or(value);
            let value = value.trim_matches([' ', '\t', '"', '\'']);
            value.is_empty() || form::is_utf8(value)
        })
    })
}

/// Parses a JSON request. The result contains ranges of the body, so no bytes are copied.
pub(super) fn in_json(body: &[u8], api: Api) -> Result<ParsedRequest, ParseError> {
    let mut fields = JsonFields::default();
    let found = json::read_fields(body, |name, at| fields.read(api, name, at, body));
    if found.is_err() {
        return Err(ParseError::Malformed(explain(body)));
    }
    if let Some(name) = fields.ambiguous {
        return Err(ParseError::Ambiguous(name));
    }
    let value = |at: &Option<Range<usize>>| at.clone().map(|at| &body[at]);
    if value(&fields.usage.stream_options).is_some_and(has_ambiguous_option) {
        return Err(ParseError::Ambiguous("stream_options.include_usage"));
    }
    let model = match value(&fields.model) {
        None | Some(b"null") => None,
        Some(raw) => Some(model_name(raw).map_err(ParseError::Malformed)?),
    };
    let before = [
        &fields.model,
        &fields.prompt_fields.tools,
        &fields.prompt_fields.system,
    ];
    let before = before.into_iter().filter_map(value);
    let prompt = value(&fields.prompt_fields.prompt).unwrap_or_default();
    let issued = value(&fields.previous).and_then(json::text);
    if api == Api::Completions {
        fields.output.set_prompts(prompt, prompt_fields::elements);
    }
    Ok(ParsedRequest {
        model,
        named_at: fields.model.clone().map(|at| (at, Spelling::Json)),
        stream: match value(&fields.usage.stream) {
            None => api.streams_by_default(),
            Some(value) => value == b"true",
        },
        usage_option: UsageOption::new(api, body, &fields.usage),
        prompt_tokens: fields.prompt_fields.tokens(api),
        output: fields.output,
        blocks: prefix::blocks(before, prompt),
        issued: issued.map(|id| IdHash::new(id.as_bytes())),
        is_stored: value(&fields.store) == Some(b"true"),
        payload: Payload::Passing(None),
    })
}

impl JsonFields {
    /// Reads the field whose value begins at `at`. Returns the position of the value's end.
    fn read(&mut self, api: Api, name: &[u8], at: usize, body: &[u8]) -> Result<usize, Malformed> {
        let (range, known) = match name {
            b"model" => (&mut self.model, Some("model")),
            b"stream" => (&mut self.usage.stream, Some("stream")),
            b"stream_options" => (&mut self.usage.stream_options, Some("stream_options")),
            // If `previous_response_id` or `store` appears twice, the last one counts. A backend
            // that uses the first one may lack the stored response, but model and billing are the
            // same.
            b"previous_response_id" => (&mut self.previous, None),
            b"store" => (&mut self.store, None),
            _ if OutputFields::has(name) => {
                let end = json::skip(body, at)?;
                if name == b"options" {
                    self.output.read_options(api, &body[at..end]);
                } else {
                    self.output.read(api, name, &body[at..end]);
                }
                return Ok(end);
            }
            _ => {
                if let Some(end) = self.prompt_fields.read(api, name, at, body)? {
                    return Ok(end);
                }
                self.ambiguous = self.ambiguous.or_else(|| case_variant::find(name));
                return json::skip(body, at);
            }
        };
        let end = json::skip(body, at)?;
        if range.replace(at..end).is_some() && known.is_some() {
            self.ambiguous = known;
        }
        Ok(end)
    }
}

impl ParseError {
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
            Self::Form(why) => Refusal::new(
                status,
                "invalid_form",
                format!("The request's form can be read in more than one way: {why}."),
            ),
            Self::Charset => Refusal::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "bad_charset",
                "The request's Content-Type names an encoding other than UTF-8; send UTF-8.",
            ),
            Self::Prompt => Refusal::new(
                status,
                "unexpected_prompt",
                "This path names a stored result, and the request's body has a prompt. To ask a \
                 model, send it to /v1/chat/completions or /v1/responses.",
            ),
        }
    }
}

/// True if `include_usage` appears twice, or in another case. A client could keep a backend from
/// reporting usage while llmlb expects the report.
fn has_ambiguous_option(options: &[u8]) -> bool {
    let (mut count, mut is_plain) = (0, true);
    let scanned = json::fields(options, |name, _| {
        let text = String::from_utf8_lossy(name);
        if case_variant::is_variant("include_usage", &text) {
            count += 1;
            is_plain &= name == b"include_usage";
        }
    });
    scanned.is_ok() && (count > 1 || !is_plain)
}

/// True if a JSON object has a field for a prompt, such as `messages`, in any case. Requests for a
/// stored result must not have one, since a backend could run it unmetered.
fn has_prompt(body: &[u8]) -> bool {
    const PROMPTS: [&str; 3] = ["messages", "prompt", "input"];
    let mut is_found = false;
    let scanned = json::fields(body, |name, _| {
        let name = String::from_utf8_lossy(name);
        is_found |= PROMPTS
            .iter()
            .any(|prompt| case_variant::is_variant(prompt, &name));
    });
    is_found && scanned.is_ok()
}

fn model_name(raw: &[u8]) -> Result<String, String> {
    serde_json::from_slice(raw).map_err(|error| format!("`model`: {error}"))
}

fn is_json(content_type: &str) -> bool {
    let kind = media_type(content_type);
    kind.eq_ignore_ascii_case("application/json") || kind.to_ascii_lowercase().ends_with("+json")
}

fn is_compressed(headers: &HeaderMap) -> bool {
    headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .any(|coding| !coding.is_empty() && coding != "identity")
}

/// True for the type that `curl -d` sends (`application/x-www-form-urlencoded`). A server that
/// expects a form would parse the body as one.
fn is_simple_form(content_type: &str) -> bool {
    media_type(content_type).eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(body: &str) -> Result<Option<String>, ParseError> {
        in_json(body.as_bytes(), Api::Chat).map(|parsed| parsed.model)
    }

    #[test]
    fn model_is_the_top_level_field() {
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
    fn malformed_body_is_rejected_with_the_position_of_the_error() {
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
            let Err(ParseError::Malformed(error)) = model(text) else {
                panic!("{text}");
            };
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn duplicate_field_is_rejected_if_llmlb_uses_it() {
        for (text, name) in [
            (r#"{"model":"a","model":"a"}"#, "model"),
            (r#"{"model":"a","Model":"b"}"#, "model"),
            (r#"{"stream":true,"\u0053tream":false}"#, "stream"),
            (
                r#"{"stream_options":{},"stream_options":1}"#,
                "stream_options",
            ),
        ] {
            assert_eq!(model(text), Err(ParseError::Ambiguous(name)), "{text}");
        }
        assert_eq!(model(r#"{"input":"a","input":"b","Input":"c"}"#), Ok(None));
    }

    #[test]
    fn body_differs_only_in_the_name_of_the_model() {
        let body = r#"{ "messages":[{"model":"x"}], "model" : "al\u0069as", "n": 1.0 }"#;
        let mut parsed = in_json(body.as_bytes(), Api::Chat).unwrap();
        parsed.payload = Payload::Read(Bytes::from_static(body.as_bytes()));
        assert_eq!(parsed.body_for(None, AskUsage::Yes).unwrap().first, body);
        assert_eq!(
            parsed
                .body_for(Some("re\"al"), AskUsage::Yes)
                .unwrap()
                .first,
            r#"{ "messages":[{"model":"x"}], "model" : "re\"al", "n": 1.0 }"#
        );
    }

    #[test]
    fn body_has_both_the_name_of_the_model_and_include_usage() {
        let body = r#"{"model":"alias","stream":true,"stream_options":{"include_usage":false}}"#;
        let mut parsed = in_json(body.as_bytes(), Api::Chat).unwrap();
        parsed.payload = Payload::Read(Bytes::from_static(body.as_bytes()));
        assert_eq!(parsed.body_for(None, AskUsage::No).unwrap().first, body);
        assert_eq!(
            parsed.body_for(Some("real"), AskUsage::Yes).unwrap().first,
            r#"{"model":"real","stream":true,"stream_options":{"include_usage":true}}"#
        );
    }

    #[test]
    fn stream_and_previous_response_id_are_parsed() {
        let parsed = in_json(
            br#"{"stream":true,"previous_response_id":"resp_1"}"#,
            Api::Chat,
        )
        .unwrap();
        assert!(parsed.stream);
        assert_eq!(parsed.issued, Some(IdHash::new(b"resp_1")));
        assert!(!in_json(br#"{"stream":"true"}"#, Api::Chat).unwrap().stream);
    }

    #[test]
    fn json_is_recognised_by_its_content_type() {
        assert!(is_json("Application/JSON; charset=utf-8"));
        assert!(is_json("application/problem+json"));
        assert!(!is_json("multipart/form-data; boundary=x"));
    }

    #[test]
    fn content_types_that_change_the_meaning_of_the_body_are_rejected() {
        let read =
            |body: &str, kind: &str| in_labelled_json(body.as_bytes(), Api::Chat, Some(kind));
        let plain = r#"{"model":"a"}"#;
        for kind in [
            "application/json; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "image/png",
        ] {
            assert!(read(plain, kind).is_ok(), "{kind}");
        }
        for kind in [
            "application/json; charset=utf-7",
            "application/json; charset=utf-16",
            "application/json; charset=utf-8; charset=utf-7",
            "application/json; charset",
        ] {
            assert_eq!(read(plain, kind).err(), Some(ParseError::Charset), "{kind}");
        }
        let parts = "{\"model\":\"a\",\"x\":\"\r\n--x\r\n\"}";
        assert!(read(parts, "multipart/form-data; boundary=x").is_err());
    }
}
