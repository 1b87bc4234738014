//! Fields of a request that its endpoint passes to the model, from which the tokens of the prompt
//! are estimated.
//!
//! Fields that the endpoint does not pass to the model do not count, because a client could change
//! its estimate with them. Engines disagree on which of two fields with the same name they read,
//! and Go's decoder ignores the case of names. So if a field appears several times, in any case,
//! the largest estimate counts.

use std::borrow::Cow;
use std::ops::Range;

use crate::endpoint::Api;
use crate::json::{self, Malformed};
use crate::meter::estimate;

/// Maximum estimate of a prompt in tokens. The size of a request alone does not limit the estimate: a query
/// counts once for every document.
const MAX_TOKENS: u64 = 1_000_000_000;

/// Part of a prompt, such as the messages or the tools. The estimate of the prompt is the sum of
/// the estimates of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Prompt,
    /// Instructions that the model reads in front of the prompt, such as Anthropic's `system`.
    System,
    Tools,
    Functions,
    /// Description of the format that the response must have, such as a JSON schema. It counts
    /// because the model reads it as text.
    Schema,
    Template,
    /// Variables of a template.
    Variables,
    /// Text behind the gap that the model fills, for completions in the middle of a text.
    Suffix,
    Images,
    /// Field `context` of Ollama's API: the token ids of an earlier conversation, which the model
    /// reads again.
    Context,
    Embedded,
    /// Texts that a reranking request compares with its query.
    Documents,
    /// Query of a reranking request, which the model reads again with every document, so that it
    /// counts once for each.
    Query,
    Queries,
}

const PARTS: usize = Part::Queries as usize + 1;

impl Part {
    /// Returns the part of the prompt that a field with this name contains in a request to this API.
    fn find(api: Api, name: &[u8]) -> Option<Self> {
        use Api::{
            Chat, Completions, Embeddings, Messages, OllamaChat, OllamaEmbed, OllamaGenerate,
            Rerank, Responses, Score,
        };
        let (part, apis): (_, &[Api]) = match name {
            // vLLM embeds conversations also, so `messages` counts for embeddings. Otherwise such a
            // request would have no estimate.
            b"messages" => (Self::Prompt, &[Chat, Messages, OllamaChat, Embeddings]),
            b"prompt" if api == Responses => (Self::Variables, &[Responses]),
            b"prompt" => (Self::Prompt, &[Completions, OllamaGenerate, OllamaEmbed]),
            b"input" => (Self::Prompt, &[Responses, Embeddings, OllamaEmbed]),
            // llama.cpp accepts `content` in place of `input`. The text in it must be counted.
            b"content" => (Self::Prompt, &[Embeddings]),
            b"prompt_embeds" => (Self::Embedded, &[Completions]),
            b"system" => (Self::System, &[Messages, OllamaGenerate]),
            b"instructions" => (Self::System, &[Responses]),
            b"instruction" => (Self::System, &[Rerank, Score]),
            b"tool_prompt" => (Self::System, &[Chat]),
            b"tools" => (Self::Tools, &[Chat, Responses, Messages, OllamaChat]),
            b"functions" => (Self::Functions, &[Chat]),
            b"response_format" => (Self::Schema, &[Chat]),
            b"text" => (Self::Schema, &[Responses]),
            b"output_format" | b"output_config" => (Self::Schema, &[Messages]),
            b"template" => (Self::Template, &[OllamaGenerate]),
            b"chat_template" => (Self::Template, &[Chat, Embeddings]),
            b"chat_template_kwargs" => (
                Self::Variables,
                &[Chat, Responses, Messages, Embeddings, Rerank, Score],
            ),
            b"suffix" => (Self::Suffix, &[Completions, OllamaGenerate]),
            b"images" => (Self::Images, &[OllamaGenerate]),
            b"context" => (Self::Context, &[OllamaGenerate]),
            b"documents" => (Self::Documents, &[Chat, Rerank, Score]),
            b"texts" => (Self::Documents, &[Rerank]),
            b"text_2" | b"data_2" | b"items" => (Self::Documents, &[Score]),
            b"query" => (Self::Query, &[Rerank]),
            b"text_1" | b"data_1" | b"queries" => (Self::Query, &[Score]),
            _ => return None,
        };
        apis.contains(&api).then_some(part)
    }

