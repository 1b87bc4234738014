//! Reading a list of models without taking it apart in memory: a backend may send megabytes. What is
//! not needed is skipped while it is read, and what is kept is bounded.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess};
use serde::de::{Error, Visitor};
use serde_json::value::RawValue;

use crate::balance::{Model, Models};
use crate::config::Kind;

/// The fields of a model that are kept.
const KEPT: [&str; 17] = [
    "id",
    "created",
    "object",
    "type",
    OWNER,
    "name",
    "display_name",
    "created_at",
    "root",
    "parent",
    "max_model_len",
    "context_length",
    "context_window",
    "max_context_length",
    "max_input_tokens",
    "max_completion_tokens",
    META,
];
const OWNER: &str = "owned_by";
/// Where llama.cpp reports sizes: the only object that is kept.
const META: &str = "meta";

/// Maximum length of a model's name, in bytes. A model with a longer one is left out.
const LONGEST_ID: usize = 512;
/// Maximum length of any other value, in bytes. A longer one is left out.
const LONGEST_VALUE: usize = 512;

/// What a list says.
#[derive(Debug, Default)]
pub(super) struct ModelList {
    pub(super) models: Models,
    /// The number of elements, also of those that are left out.
    pub(super) total: usize,
    /// The kind of server that names such owners.
    pub(super) kind: Option<Kind>,
}

/// Reads the answer to `/v1/models`. At most `most` models are kept.
pub(super) fn parse(body: &[u8], most: usize) -> Result<ModelList, String> {
    let answer: Answer<'_> = serde_json::from_slice(body)
        .map_err(|_| "its answer to /v1/models is not a JSON object".to_owned())?;
    let data = answer.0.map(RawValue::get).filter(|data| *data != "null");
    match (answer.0, data) {
        // Ollama's answer when it has no models yet.
        (Some(_), None) => Ok(ModelList::default()),
        (_, Some(data)) if data.starts_with('[') => {
            let mut json = serde_json::Deserializer::from_str(data);
            let list = Elements { most }.deserialize(&mut json);
            list.map_err(|_| "its list of models cannot be read".to_owned())
        }
        _ => Err("its answer to /v1/models has no list of models".to_owned()),
    }
}

/// The text of `data`.
struct Answer<'a>(Option<&'a RawValue>);

impl<'de> Deserialize<'de> for Answer<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let [data] = from.deserialize_map(Fields(["data"]))?;
        Ok(Self(data))
    }
}

