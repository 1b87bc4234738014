//! Estimated tokens of a prompt, from its JSON.
//!
//! Every string counts as text. Field names count too, in place of the tokens that a chat template adds.
//! A string is an attachment only in a field in which an API expects an image, a sound or a file: the
//! length of an attachment does not determine its tokens. In all other fields, and in the arguments of
//! tool calls, the model reads the string as text. Otherwise a client could disguise text as an image to
//! be billed for less.

use super::text::{count_pairs, parts_with_escapes};
use super::{ATTACHMENT, by_length, tokens};
use crate::json::{self, Malformed, Visitor};

/// Minimum base64 length of an embedding vector, which stands for one token of a prompt: the
/// smallest models have 768 dimensions of 16 bits each. A shorter string still counts as one token.
const EMBEDDED_TOKEN: u64 = 2048;

/// Maximum nesting in which the estimate recognizes attachments. Strings that are nested deeper
/// count as text.
const MAX_DEPTH: usize = 32;

/// Minimum base64 length of an image in the `result` field of a tool's output. A shorter `result`
/// counts as text.
const MIN_RESULT: usize = 1024;

/// Returns the estimated tokens of `messages`, `prompt` or `input` in a request, whose JSON value
/// begins at offset `at`, and the offset of the value's end. A number is a token id and counts as
/// one token.
pub(crate) fn prompt(json: &[u8], at: usize) -> Result<(u64, usize), Malformed> {
    PromptWalk::new(FieldName::Content).tokens(json, at)
}

/// As [`prompt`], for a field that is a list of images in base64: each image counts as one
/// attachment.
pub(crate) fn images(json: &[u8], at: usize) -> Result<(u64, usize), Malformed> {
    PromptWalk::new(FieldName::Images).tokens(json, at)
}

/// As [`prompt`], for a field with a prompt of embedding vectors in base64, which count by their
/// length.
pub(crate) fn embedded(json: &[u8], at: usize) -> Result<(u64, usize), Malformed> {
    PromptWalk::new(FieldName::Embedded).tokens(json, at)
}

/// Field names in a prompt that determine if the field's value counts as text or as an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FieldName {
    Content,
    /// Field such as `image_url`, whose value is an object with a `url` or `data` field, or the URL
    /// itself.
    Media,
    /// A list of images.
    Images,
    Url,
    Data,
    File,
    FileData,
    /// Field that names a file which the backend stores or downloads.
    FileReference,
    /// Anthropic's `source` object, which contains an image or a document and the fields that
    /// describe the data.
    Source,
    Type,
    MediaType,
    /// `result` field of a tool's output, which is an image if an image generator made it.
    Result,
    Embedded,
    Other,
}

impl FieldName {
    fn parse(name: &[u8]) -> Self {
        match name {
            b"content" | b"output" => Self::Content,
            b"image_url" | b"input_audio" | b"audio_url" | b"video_url" => Self::Media,
            b"images" | b"multimodal_data" => Self::Images,
            b"url" => Self::Url,
            b"data" => Self::Data,
            b"file" => Self::File,
            b"file_data" => Self::FileData,
            b"file_id" | b"file_url" => Self::FileReference,
            b"source" => Self::Source,
            b"type" => Self::Type,
            b"media_type" => Self::MediaType,
            b"result" => Self::Result,
            b"prompt_embeds" | b"image_embeds" | b"audio_embeds" => Self::Embedded,
            _ => Self::Other,
        }
    }
}

/// Kind of a JSON object or list in a prompt. The kind determines if a string in it counts as text
/// or as an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Container {
    /// Messages, and the parts of their content. Only fields of such an object or list can be
    /// attachments, or contain them.
    Content,
    /// Value of a field such as `image_url`. The string in `url` or `data` counts as an attachment.
    Media,
    /// List of images in base64. Each string counts as one attachment, whatever its length.
    Images,
    /// File object in a message. Its field `file_data` counts as one attachment if it is an image,
    /// sound, video or PDF, otherwise as text of the decoded length.
    File,
    /// Anthropic's `source` object. Its data counts as an attachment only if all other fields mark
    /// it as an image or a PDF, otherwise as text.
    Source,
    /// List of embedding vectors in base64. Each string counts by its length.
    Embedded,
    /// Object or list of no other kind. All strings in it count as text, so that a client cannot
    /// hide text from the estimate in a field such as `url`.
    Text,
}

impl Container {
    /// Returns the kind of an object or a list that is nested in this container. `name` is the name
    /// of the field with the nested value; elements of a list have no name.
    fn within(self, name: Option<FieldName>) -> Self {
        match (self, name) {
            (Self::Content, None | Some(FieldName::Content))
            | (Self::Source, Some(FieldName::Content)) => Self::Content,
            (Self::Content, Some(FieldName::Media)) => Self::Media,
            (Self::Content, Some(FieldName::Images)) => Self::Images,
            (Self::Content, Some(FieldName::File)) => Self::File,
            (Self::Content, Some(FieldName::Source)) => Self::Source,
            (Self::Content, Some(FieldName::Embedded)) => Self::Embedded,
            _ => Self::Text,
        }
    }
}

