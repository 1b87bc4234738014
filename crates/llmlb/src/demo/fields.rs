//! The fields of a JSON request, each refused by name.

use serde_json::{Map, Value};

use super::Profile;
use super::models::{Model, Task};
use super::refusal::Refusal;

/// The object that a client sent. A field that is null counts as absent, as it does with OpenAI.
#[derive(Debug)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(Refusal::bad_request("The body is not a JSON object.")),
            Err(error) => Err(Refusal::bad_request(format!(
                "The body is not valid JSON: {error}"
            ))),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn required(&self, name: &'static str) -> Result<&Value, Refusal> {
        self.get(name).ok_or_else(|| Refusal::missing(name))
    }

    /// True or false; false if it is not there.
    pub(super) fn flag(&self, name: &'static str) -> Result<bool, Refusal> {
        self.get(name).map_or(Ok(false), |value| {
            value
                .as_bool()
                .ok_or_else(|| Refusal::bad_field(name, format!("'{name}' must be true or false.")))
        })
    }

    /// A whole number from 1 to `most`.
    pub(super) fn number(&self, name: &'static str, most: u64) -> Result<Option<usize>, Refusal> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_u64()
            .filter(|number| (1..=most).contains(number))
            .and_then(|number| usize::try_from(number).ok())
            .map(Some)
            .ok_or_else(|| {
                let range = if most == u64::MAX {
                    "of at least 1".to_owned()
                } else {
                    format!("from 1 to {most}")
                };
                Refusal::bad_field(name, format!("'{name}' must be a whole number {range}."))
            })
    }

    /// The model that is asked for, if this backend has it and it can do the task.
    pub(super) fn model(&self, profile: &Profile, task: Task) -> Result<Model, Refusal> {
        let id = self
            .required("model")?
            .as_str()
            .ok_or_else(|| Refusal::bad_field("model", "'model' must be a string."))?;
        let model = Model::of(profile, id).ok_or_else(|| Refusal::no_model(id))?;
        if model.task() == task {
            Ok(model)
        } else {
            Err(Refusal::bad_field(
                "model",
                format!("The model '{id}' does not do {}.", task.name()),
            ))
        }
    }
}
