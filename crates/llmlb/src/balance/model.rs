//! A model as its backend describes it, and all models of one backend.

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::ops::Deref;
use std::sync::Arc;

/// A model as its backend describes it. Cloning it copies no text.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) id: Arc<str>,
    /// Creation time, as Unix time. Comparisons ignore it: several servers report the time of the
    /// request instead.
    pub(crate) created: Option<i64>,
    /// Other fields of `/v1/models`, as members of a JSON object: `"object":"model"`.
    fields: Arc<str>,
}

impl Model {
    /// Creates a model. `fields` are members of a JSON object, without braces.
    pub(crate) fn new(id: &str, created: Option<i64>, fields: &str) -> Self {
        Self {
            id: id.into(),
            created,
            fields: fields.into(),
        }
    }

    /// Returns a model that the configuration lists, for a backend whose own list is not used.
    pub(crate) fn configured(id: &str, owner: &str) -> Self {
        let owner = json_text(owner);
        let fields = format!(r#""object":"model","owned_by":{owner}"#);
        Self::new(id, Some(0), &fields)
    }

    /// Returns the same model under another name, such as an alias.
    pub(super) fn named(&self, id: &str) -> Self {
        Self {
            id: id.into(),
            ..self.clone()
        }
    }

    pub(crate) fn write_json(&self, out: &mut String) {
        out.push_str(r#"{"id":"#);
        out.push_str(&json_text(&self.id));
        if let Some(created) = self.created {
            // Ignore the result: writing into memory cannot fail.
            let _ = write!(out, r#","created":{created}"#);
        }
        if !self.fields.is_empty() {
            out.push(',');
            out.push_str(&self.fields);
        }
        out.push('}');
    }

    fn is_same(&self, other: &Self) -> bool {
        self.id == other.id && self.fields == other.fields
    }
}

/// Returns a text as a JSON string, with quotes and escapes.
fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Models of one backend, each id once, in the order of the backend's list. Two lists are equal if they
/// have the same models; order and creation times do not matter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Models(Vec<Model>);

impl Models {
    pub(crate) fn new(mut models: Vec<Model>) -> Self {
        let mut seen = HashSet::new();
        models.retain(|model| seen.insert(Arc::clone(&model.id)));
        Self(models)
    }

    /// Copies the creation times of the models in an earlier list. Some servers report the time of
    /// the request instead, so clients would see the times change.
    pub(super) fn keep_created(&mut self, before: &Self) {
        let before: HashMap<&str, Option<i64>> =
            before.iter().map(|one| (&*one.id, one.created)).collect();
        for model in &mut self.0 {
            if let Some(created) = before.get(&*model.id) {
                model.created = *created;
            }
        }
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        self.0.retain(|model| is_kept(&model.id));
    }
}

impl Deref for Models {
    type Target = [Model];

    fn deref(&self) -> &[Model] {
        &self.0
    }
}

impl PartialEq for Models {
    fn eq(&self, other: &Self) -> bool {
        if self.len() != other.len() {
            return false;
        }
        if self.iter().zip(&**other).all(|(one, two)| one.is_same(two)) {
            return true;
        }
        let others: HashMap<&str, &Model> = other.iter().map(|one| (&*one.id, one)).collect();
        self.iter()
            .all(|one| others.get(&*one.id).is_some_and(|other| one.is_same(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(models: &[(&str, i64, &str)]) -> Models {
        let models = models
            .iter()
            .map(|(id, created, fields)| Model::new(id, Some(*created), fields));
        Models::new(models.collect())
    }

    #[test]
    fn lists_are_compared_without_order_and_creation_times() {
        let first = list(&[("a", 1, "\"x\":1"), ("b", 1, "")]);
        assert_eq!(first, list(&[("a", 2, "\"x\":1"), ("b", 3, "")]));
        assert_eq!(first, list(&[("b", 1, ""), ("a", 1, "\"x\":1")]));
        assert_eq!(
            first,
            list(&[("a", 1, "\"x\":1"), ("b", 1, ""), ("a", 1, "")])
        );
        for other in [
            list(&[("a", 1, "\"x\":1")]),
            list(&[("a", 1, "\"x\":2"), ("b", 1, "")]),
            list(&[("a", 1, "\"x\":1"), ("c", 1, "")]),
            list(&[]),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn model_is_written_as_a_json_object() {
        let written = |model: &Model| {
            let mut text = String::new();
            model.write_json(&mut text);
            text
        };
        assert_eq!(written(&Model::new("a\"b", None, "")), r#"{"id":"a\"b"}"#);
        assert_eq!(
            written(&Model::configured("m", "me")),
            r#"{"id":"m","created":0,"object":"model","owned_by":"me"}"#
        );
    }
}
