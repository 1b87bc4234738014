//! The tokens of a prompt, by the JSON that it is.
//!
//! All strings count as text, names of fields too: these stand for what a chat template adds. Only at
//! the places where an API expects an image, a sound or a file is a string an attachment, whose length
//! says little about its tokens. Elsewhere the same bytes are text that the model reads, whatever
//! they look like; so is everything within the arguments of a tool call.

use super::text::{count_pairs, parts_with_escapes};
use super::{ATTACHMENT, by_length, tokens};
use crate::json::{self, Malformed, Visitor};

/// A vector of 16-bit numbers that stands for one token is at least so long in base64: no model has
/// fewer than 768 dimensions.
const EMBEDDED_TOKEN: u64 = 2048;

/// Nesting that is followed. What is nested deeper is text.
const DEEPEST: usize = 32;

/// A generated image is longer than this.
const SHORTEST_RESULT: usize = 1024;

/// The tokens of the JSON value that begins at `at`, which is that of `messages`, `prompt`, `input` or
/// the like, and the place where it ends. A number is the id of a token.
pub(crate) fn prompt(json: &[u8], at: usize) -> Result<(u64, usize), Malformed> {
    Walk::new(Name::Content).tokens(json, at)
}

/// The same of a list of images in base64.
pub(crate) fn images(json: &[u8], at: usize) -> Result<(u64, usize), Malformed> {
    Walk::new(Name::Images).tokens(json, at)
}

/// The same of a prompt that is given as vectors in base64.
pub(crate) fn embedded(json: &[u8], at: usize) -> Result<(u64, usize), Malformed> {
    Walk::new(Name::Embedded).tokens(json, at)
}

/// The name of a field that decides how its value is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// Parts of a message, or of a tool's output.
    Content,
    /// An object with a `url` or `data`, or the URL itself.
    Media,
    /// A list of images.
    Images,
    Url,
    Data,
    /// An object with `file_data`.
    File,
    FileData,
    /// A file that the backend has or fetches.
    FileElsewhere,
    /// Anthropic's object with the data of an image or a document, and the fields that describe it.
    Source,
    Type,
    MediaType,
    /// An image that was generated earlier in the conversation.
    Result,
    Embedded,
    Other,
}

impl Name {
    fn parse(name: &[u8]) -> Self {
        match name {
            b"content" | b"output" => Self::Content,
            b"image_url" | b"input_audio" | b"audio_url" | b"video_url" => Self::Media,
            b"images" | b"multimodal_data" => Self::Images,
            b"url" => Self::Url,
            b"data" => Self::Data,
            b"file" => Self::File,
            b"file_data" => Self::FileData,
            b"file_id" | b"file_url" => Self::FileElsewhere,
            b"source" => Self::Source,
            b"type" => Self::Type,
            b"media_type" => Self::MediaType,
            b"result" => Self::Result,
            b"prompt_embeds" | b"image_embeds" | b"audio_embeds" => Self::Embedded,
            _ => Self::Other,
        }
    }
}

/// The meaning of an object or a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Messages and their parts.
    Content,
    Media,
    Images,
    File,
    Source,
    Embedded,
    /// Something else, with all that is in it.
    Text,
}

impl Place {
    /// The meaning of an object or a list in this place; elements of a list have no name.
    fn within(self, name: Option<Name>) -> Self {
        match (self, name) {
            (Self::Content, None | Some(Name::Content)) | (Self::Source, Some(Name::Content)) => {
                Self::Content
            }
            (Self::Content, Some(Name::Media)) => Self::Media,
            (Self::Content, Some(Name::Images)) => Self::Images,
            (Self::Content, Some(Name::File)) => Self::File,
            (Self::Content, Some(Name::Source)) => Self::Source,
            (Self::Content, Some(Name::Embedded)) => Self::Embedded,
            _ => Self::Text,
        }
    }
}

/// Follows the strings and brackets of a prompt.
struct Walk {
    /// The objects and lists that are open, the innermost last.
    places: [Place; DEEPEST],
    depth: usize,
    /// The name of the value that comes next.
    name: Option<Name>,
    parts: u64,
    /// Tokens of numbers and attachments.
    tokens: u64,
    source: Source,
}

