//! Finds models that a JSON request names outside of its field `model`: fallbacks for a model that
//! fails, and models that tools run. They are searched only if the client's key may use some models
//! only.

use std::ops::Range;

use super::case_variant::is_variant;
use crate::json;

/// Fields of a request that contain further names of models: `models` of OpenRouter, the fallbacks
/// of LiteLLM, and the draft model of LM Studio.
const FIELDS: [&str; 5] = [
    "models",
    "fallbacks",
    "context_window_fallbacks",
    "content_policy_fallbacks",
    "draft_model",
];
/// Field with the tools of a request. Some tools run a model of their own, such as OpenAI's
/// `image_generation`.
const TOOLS: &str = "tools";
const MODEL: &str = "model";
/// Maximum number of characters of a refused model's name in the error message.
const MAX_SHOWN: usize = 200;

/// Returns the first further model in a JSON body that the key may not use. If a field that should
/// name models has another form, its text is returned: a backend could find a name in it.
pub(super) fn find_refused(body: &[u8], is_allowed: impl Fn(&str) -> bool) -> Option<String> {
    let mut refused: Option<Range<usize>> = None;
    let is_bad = |at: &Range<usize>| !allows_names(&body[at.clone()], &is_allowed);
    let scanned = json::fields(body, |name, at| {
        if refused.is_some() {
            return;
        }
        let Ok(name) = str::from_utf8(name) else {
            return;
        };
        if FIELDS.iter().any(|field| is_variant(field, name)) && is_bad(&at) {
            refused = Some(at);
        } else if is_variant(TOOLS, name) {
            for tool in elements(body, at) {
                let scanned = json::fields(&body[tool.clone()], |name, value| {
                    let at = tool.start + value.start..tool.start + value.end;
                    let is_model = str::from_utf8(name).is_ok_and(|name| is_variant(MODEL, name));
                    if is_model && refused.is_none() && is_bad(&at) {
                        refused = Some(at);
                    }
                });
                // Refuse a tool with more fields than the parser reads: a model could be in the
                // rest.
                if scanned.is_err() && body[tool.clone()].starts_with(b"{") {
                    refused = refused.take().or(Some(tool));
                }
            }
        }
    });
    // The body was parsed successfully as JSON, so an error here means that it is no object. Then
    // it names no models.
    scanned.ok()?;
    let text = body.get(refused?)?;
    let text = json::text(text).unwrap_or_else(|| String::from_utf8_lossy(text));
    Some(text.chars().take(MAX_SHOWN).collect())
}

/// True if a value is `null`, the name of an allowed model, or a list of such names.
fn allows_names(value: &[u8], is_allowed: impl Fn(&str) -> bool) -> bool {
    let is_name = |at: Range<usize>| json::text(&value[at]).is_some_and(|name| is_allowed(&name));
    match value.first() {
        Some(b'[') => elements(value, 0..value.len()).all(is_name),
        _ => value == b"null" || is_name(0..value.len()),
    }
}

/// Iterates over the ranges of the elements of a JSON list; over the value itself if it is no list.
fn elements(body: &[u8], at: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let is_list = body.get(at.start) == Some(&b'[');
    let mut next = at.start + usize::from(is_list);
    std::iter::from_fn(move || {
        while let Some(b',' | b' ' | b'\t' | b'\n' | b'\r') = body.get(next) {
            next += 1;
        }
        if next >= at.end || (is_list && next + 1 >= at.end) {
            return None;
        }
        let begin = next;
        next = json::skip(body, begin).unwrap_or(at.end).max(begin + 1);
        Some(begin..next.min(at.end))
    })
}