/// Visitor of the JSON of a prompt, which adds up the estimated tokens.
struct PromptWalk {
    /// Kinds of the objects and lists around the current JSON value, the innermost last.
    containers: [Container; MAX_DEPTH],
    depth: usize,
    /// Name of the field whose value comes next, which determines if the value counts as an
    /// attachment or as text.
    name: Option<FieldName>,
    parts: u64,
    tokens: u64,
    source: SourceObject,
}

/// The open `source` object. Its data counts as an attachment only if every other field marks the data as
/// base64 of an image or a PDF. Otherwise a duplicate field could hide text from the estimate.
#[derive(Debug, Default)]
struct SourceObject {
    is_base64: bool,
    is_text: bool,
    parts: u64,
    attachments: u64,
}

impl PromptWalk {
    fn new(name: FieldName) -> Self {
        Self {
            containers: [Container::Text; MAX_DEPTH],
            depth: 0,
            name: Some(name),
            parts: 0,
            tokens: 0,
            source: SourceObject::default(),
        }
    }

    fn tokens(mut self, json: &[u8], at: usize) -> Result<(u64, usize), Malformed> {
        let end = json::visit(json, at, &mut self)?;
        self.count_source();
        Ok((tokens(self.parts) + self.tokens, end))
    }

    fn container(&self) -> Container {
        match self.depth.checked_sub(1) {
            None => Container::Content,
            Some(last) => self
                .containers
                .get(last)
                .copied()
                .unwrap_or(Container::Text),
        }
    }

    fn name(&mut self, container: Container, text: &[u8], parts: u64) {
        let name = FieldName::parse(text);
        if container == Container::Source && name == FieldName::Other {
            // A backend may read an unknown name as another spelling of `type`, so the data of the
            // object counts as text.
            self.source.is_text = true;
        }
        self.name = Some(name);
        self.parts += parts;
    }

    fn value(&mut self, container: Container, text: &[u8], parts: impl FnOnce() -> u64) {
        match (container, self.name.take()) {
            (Container::Content, Some(FieldName::Media | FieldName::FileReference))
            | (Container::Media, Some(FieldName::Url | FieldName::Data))
            | (Container::Images, None)
            | (Container::Source, Some(FieldName::Url | FieldName::FileReference)) => {
                self.tokens += ATTACHMENT;
            }
            (Container::Content | Container::File, Some(FieldName::FileData)) => {
                self.tokens += file(text);
            }
            (Container::Content, Some(FieldName::Embedded)) | (Container::Embedded, None) => {
                self.tokens += 1 + text.len() as u64 / EMBEDDED_TOKEN;
            }
            (Container::Content, Some(FieldName::Result))
                if text.len() >= MIN_RESULT && is_base64(text) =>
            {
                self.tokens += ATTACHMENT;
            }
            (Container::Source, Some(FieldName::Data)) => {
                self.source.parts += parts();
                self.source.attachments += 1;
            }
            (Container::Source, name) => {
                let is_media = text.starts_with(b"image/") || text == b"application/pdf";
                match name {
                    Some(FieldName::Type) if text == b"base64" => self.source.is_base64 = true,
                    Some(FieldName::MediaType) if is_media => {}
                    _ => self.source.is_text = true,
                }
                self.parts += parts();
            }
            _ => self.parts += parts(),
        }
    }

    /// Adds the tokens of the `source` object that was just read: one attachment if all its fields
    /// mark an image or a PDF, otherwise its data as text.
    fn count_source(&mut self) {
        let source = std::mem::take(&mut self.source);
        if source.is_base64 && !source.is_text {
            self.tokens += source.attachments * ATTACHMENT;
        } else {
            self.parts += source.parts;
        }
    }
}

impl Visitor for PromptWalk {
    fn string(&mut self, text: &[u8], first_escape: Option<usize>, after: &[u8]) {
        let parts = || parts_with_escapes(text, first_escape);
        let container = self.container();
        if container != Container::Text && is_name(after) {
            self.name(container, text, parts());
        } else {
            self.value(container, text, parts);
        }
    }

    fn open(&mut self) {
        let container = self.container().within(self.name.take());
        if container == Container::Source {
            self.count_source();
        }
        if let Some(last) = self.containers.get_mut(self.depth) {
            *last = container;
        }
        self.depth += 1;
    }

    fn close(&mut self) {
        if self.container() == Container::Source {
            self.count_source();
        }
        self.name = None;
        self.depth = self.depth.saturating_sub(1);
    }