/// The `source` that is open. Its data is text unless all of its fields say otherwise.
#[derive(Debug, Default)]
struct Source {
    is_base64: bool,
    is_text: bool,
    parts: u64,
    attachments: u64,
}

impl Walk {
    fn new(name: Name) -> Self {
        Self {
            places: [Place::Text; DEEPEST],
            depth: 0,
            name: Some(name),
            parts: 0,
            tokens: 0,
            source: Source::default(),
        }
    }

    fn tokens(mut self, json: &[u8], at: usize) -> Result<(u64, usize), Malformed> {
        let end = json::visit(json, at, &mut self)?;
        self.settle();
        Ok((tokens(self.parts) + self.tokens, end))
    }

    /// The place of the value that comes next.
    fn place(&self) -> Place {
        match self.depth.checked_sub(1) {
            None => Place::Content,
            Some(last) => self.places.get(last).copied().unwrap_or(Place::Text),
        }
    }

    fn name(&mut self, place: Place, text: &[u8], parts: u64) {
        let name = Name::parse(text);
        if place == Place::Source && name == Name::Other {
            // Perhaps a known name in another spelling.
            self.source.is_text = true;
        }
        self.name = Some(name);
        self.parts += parts;
    }

    fn value(&mut self, place: Place, text: &[u8], parts: impl FnOnce() -> u64) {
        match (place, self.name.take()) {
            (Place::Content, Some(Name::Media | Name::FileElsewhere))
            | (Place::Media, Some(Name::Url | Name::Data))
            | (Place::Images, None)
            | (Place::Source, Some(Name::Url | Name::FileElsewhere)) => self.tokens += ATTACHMENT,
            (Place::Content | Place::File, Some(Name::FileData)) => self.tokens += file(text),
            (Place::Content, Some(Name::Embedded)) | (Place::Embedded, None) => {
                self.tokens += 1 + text.len() as u64 / EMBEDDED_TOKEN;
            }
            (Place::Content, Some(Name::Result))
                if text.len() >= SHORTEST_RESULT && is_base64(text) =>
            {
                self.tokens += ATTACHMENT;
            }
            (Place::Source, Some(Name::Data)) => {
                self.source.parts += parts();
                self.source.attachments += 1;
            }
            (Place::Source, name) => {
                let is_media = text.starts_with(b"image/") || text == b"application/pdf";
                match name {
                    Some(Name::Type) if text == b"base64" => self.source.is_base64 = true,
                    Some(Name::MediaType) if is_media => {}
                    _ => self.source.is_text = true,
                }
                self.parts += parts();
            }
            _ => self.parts += parts(),
        }
    }

    /// Counts the data of a `source` that ends here.
    fn settle(&mut self) {
        let source = std::mem::take(&mut self.source);
        if source.is_base64 && !source.is_text {
            self.tokens += source.attachments * ATTACHMENT;
        } else {
            self.parts += source.parts;
        }
    }
}

impl Visitor for Walk {
    fn string(&mut self, text: &[u8], first_escape: Option<usize>, after: &[u8]) {
        let parts = || parts_with_escapes(text, first_escape);
        let place = self.place();
        if place != Place::Text && is_name(after) {
            self.name(place, text, parts());
        } else {
            self.value(place, text, parts);
        }
    }

    fn open(&mut self) {
        let place = self.place().within(self.name.take());
        if place == Place::Source {
            self.settle();
        }
        if let Some(last) = self.places.get_mut(self.depth) {
            *last = place;
        }
        self.depth += 1;
    }

