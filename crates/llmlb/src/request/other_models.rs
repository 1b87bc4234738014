//! Models that a JSON request names beside its field `model`: models to use if that one fails, and models that
//! tools run. They are read only for keys that may use some models only.

use std::ops::Range;

use super::case_variant::is_variant;
use crate::json;

/// Fields with the name of a model or a list of names: `models` of OpenRouter, the fallbacks of LiteLLM,
/// and the draft model of LM Studio.
const FIELDS: [&str; 5] = [
    "models",
    "fallbacks",
    "context_window_fallbacks",
    "content_policy_fallbacks",
    "draft_model",
];
/// Field with the tools, some of which run a model of their own, such as OpenAI's `image_generation`.
const TOOLS: &str = "tools";
const MODEL: &str = "model";
/// Maximum number of bytes of a name in a message.
const MAX_SHOWN: usize = 200;

/// Returns the first further model of a JSON body that is not allowed. It is the text of the field if that has
/// another form than names: a backend could find a name in it.
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
                // An object with more fields than the parser reads is refused: a model could be among the rest.
                if scanned.is_err() && body[tool.clone()].starts_with(b"{") {
                    refused = refused.take().or(Some(tool));
                }
            }
        }
    });
    // Malformed objects were rejected when the body was parsed, so an error here means that the body is not an
    // object. It names no models then.
    scanned.ok()?;
    let text = body.get(refused?)?;
    let text = json::text(text).unwrap_or_else(|| String::from_utf8_lossy(text));
    Some(text.chars().take(MAX_SHOWN).collect())
}

/// True if a value is `null`, an allowed name, or a list of allowed names.
fn allows_names(value: &[u8], is_allowed: impl Fn(&str) -> bool) -> bool {
    let is_name = |at: Range<usize>| json::text(&value[at]).is_some_and(|name| is_allowed(&name));
    match value.first() {
        Some(b'[') => elements(value, 0..value.len()).all(is_name),
        _ => value == b"null" || is_name(0..value.len()),
    }
}

/// Iterates over the elements of a list at this place; over the value itself if it is no list.
fn elements(body: &[u8], at: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let is_list = body.get(at.start) == Some(&b'[');
    let mut next = at.start + usize::from(is_list);
    std::iter::from_fn(move || {
        while let Some(b',' | b' ' | b'\t' | b'\n' | b'\r') = body.get(next) {
            next += 1;
        }
        // The end of the list: the closing bracket is no value.
        if next >= at.end || (is_list && next + 1 >= at.end) {
            return None;
        }
        let begin = next;
        next = json::skip(body, begin).unwrap_or(at.end).max(begin + 1);
        Some(begin..next.min(at.end))
    })
}