/// The texts of these fields of an object. The others are skipped.
struct Fields<const N: usize>([&'static str; N]);

impl<'de, const N: usize> Visitor<'de> for Fields<N> {
    type Value = [Option<&'de RawValue>; N];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; N];
        while let Some(name) = map.next_key::<String>()? {
            match self.0.iter().position(|wanted| *wanted == name) {
                Some(place) if found[place].is_some() => {
                    return Err(A::Error::custom("a field occurs twice"));
                }
                Some(place) => found[place] = Some(map.next_value()?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

/// The elements of the list, of which each is read on its own: one that is no model is left out.
struct Elements {
    most: usize,
}

impl<'de> DeserializeSeed<'de> for Elements {
    type Value = ModelList;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<ModelList, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Elements {
    type Value = ModelList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ModelList, A::Error> {
        let mut found = ModelList::default();
        let mut models = Vec::new();
        while models.len() < self.most {
            let Some(element) = list.next_element::<&RawValue>()? else {
                break;
            };
            found.total += 1;
            if let Some((model, kind)) = model(element) {
                found.kind = found.kind.or(kind);
                models.push(model);
            }
        }
        while list.next_element::<IgnoredAny>()?.is_some() {
            found.total += 1;
        }
        found.models = Models::new(models);
        Ok(found)
    }
}

/// A model, and the kind of server that its owner stands for.
fn model(element: &RawValue) -> Option<(Model, Option<Kind>)> {
    let mut json = serde_json::Deserializer::from_str(element.get());
    let [id, created, others @ ..] = json.deserialize_map(Fields(KEPT)).ok()?;
    let id: String = serde_json::from_str(id?.get()).ok()?;
    if id.len() > LONGEST_ID {
        return None;
    }
    let created = created.and_then(|text| serde_json::from_str(text.get()).ok());
    let mut kind = None;
    let mut fields = String::new();
    for (name, value) in KEPT[2..].iter().zip(others) {
        let Some(value) = value
            .map(RawValue::get)
            .filter(|value| is_kept(name, value))
        else {
            continue;
        };
        if *name == OWNER {
            kind = Kind::of_owner(value.trim_matches('"'));
        }
        if !fields.is_empty() {
            fields.push(',');
        }
        fields.extend(["\"", name, "\":", value]);
    }
    Some((Model::new(&id, created, &fields), kind))
}

fn is_kept(name: &str, value: &str) -> bool {
    let is_nested = value.starts_with(['[', '{']);
    value.len() <= LONGEST_VALUE && (!is_nested || name == META)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(body: &str) -> Vec<String> {
        let list = parse(body.as_bytes(), 100).unwrap();
        let write = |model: &Model| {
            let mut text = String::new();
            model.write_json(&mut text);
            text
        };
        list.models.iter().map(write).collect()
    }

    #[test]
    fn what_is_kept_of_a_model_is_what_a_list_shows() {
        let body = r#" {"object":"list","models":[{"id":"x"}],"data":[
            {"created":7,"id":"a","permission":[{"id":"p"}],"owned_by":"vllm","max_model_len":8192,
             "root":"/m","parent":null,"status":{"value":"loaded"},"meta":{"n_ctx_train":4096}},
            {"id":"b","object":["x"],"created":"now"}]} "#;
        assert_eq!(
            written(body),
            [
                r#"{"id":"a","created":7,"owned_by":"vllm","root":"/m","parent":null,"max_model_len":8192,"meta":{"n_ctx_train":4096}}"#,
                r#"{"id":"b"}"#,
            ]
        );
    }

    #[test]
    fn what_is_too_long_is_left_out() {
        let long = "x".repeat(513);
        let body = format!(
            r#"{{"data":[{{"id":"{long}"}},{{"id":"a","name":"{long}","meta":{{"k":"{long}"}}}}]}}"#
        );
        assert_eq!(written(&body), [r#"{"id":"a"}"#]);
    }

    #[test]
    fn an_element_that_is_no_model_is_left_out() {
        let body = r#"{"data":[{"id":5},7,"a",null,[1],{"id":"a","id":"b"},{},{"id":"c"}]}"#;
        assert_eq!(written(body), [r#"{"id":"c"}"#]);
        let list = parse(body.as_bytes(), 100).unwrap();
        assert_eq!(list.total, 8);
    }

    #[test]
    fn no_more_models_are_kept_than_allowed() {
        let body = r#"{"data":[{"id":"a"},{"id":"b"},{"id":"c"},{"id":"d"}]}"#;
        let list = parse(body.as_bytes(), 2).unwrap();
        assert_eq!((list.models.len(), list.total), (2, 4));
        let list = parse(body.as_bytes(), 4).unwrap();
        assert_eq!((list.models.len(), list.total), (4, 4));
    }

    #[test]
    fn an_answer_without_a_list_is_an_error() {
        for (body, why) in [
            ("<html>", "not a JSON object"),
            ("[]", "not a JSON object"),
            (r#"{"data":[}"#, "not a JSON object"),
            (r#"{"data":[]} x"#, "not a JSON object"),
            (r#"{"data":[],"data":[]}"#, "not a JSON object"),
            ("{}", "no list of models"),
            (r#"{"data":{}}"#, "no list of models"),
            (r#"{"data":"x"}"#, "no list of models"),
        ] {
            let error = parse(body.as_bytes(), 100).unwrap_err();
            assert!(error.contains(why), "{body}: {error}");
        }
        assert_eq!(written(r#"{"data":null}"#), [""; 0]);
    }

    #[test]
    fn owners_tell_the_kind_of_server() {
        let kind = |owner: &str| {
            let body = format!(r#"{{"data":[{{"id":"a"}},{{"id":"b","owned_by":"{owner}"}}]}}"#);
            parse(body.as_bytes(), 100).unwrap().kind
        };
        assert_eq!(kind("vllm"), Some(Kind::Vllm));
        assert_eq!(kind("library"), Some(Kind::Ollama));
        assert_eq!(kind("me"), None);
    }

    #[test]
    fn lists_that_are_nested_deeply_are_refused() {
        let deep = "[".repeat(100_000);
        assert!(parse(format!(r#"{{"data":[{{"id":"a","x":{deep}"#).as_bytes(), 9).is_err());
        assert!(parse(format!(r#"{{"data":{deep}"#).as_bytes(), 9).is_err());
    }
}