    fn close(&mut self) {
        if self.place() == Place::Source {
            self.settle();
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

/// True if the string in front of this is the name of a field.
fn is_name(after: &[u8]) -> bool {
    match after.first() {
        Some(b':') => true,
        Some(b' ' | b'\t' | b'\n' | b'\r') => after.trim_ascii_start().first() == Some(&b':'),
        _ => false,
    }
}

/// The tokens of a file in base64: those of its text, or of an attachment if it is none.
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

/// The count of numbers between two strings or brackets.
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

    fn of(json: &str) -> u64 {
        let (tokens, end) = prompt(json.as_bytes(), 0).unwrap();
        assert_eq!(end, json.len());
        tokens
    }

    #[test]
    fn strings_and_numbers_are_counted() {
        let messages = r#"[{"role":"user","content":"The quick brown fox "}]"#;
        assert_eq!(of(messages), 5 + 4);
        assert_eq!(of(r#""The quick brown fox ""#), 5);
        assert_eq!(of("[1,22,333]"), 3);
        assert_eq!(of("[[1, 22], [333,4]]"), 4);
        assert_eq!(of(r#"[1,"abcd",2]"#), 3);
        assert_eq!(of(r#"{"a":1.5e+3,"b":true}"#), 2);
        assert_eq!(of(&format!("[{}]", vec!["12345"; 1000].join(","))), 1000);
        for nothing in ["[null]", "\"\"", "[]", "{}"] {
            assert_eq!(of(nothing), 0, "{nothing}");
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
            assert_eq!(of(&format!(r#""{text}""#)), tokens);
            assert_eq!(of(&format!(r#"[{{"content":"{text}"}}]"#)), tokens + 2);
        }
    }

    /// A message whose content is this list of parts, with the tokens of its names.
    fn content(part: &str) -> u64 {
        of(&format!(r#"[{{"role":"user","content":[{part}]}}]"#)) - 4
    }

    #[test]
    fn attachments_are_known_by_their_place() {
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
        let of_message = |more: &str| of(&format!(r#"[{{"role":"user",{more}}}]"#));
        let images = format!(r#""images":["{data}","{data}"]"#);
        assert!((1000..1020).contains(&of_message(&images)));
        assert_eq!(
            super::images(format!(r#"["{data}","{data}"]"#).as_bytes(), 0).map(|read| read.0),
            Ok(1000)
        );
        let prompt = format!(r#"{{"prompt_string":"abcd","multimodal_data":["{data}"]}}"#);
        assert!((500..520).contains(&of(&prompt)));
    }

    #[test]
    fn the_same_bytes_elsewhere_are_text() {
        let data = "Ab+/".repeat(10_000);
        for part in [
            format!(r#"{{"type":"text","text":"{data}"}}"#),
            format!(r#"{{"data":"{data}"}}"#),
            format!(r#"{{"url":"{data}"}}"#),
            format!(r#"{{"result":"{data} and words"}}"#),
            // Documents that are text.
            format!(r#"{{"source":{{"type":"text","media_type":"text/plain","data":"{data}"}}}}"#),
            format!(
                r#"{{"source":{{"type":"base64","media_type":"text/plain","data":"{data}"}}}}"#
            ),
            format!(r#"{{"source":{{"data":"{data}"}}}}"#),
            // A parser may read the last of two fields, in any case and spelling.
            format!(r#"{{"source":{{"type":"base64","type":"text","data":"{data}"}}}}"#),
            format!(r#"{{"source":{{"type":"base64","type":"te\u0078t","data":"{data}"}}}}"#),
            format!(r#"{{"source":{{"type":"base64","typ\u0065":"te\u0078t","data":"{data}"}}}}"#),
            format!(r#"{{"source":{{"data":"{data}","type":"base64","Type":"x"}}}}"#),
            format!(r#"{{"source":{{"data":"{data}","source":{{"type":"base64"}}}}}}"#),
            // Arguments of tools are given to the model as they are.
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
        assert_eq!([of(&nested), of(&image)], [10_000, 10_003]);
    }

    #[test]
    fn a_file_of_text_counts_as_its_text() {
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
    fn embedded_prompts_count_by_their_smallest_vectors() {
        let data = "A".repeat(100 * 2048);
        let of = |json: String| embedded(json.as_bytes(), 0).unwrap().0;
        assert_eq!(of(format!("\"{data}\"")), 101);
        assert_eq!(of(format!("[\"{data}\",\"{data}\"]")), 202);
    }
}
