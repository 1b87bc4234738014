//! Fields of a JSON request to a demo backend, with errors that name the invalid field.

use serde_json::{Map, Value};

use super::Profile;
use super::error::DemoError;
use super::models::{DemoModel, Task};

/// JSON object of a request. A null field counts as absent, as with OpenAI.
#[derive(Debug)]
pub(super) struct RequestFields(Map<String, Value>);

impl RequestFields {
    pub(super) fn parse(body: &[u8]) -> Result<Self, DemoError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(DemoError::bad_request("The body is not a JSON object.")),
            Err(error) => Err(DemoError::bad_request(format!(
                "The body is not valid JSON: {error}"
            ))),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    pub(super) fn required(&self, name: &'static str) -> Result<&Value, DemoError> {
        self.get(name).ok_or_else(|| DemoError::missing(name))
    }

    /// Returns a boolean field of the request; false if the field is absent.
    pub(super) fn flag(&self, name: &'static str) -> Result<bool, DemoError> {
        self.get(name).map_or(Ok(false), |value| {
            value.as_bool().ok_or_else(|| {
                DemoError::bad_field(name, format!("'{name}' must be true or false."))
            })
        })
    }

    /// Returns a field of the request as a whole number from 1 to `max`; `None` if the field is
    /// absent.
    pub(super) fn number(&self, name: &'static str, max: u64) -> Result<Option<usize>, DemoError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        value
            .as_u64()
            .filter(|number| (1..=max).contains(number))
            .and_then(|number| usize::try_from(number).ok())
            .map(Some)
            .ok_or_else(|| {
                let range = if max == u64::MAX {
                    "of at least 1".to_owned()
                } else {
                    format!("from 1 to {max}")
                };
                DemoError::bad_field(name, format!("'{name}' must be a whole number {range}."))
            })
    }

    /// Returns the requested model. An error if this backend does not have the model, or the model
    /// does not support the task.
    pub(super) fn model(&self, profile: &Profile, task: Task) -> Result<DemoModel, DemoError> {
        let id = self
            .required("model")?
            .as_str()
            .ok_or_else(|| DemoError::bad_field("model", "'model' must be a string."))?;
        let model = DemoModel::find(profile, id).ok_or_else(|| DemoError::no_model(id))?;
        if model.task() == task {
            Ok(model)
        } else {
            Err(DemoError::bad_field(
                "model",
                format!("The model '{id}' does not support {}.", task.name()),
            ))
        }
    }
}
