//! Handler of `POST /v1/embeddings` on the demo backends.
//!
//! The vector of a text is the sum of the vectors of its words. Texts with common words are near
//! each other, so that a search over demo vectors yields plausible results.

use http::StatusCode;
use serde_json::{Value, json};

use super::error::DemoError;
use super::fields::RequestFields;
use super::models::Task;
use super::reply::{self, Reply};
use super::{Profile, base64, hash, pieces};

const DIMENSIONS: usize = 64;
const MAX_DIMENSIONS: u64 = 1024;

/// Maximum number of texts in a request for embeddings, as with OpenAI.
const MAX_INPUTS: usize = 2048;

/// Number of dimensions of the vector that one word changes.
const MARKS_PER_WORD: u64 = 8;

/// A text to embed, as the hashes of its tokens.
#[derive(Debug)]
struct Input(Vec<u64>);

#[derive(Clone, Copy, Debug)]
enum Encoding {
    Float,
    Base64,
}

pub(super) async fn embed(profile: &Profile, fields: &RequestFields) -> Result<Reply, DemoError> {
    let model = fields.model(profile, Task::Embed)?;
    let inputs = inputs(fields.required("input")?)?;
    let dimensions = fields.number("dimensions", MAX_DIMENSIONS)?;
    let dimensions = dimensions.unwrap_or(DIMENSIONS);
    let encoding = Encoding::parse(fields)?;
    tokio::time::sleep(profile.pace.first()).await;
    let data: Vec<_> = inputs
        .iter()
        .enumerate()
        .map(|(index, input)| {
            let embedding = encoding.encode(&input.vector(dimensions));
            json!({"object": "embedding", "index": index, "embedding": embedding})
        })
        .collect();
    let tokens: usize = inputs.iter().map(|input| input.0.len()).sum();
    let whole = json!({
        "object": "list",
        "data": data,
        "model": model.id(),
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    });
    Ok(reply::json(StatusCode::OK, &whole))
}

/// Parses the field `input`: a text, the tokens of a text, or an array of either.
fn inputs(value: &Value) -> Result<Vec<Input>, DemoError> {
    let one = || Input::parse(value).map(|input| vec![input]);
    let several = || value.as_array()?.iter().map(Input::parse).collect();
    one()
        .or_else(several)
        .filter(|inputs| (1..=MAX_INPUTS).contains(&inputs.len()))
        .ok_or_else(|| {
            DemoError::bad_field(
                "input",
                format!("'input' must be a text, its tokens, or 1 to {MAX_INPUTS} of these; none of them empty."),
            )
        })
}

impl Input {
    fn parse(value: &Value) -> Option<Self> {
        let tokens: Vec<_> = match value {
            Value::String(text) => pieces::pieces(text)
                .map(|piece| hash::fnv(piece.trim().to_lowercase().as_bytes()))
                .collect(),
            Value::Array(tokens) => tokens.iter().map(Value::as_u64).collect::<Option<_>>()?,
            _ => return None,
        };
        (!tokens.is_empty()).then_some(Self(tokens))
    }

    /// Returns the vector of the text, normalized to length 1.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "embeddings are sent as f32"
    )]
    fn vector(&self, dimensions: usize) -> Vec<f32> {
        // Start with a small value in every dimension: a zero vector could not be normalized.
        let whole = self
            .0
            .iter()
            .fold(0, |hash, &token| hash::mixed(hash ^ token));
        let mut vector: Vec<_> = (0_u64..)
            .take(dimensions)
            .map(|at| fraction(hash::mixed(whole.wrapping_add(at))) / 4.0 + 0.001)
            .collect();
        for token in &self.0 {
            for mark in 0..MARKS_PER_WORD {
                let mark = hash::mixed(hash::mixed(*token) ^ mark);
                let at = usize::try_from((mark >> 1) % dimensions as u64).unwrap_or(0);
                vector[at] += if mark & 1 == 0 { 1.0 } else { -1.0 };
            }
        }
        let length = vector.iter().map(|value| value * value).sum::<f64>().sqrt();
        vector.iter().map(|value| (value / length) as f32).collect()
    }
}

/// Maps a hash to a number from -1 to 1.
fn fraction(hash: u64) -> f64 {
    let small = u32::try_from(hash >> 32).unwrap_or(0);
    f64::from(small) / f64::from(u32::MAX) * 2.0 - 1.0
}

impl Encoding {
    fn parse(fields: &RequestFields) -> Result<Self, DemoError> {
        match fields.get("encoding_format").map(Value::as_str) {
            None | Some(Some("float")) => Ok(Self::Float),
            Some(Some("base64")) => Ok(Self::Base64),
            Some(_) => Err(DemoError::bad_field(
                "encoding_format",
                "'encoding_format' must be 'float' or 'base64'.",
            )),
        }
    }

    fn encode(self, vector: &[f32]) -> Value {
        match self {
            Self::Float => json!(vector),
            Self::Base64 => {
                let bytes: Vec<_> = vector
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect();
                json!(base64::encode(&bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(text: &str, dimensions: usize) -> Vec<f32> {
        Input::parse(&json!(text)).unwrap().vector(dimensions)
    }

    fn nearness(one: &str, other: &str) -> f32 {
        let (one, other) = (vector(one, 64), vector(other, 64));
        one.iter().zip(&other).map(|(a, b)| a * b).sum()
    }

    #[test]
    fn vector_has_length_one() {
        let long = "word ".repeat(5_000);
        for text in ["a", "Hello, wide world!", " ", &long] {
            for dimensions in [1, 2, 64, 1024] {
                let vector = vector(text, dimensions);
                let length = vector.iter().map(|value| value * value).sum::<f32>().sqrt();
                assert_eq!(vector.len(), dimensions);
                assert!((length - 1.0).abs() < 1e-5, "{length} for {text:?}");
            }
        }
    }

    #[test]
    fn texts_with_common_words_are_near() {
        let near = nearness("the cat sat on the mat", "The cat slept on a mat");
        let far = nearness("the cat sat on the mat", "quarterly revenue grew again");
        assert!(near > far + 0.2, "{near} and {far}");
    }

    #[test]
    fn inputs_are_texts_or_tokens() {
        for (input, count) in [
            (json!("one two"), 1),
            (json!(["one", "two"]), 2),
            (json!([1, 2, 3]), 1),
            (json!([[1, 2, 3], [4]]), 2),
        ] {
            assert_eq!(inputs(&input).unwrap().len(), count, "{input}");
        }
        for input in [
            json!(""),
            json!([]),
            json!(["one", ""]),
            json!([[]]),
            json!(1),
            json!([1.5]),
        ] {
            assert!(inputs(&input).is_err(), "{input}");
        }
        assert!(inputs(&json!(vec!["one"; MAX_INPUTS + 1])).is_err());
    }
}
