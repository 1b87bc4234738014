//! Which models a backend has.

use http::StatusCode;
use serde_json::{Value, json};

use super::Profile;
use super::refusal::Refusal;
use super::reply::{self, Reply};

/// When the models were made. It must be the same on every backend and after every start, for it
/// says something about the model, not about the server.
const CREATED: i64 = 1_767_225_600;

/// A model that does not exist, under a name that does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Model {
    Demo,
    Large,
    Embed,
}

/// What a model is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Task {
    Talk,
    Embed,
}

impl Model {
    /// The model of that name, if the backend has it.
    pub(super) fn of(profile: &Profile, id: &str) -> Option<Self> {
        profile
            .models
            .iter()
            .copied()
            .find(|model| model.id() == id)
    }

    pub(super) const fn id(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Large => "demo-large",
            Self::Embed => "demo-embed",
        }
    }

    pub(super) const fn task(self) -> Task {
        match self {
            Self::Demo | Self::Large => Task::Talk,
            Self::Embed => Task::Embed,
        }
    }

    fn describe(self) -> Value {
        json!({"id": self.id(), "object": "model", "created": CREATED, "owned_by": "llmlb-demo"})
    }
}

impl Task {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Talk => "completions",
            Self::Embed => "embeddings",
        }
    }
}

/// `GET /v1/models`
pub(super) fn list(profile: &Profile) -> Reply {
    let models: Vec<_> = profile
        .models
        .iter()
        .map(|model| model.describe())
        .collect();
    reply::json(StatusCode::OK, &json!({"object": "list", "data": models}))
}

/// `GET /v1/models/{id}`
pub(super) fn one(profile: &Profile, id: &str) -> Result<Reply, Refusal> {
    let model = Model::of(profile, id).ok_or_else(|| Refusal::no_model(id))?;
    Ok(reply::json(StatusCode::OK, &model.describe()))
}