    /// Returns the estimated tokens of this part, whose JSON value begins at `at`, and the position
    /// of the value's end.
    fn tokens(self, body: &[u8], at: usize) -> Result<(u64, usize), Malformed> {
        match self {
            Self::Images => estimate::images(body, at),
            Self::Embedded => estimate::embedded(body, at),
            // The model reads tools, functions, schemas and variables as JSON text, so the whole value
            // counts.
            Self::Tools | Self::Functions | Self::Schema | Self::Variables => {
                let end = json::skip(body, at)?;
                Ok((estimate::by_length((end - at) as u64), end))
            }
            _ => estimate::prompt(body, at),
        }
    }
}

/// Positions and estimated tokens of the fields of one request that form its prompt. The positions
/// are used for affinity hashes, the tokens for limits and metering.
#[derive(Debug, Default)]
pub(super) struct PromptFields {
    /// Range of the conversation or text in the body, from which the affinity hashes are computed.
    pub(super) prompt: Option<Range<usize>>,
    /// Range of the tools in the body. The model reads tools in front of the prompt, so the
    /// affinity hashes begin with them.
    pub(super) tools: Option<Range<usize>>,
    /// Range of the instructions in the body, which the model also reads in front of the prompt.
    pub(super) system: Option<Range<usize>>,
    /// Estimated tokens of each [`Part`]. If several fields contain the same part, such as `input`
    /// and `Input`, the largest estimate counts, because engines disagree on which field they read.
    tokens: [u64; PARTS],
    /// Number of documents in a reranking request. The model reads the query once for each.
    documents: u64,
}

impl PromptFields {
    /// Counts a field of the request whose value begins at `at`. Returns the position of its end,
    /// or `None` if the field is not a part of the prompt.
    pub(super) fn read(
        &mut self,
        api: Api,
        name: &[u8],
        at: usize,
        body: &[u8],
    ) -> Result<Option<usize>, Malformed> {
        let is_exact = !name
            .iter()
            .any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii());
        let name = if is_exact {
            Cow::Borrowed(name)
        } else {
            lower_case(name)
        };
        if !api.reads_text() {
            // The tokens of this API's prompt are not estimated, but its range is kept for the
            // affinity hashes.
            let is_prompt = is_exact && matches!(&*name, b"messages" | b"prompt" | b"input");
            if !is_prompt {
                return Ok(None);
            }
            let end = json::skip(body, at)?;
            self.prompt = Some(at..end);
            return Ok(Some(end));
        }
        let Some(mut part) = Part::find(api, &name) else {
            return Ok(None);
        };
        if part == Part::Query && body.get(at) == Some(&b'[') {
            part = Part::Queries;
        }
        let (tokens, end) = part.tokens(body, at)?;
        if part == Part::Documents {
            self.documents = self.documents.max(elements(&body[at..end]));
        }
        let max = &mut self.tokens[part as usize];
        *max = tokens.max(*max);
        if is_exact {
            match part {
                Part::Prompt => self.prompt = Some(at..end),
                Part::System => self.system = Some(at..end),
                Part::Tools => self.tools = Some(at..end),
                _ => {}
            }
        }
        Ok(Some(end))
    }

    pub(super) fn tokens(&self, api: Api) -> u64 {
        let sum: u64 = self.tokens.iter().sum();
        let repeated = match api {
            Api::Rerank | Api::Score => {
                let with_each = [Part::Query, Part::System, Part::Variables];
                let with_each: u64 = with_each
                    .map(|part| self.tokens[part as usize])
                    .iter()
                    .sum();
                with_each.saturating_mul(self.documents.saturating_sub(1))
            }
            _ => 0,
        };
        sum.saturating_add(repeated).min(MAX_TOKENS)
    }
}