    fn between(&mut self, bytes: &[u8]) {
        if !matches!(bytes, [] | [b',' | b':'] | [b',' | b':', b' ']) {
            self.tokens += numbers(bytes);
        }
    }
}

/// True if the bytes after a JSON string begin with a colon, so that the string is a field name and
/// no value.
fn is_name(after: &[u8]) -> bool {
    match after.first() {
        Some(b':') => true,
        Some(b' ' | b'\t' | b'\n' | b'\r') => after.trim_ascii_start().first() == Some(&b':'),
        _ => false,
    }
}

/// Returns the estimated tokens of a file in base64. An image, a sound, a video or a PDF counts as
/// one attachment, whatever its length. Any other file counts as text of the decoded length.
fn file(text: &[u8]) -> u64 {
    const ATTACHMENTS: [&[u8]; 4] = [
        b"data:image/",
        b"data:audio/",
        b"data:video/",
        b"data:application/pdf",
    ];
    if ATTACHMENTS.iter().any(|kind| text.starts_with(kind)) {
        ATTACHMENT
    } else {
        by_length(text.len() as u64 * 3 / 4)
    }
}

fn is_base64(text: &[u8]) -> bool {
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(byte);
    text.iter().all(is_digit)
}

/// Returns how many numbers are between two strings or brackets of the JSON. Each is a token id, so
/// that it counts as one token.
fn numbers(json: &[u8]) -> u64 {
    let is_digit = |byte: u8| u8::from(byte.is_ascii_digit());
    let is_other_part =
        |byte: u8| u8::from(byte | 0x20 == b'e') | u8::from(byte == b'.') | u8::from(byte == b'+');
    let begins = |before, byte| is_digit(byte) & (1 - (is_digit(before) | is_other_part(before)));
    let [count, _] = count_pairs(json, |before, byte| [begins(before, byte), 0]);
    count + json.first().map_or(0, |first| u64::from(is_digit(*first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(json: &str) -> u64 {
        let (tokens, end) = prompt(json.as_bytes(), 0).unwrap();
        assert_eq!(end, json.len());
        tokens
    }

    #[test]
    fn strings_and_numbers_are_counted() {
        let messages = r#"[{"role":"user","content":"The quick brown fox "}]"#;
        assert_eq!(count(messages), 5 + 4);
        assert_eq!(count(r#""The quick brown fox ""#), 5);
        assert_eq!(count("[1,22,333]"), 3);
        assert_eq!(count("[[1, 22], [333,4]]"), 4);
        assert_eq!(count(r#"[1,"abcd",2]"#), 3);
        assert_eq!(count(r#"{"a":1.5e+3,"b":true}"#), 2);
        assert_eq!(count(&format!("[{}]", vec!["12345"; 1000].join(","))), 1000);
        for nothing in ["[null]", "\"\"", "[]", "{}"] {
            assert_eq!(count(nothing), 0, "{nothing}");
        }
        for malformed in ["", "\"", "\"abcd", "]]", "[1,2"] {
            assert_eq!(prompt(malformed.as_bytes(), 0), Err(Malformed));
        }
    }

    #[test]
    fn long_text_is_counted_whole() {
        for (text, tokens) in [
            ("word ".repeat(800), 1000),
            ("word ".repeat(80_000), 100_000),
            ("word".repeat(80_000), 80_000),
            (
                format!("data:image/png;base64,{}", "A".repeat(40_000)),
                10_006,
            ),
        ] {
            assert_eq!(count(&format!(r#""{text}""#)), tokens);
            assert_eq!(count(&format!(r#"[{{"content":"{text}"}}]"#)), tokens + 2);
        }
    }

    fn content(part: &str) -> u64 {
        count(&format!(r#"[{{"role":"user","content":[{part}]}}]"#)) - 4
    }

    #[test]
    fn string_in_an_attachment_field_counts_as_an_attachment() {
        let data = "Ab+/".repeat(100_000);
        for part in [
            format!(r#"{{"image_url":{{"url":"data:image/png;base64,{data}"}}}}"#),
            format!(r#"{{"image_url":{{"detail":"high","url":"{data}"}}}}"#),
            format!(r#"{{"image_url":"data:image/png;base64,{data}"}}"#),
            r#"{"image_url":{"url":"https://example.com/cat.png"}}"#.to_owned(),
            format!(r#"{{"input_audio":{{"data":"{data}","format":"wav"}}}}"#),
            format!(r#"{{"video_url":{{"url":"data:video/mp4;base64,{data}"}}}}"#),
            format!(r#"{{"file":{{"file_data":"data:application/pdf;base64,{data}"}}}}"#),
            format!(r#"{{"file_data":"data:application/pdf;base64,{data}"}}"#),
            r#"{"file_id":"file-1"}"#.to_owned(),
            format!(r#"{{"source":{{"type":"base64","media_type":"image/png","data":"{data}"}}}}"#),
            format!(r#"{{"source" : {{ "data" : "{data}" , "type" : "base64" }} }}"#),
            r#"{"source":{"type":"url","url":"https://example.com/cat.png"}}"#.to_owned(),
            format!(r#"{{"content":[{{"source":{{"type":"base64","data":"{data}"}}}}]}}"#),
            format!(r#"{{"source":{{"type":"content","content":[{{"image_url":"{data}"}}]}}}}"#),
            format!(r#"{{"type":"image_generation_call","result":"{data}"}}"#),
        ] {
            let tokens = content(&part);
            assert!((500..520).contains(&tokens), "{tokens} {}", &part[..60]);
        }
        let count_message = |more: &str| count(&format!(r#"[{{"role":"user",{more}}}]"#));
        let images = format!(r#""images":["{data}","{data}"]"#);
        assert!((1000..1020).contains(&count_message(&images)));
        assert_eq!(
            super::images(format!(r#"["{data}","{data}"]"#).as_bytes(), 0).map(|read| read.0),
            Ok(1000)
        );
        let prompt = format!(r#"{{"prompt_string":"abcd","multimodal_data":["{data}"]}}"#);
        assert!((500..520).contains(&count(&prompt)));
    }

    #[test]
    fn attachment_data_in_any_other_field_counts_as_text() {
        let data = "Ab+/".repeat(10_000);
        for part in [
            format!(r#"{{"type":"text","text":"{data}"}}"#),
            format!(r#"{{"data":"{data}"}}"#),
            format!(r#"{{"url":"{data}"}}"#),
            format!(r#"{{"result":"{data} and words"}}"#),
            // These `source` objects do not mark their data as base64 of an image or a PDF. The
            // data must count as text, otherwise a client could disguise text as an image.
            format!(r#"{{"source":{{"type":"text","media_type":"text/plain","data":"{data}"}}}}"#),
            format!(
                r#"{{"source":{{"type":"base64","media_type":"text/plain","data":"{data}"}}}}"#
            ),
            format!(r#"{{"source":{{"data":"{data}"}}}}"#),
            // A backend may use the second of two `type` fields, in any case or spelling. So the
            // data must count as text, whatever the first `type` is.
            format!(r#"{{"source":{{"type":"base64","type":"text","data":"{data}"}}}}"#),
            format!(r#"{{"source":{{"type":"base64","type":"te\u0078t","data":"{data}"}}}}"#),
            format!(r#"{{"source":{{"type":"base64","typ\u0065":"te\u0078t","data":"{data}"}}}}"#),
            format!(r#"{{"source":{{"data":"{data}","type":"base64","Type":"x"}}}}"#),
            format!(r#"{{"source":{{"data":"{data}","source":{{"type":"base64"}}}}}}"#),
            // The model reads the arguments of tool calls as text. An object in them that looks
            // like an image must count as text.
            format!(r#"{{"type":"tool_use","input":{{"image_url":"{data}"}}}}"#),
            format!(r#"{{"type":"tool_use","input":{{"content":[{{"image_url":"{data}"}}]}}}}"#),
            format!(r#"{{"arguments":{{"images":["{data}"]}}}}"#),
            format!(r#"{{"image_url":{{"x":{{"url":"{data}"}}}}}}"#),
        ] {
            let tokens = content(&part);
            assert!(
                (10_000..10_060).contains(&tokens),
                "{tokens} {}",
                &part[..60]
            );
        }
        let nested = format!("{}\"{data}\"{}", "[".repeat(60), "]".repeat(60));
        let image = format!(
            "{}{{\"image_url\":\"{data}\"}}{}",
            "[".repeat(60),
            "]".repeat(60)
        );
        assert_eq!([count(&nested), count(&image)], [10_000, 10_003]);
    }

    #[test]
    fn text_file_counts_as_its_text() {
        let data = "Ab+/".repeat(10_000);
        for kind in [
            "data:text/plain;base64,",
            "data:application/json;base64,",
            "",
        ] {
            let tokens = content(&format!(r#"{{"file":{{"file_data":"{kind}{data}"}}}}"#));
            assert!((7_500..7_520).contains(&tokens), "{tokens} {kind}");
        }
    }

    #[test]
    fn embedded_prompt_counts_one_token_per_smallest_vector() {
        let data = "A".repeat(100 * 2048);
        let count = |json: String| embedded(json.as_bytes(), 0).unwrap().0;
        assert_eq!(count(format!("\"{data}\"")), 101);
        assert_eq!(count(format!("[\"{data}\",\"{data}\"]")), 202);
    }
}
