//! Parser for a backend's list of models, with bounded memory: a backend may send megabytes. Fields
//! that are not needed are skipped, and the kept ones are limited in number and length.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess};
use serde::de::{Error, Visitor};
use serde_json::value::RawValue;

use crate::balance::{Model, Models};
use crate::config::Kind;

/// Fields of a model that are kept from a backend's list and shown in `/v1/models`. All others are
/// skipped.
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
/// Field of a model in which llama.cpp reports sizes. It is the only nested value that is kept from
/// a backend's list.
const META: &str = "meta";

/// Maximum length of a model's id, in bytes. A model with a longer id is left out of the list.
const MAX_ID: usize = 512;
/// Maximum length of a value in a model's fields except `id` and `created`, in bytes. A field with
/// a longer value is left out, so that a list of models uses bounded memory.
const MAX_VALUE: usize = 512;

#[derive(Debug, Default)]
pub(super) struct ModelList {
    pub(super) models: Models,
    /// Number of elements in the backend's list, including those that are left out.
    pub(super) total: usize,
    /// Kind of server (such as Ollama), derived from the field `owned_by` of its models.
    pub(super) kind: Option<Kind>,
}

/// Parses a response to `/v1/models`. Keeps at most `max` models, which bounds memory.
pub(super) fn parse(body: &[u8], max: usize) -> Result<ModelList, String> {
    let response: ModelsResponse<'_> = serde_json::from_slice(body)
        .map_err(|_| "its response to /v1/models is not a JSON object".to_owned())?;
    let data = response.0.map(RawValue::get).filter(|data| *data != "null");
    match (response.0, data) {
        // Accept `null` as an empty list: Ollama responds `"data": null` when it has no models yet.
        (Some(_), None) => Ok(ModelList::default()),
        (_, Some(data)) if data.starts_with('[') => {
            let mut json = serde_json::Deserializer::from_str(data);
            let list = ModelsVisitor { max }.deserialize(&mut json);
            list.map_err(|_| "its response to /v1/models has an invalid list of models".to_owned())
        }
        _ => Err("its response to /v1/models has no list of models".to_owned()),
    }
}

/// Response to `/v1/models`, reduced to the raw JSON of its field `data`.
struct ModelsResponse<'a>(Option<&'a RawValue>);

impl<'de> Deserialize<'de> for ModelsResponse<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let [data] = from.deserialize_map(FieldsVisitor(["data"]))?;
        Ok(Self(data))
    }
}

/// Visitor that returns the raw JSON of the named fields of an object and skips the others. A
/// repeated field is an error, because readers could disagree on its value.
struct FieldsVisitor<const N: usize>([&'static str; N]);

impl<'de, const N: usize> Visitor<'de> for FieldsVisitor<N> {
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

/// Visitor of the list of models. Each element is parsed on its own, so that an invalid element is
/// left out without losing the others.
struct ModelsVisitor {
    max: usize,
}

impl<'de> DeserializeSeed<'de> for ModelsVisitor {
    type Value = ModelList;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<ModelList, D::Error> {
        from.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ModelsVisitor {
    type Value = ModelList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ModelList, A::Error> {
        let mut found = ModelList::default();
        let mut models = Vec::new();
        while models.len() < self.max {
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

/// Parses one model of the list, and the kind of server that the model's `owned_by` implies.
fn model(element: &RawValue) -> Option<(Model, Option<Kind>)> {
    let mut json = serde_json::Deserializer::from_str(element.get());
    let [id, created, others @ ..] = json.deserialize_map(FieldsVisitor(KEPT)).ok()?;
    let id: String = serde_json::from_str(id?.get()).ok()?;
    if id.len() > MAX_ID {
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
            kind = Kind::from_owner(value.trim_matches('"'));
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
    value.len() <= MAX_VALUE && (!is_nested || name == META)
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
    fn model_keeps_only_the_known_fields() {
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
    fn overlong_ids_and_values_are_left_out() {
        let long = "x".repeat(513);
        let body = format!(
            r#"{{"data":[{{"id":"{long}"}},{{"id":"a","name":"{long}","meta":{{"k":"{long}"}}}}]}}"#
        );
        assert_eq!(written(&body), [r#"{"id":"a"}"#]);
    }

    #[test]
    fn invalid_element_is_left_out() {
        let body = r#"{"data":[{"id":5},7,"a",null,[1],{"id":"a","id":"b"},{},{"id":"c"}]}"#;
        assert_eq!(written(body), [r#"{"id":"c"}"#]);
        let list = parse(body.as_bytes(), 100).unwrap();
        assert_eq!(list.total, 8);
    }

    #[test]
    fn models_beyond_the_maximum_are_only_counted() {
        let body = r#"{"data":[{"id":"a"},{"id":"b"},{"id":"c"},{"id":"d"}]}"#;
        let list = parse(body.as_bytes(), 2).unwrap();
        assert_eq!((list.models.len(), list.total), (2, 4));
        let list = parse(body.as_bytes(), 4).unwrap();
        assert_eq!((list.models.len(), list.total), (4, 4));
    }

    #[test]
    fn response_without_a_list_is_an_error() {
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
    fn owned_by_determines_the_kind_of_server() {
        let kind = |owner: &str| {
            let body = format!(r#"{{"data":[{{"id":"a"}},{{"id":"b","owned_by":"{owner}"}}]}}"#);
            parse(body.as_bytes(), 100).unwrap().kind
        };
        assert_eq!(kind("vllm"), Some(Kind::Vllm));
        assert_eq!(kind("library"), Some(Kind::Ollama));
        assert_eq!(kind("me"), None);
    }

    #[test]
    fn deeply_nested_list_is_rejected() {
        let deep = "[".repeat(100_000);
        assert!(parse(format!(r#"{{"data":[{{"id":"a","x":{deep}"#).as_bytes(), 9).is_err());
        assert!(parse(format!(r#"{{"data":{deep}"#).as_bytes(), 9).is_err());
    }
}