/// Returns a field name in lower case, as decoders that ignore case read it. Otherwise a client
/// could hide a prompt in `Messages`.
fn lower_case(name: &[u8]) -> Cow<'_, [u8]> {
    /// Maximum length of a field name that is compared with the known names. All known names are
    /// shorter, in any spelling.
    const MAX_NAME: usize = 64;
    let text = match std::str::from_utf8(name) {
        Ok(text) if text.len() <= MAX_NAME => text,
        _ => return Cow::Borrowed(name),
    };
    // Convert to upper case first: some letters beyond ASCII, such as `ſ`, become ASCII only this
    // way.
    let upper = text.chars().flat_map(char::to_uppercase);
    let lower: String = upper.flat_map(char::to_lowercase).collect();
    Cow::Owned(lower.into_bytes())
}

pub(super) fn elements(value: &[u8]) -> u64 {
    if !value.starts_with(b"[") {
        return 1;
    }
    let (mut at, mut count) = (1, 0);
    while let Some(byte) = value.get(at) {
        match byte {
            b',' | b' ' | b'\t' | b'\n' | b'\r' => at += 1,
            _ => match json::skip(value, at) {
                Ok(end) => {
                    count += 1;
                    at = end;
                }
                Err(Malformed) => break,
            },
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(api: Api, body: &str) -> u64 {
        read(api, body).tokens(api)
    }

    fn read(api: Api, body: &str) -> PromptFields {
        let (mut fields, body) = (PromptFields::default(), body.as_bytes());
        json::read_fields(body, |name, at| match fields.read(api, name, at, body)? {
            Some(end) => Ok(end),
            None => json::skip(body, at),
        })
        .unwrap();
        fields
    }

    /// A text of 100 tokens.
    fn text() -> String {
        format!("\"{}\"", "word ".repeat(80))
    }

    const READING: [Api; 10] = [
        Api::Chat,
        Api::Completions,
        Api::Responses,
        Api::Embeddings,
        Api::Messages,
        Api::Rerank,
        Api::Score,
        Api::OllamaChat,
        Api::OllamaGenerate,
        Api::OllamaEmbed,
    ];

    #[test]
    fn every_endpoint_counts_its_own_fields_and_no_others() {
        for (name, apis) in [
            (
                "messages",
                &[Api::Chat, Api::Messages, Api::OllamaChat, Api::Embeddings][..],
            ),
            (
                "prompt",
                &[
                    Api::Completions,
                    Api::Responses,
                    Api::OllamaGenerate,
                    Api::OllamaEmbed,
                ],
            ),
            (
                "input",
                &[Api::Responses, Api::Embeddings, Api::OllamaEmbed],
            ),
            ("content", &[Api::Embeddings]),
            ("system", &[Api::Messages, Api::OllamaGenerate]),
            ("instructions", &[Api::Responses]),
            (
                "tools",
                &[Api::Chat, Api::Responses, Api::Messages, Api::OllamaChat],
            ),
            ("functions", &[Api::Chat]),
            ("suffix", &[Api::Completions, Api::OllamaGenerate]),
            ("query", &[Api::Rerank]),
            ("documents", &[Api::Chat, Api::Rerank, Api::Score]),
            ("texts", &[Api::Rerank]),
            ("text_1", &[Api::Score]),
            ("text_2", &[Api::Score]),
            ("template", &[Api::OllamaGenerate]),
            ("response_format", &[Api::Chat]),
            ("metadata", &[]),
            ("user", &[]),
        ] {
            for api in READING {
                let tokens = of(api, &format!(r#"{{"{name}":{}}}"#, text()));
                let is_counted = apis.contains(&api);
                assert_eq!(tokens >= 100, is_counted, "{name} {api:?}");
                assert_eq!(tokens > 0, is_counted, "{name} {api:?}");
            }
        }
        for api in [Api::Audio, Api::Images, Api::Moderations, Api::Other] {
            assert_eq!(of(api, &format!(r#"{{"input":{}}}"#, text())), 0, "{api:?}");
        }
    }

    #[test]
    fn parts_of_a_prompt_add_up() {
        let (text, ids) = (text(), vec!["1"; 50].join(","));
        let chat = format!(r#"{{"messages":{text},"tools":{text},"functions":{text}}}"#);
        assert_eq!(of(Api::Chat, &chat), 302);
        let generate = format!(
            r#"{{"prompt":{text},"system":{text},"suffix":{text},"context":[{ids}],"images":["a","b"]}}"#
        );
        assert_eq!(of(Api::OllamaGenerate, &generate), 300 + 50 + 1000);
    }

    #[test]
    fn largest_variant_of_a_field_counts() {
        let text = text();
        for body in [
            format!(r#"{{"messages":{text},"messages":"x"}}"#),
            format!(r#"{{"messages":"x","messages":{text}}}"#),
            format!(r#"{{"messages":"x","Messages":{text}}}"#),
            format!(r#"{{"MESSAGES":{text},"messages":"x"}}"#),
            format!(r#"{{"meſſageſ":{text},"messages":"x"}}"#),
            format!(r#"{{"me\u0073sages":{text},"messages":"x"}}"#),
        ] {
            assert_eq!(of(Api::Chat, &body), 100, "{body}");
        }
        // Engines differ on which of these three fields they embed, so the largest one must count.
        let both = format!(r#"{{"input":"x","content":{text},"messages":[]}}"#);
        assert_eq!(of(Api::Embeddings, &both), 100);
        let long = format!(r#"{{"{}":{text}}}"#, "M".repeat(1000));
        assert_eq!(of(Api::Chat, &long), 0);
    }

    #[test]
    fn query_counts_for_every_document() {
        let text = text();
        let rerank = |documents: &str| format!(r#"{{"query":{text},"documents":{documents}}}"#);
        for (documents, tokens) in [
            ("[]", 100),
            (r#"["abcd"]"#, 101),
            (r#"["abcd", "abcd", {"text":"abcd"}]"#, 304),
        ] {
            assert_eq!(of(Api::Rerank, &rerank(documents)), tokens, "{documents}");
        }
        let score = format!(r#"{{"text_1":{text},"text_2":["abcd","abcd"]}}"#);
        assert_eq!(of(Api::Score, &score), 202);
        let pairs = format!(r#"{{"text_1":[{text},{text}],"text_2":["abcd","abcd"]}}"#);
        assert_eq!(of(Api::Score, &pairs), 202);
        let many = rerank(&format!("[{}]", vec![r#""""#; 100_000].join(",")));
        assert_eq!(of(Api::Rerank, &many), 10_000_000);
        let text = "word ".repeat(800_000);
        let absurd = format!(
            r#"{{"query":"{text}","documents":[{}0]}}"#,
            "0,".repeat(100_000)
        );
        assert_eq!(of(Api::Rerank, &absurd), MAX_TOKENS);
    }

    #[test]
    fn last_field_with_the_exact_name_counts_for_affinity() {
        let body = r#"{"messages":"a","messages":"b","Messages":"c","tools":[],"system":"d"}"#;
        let fields = read(Api::Messages, body);
        let value = |at: Option<Range<usize>>| at.map(|at| &body[at]);
        assert_eq!(value(fields.prompt), Some(r#""b""#));
        assert_eq!(value(fields.tools), Some("[]"));
        assert_eq!(value(fields.system), Some(r#""d""#));
        assert_eq!(read(Api::Other, r#"{"input":1}"#).prompt, Some(9..10));
    }
}
