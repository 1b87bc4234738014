//! Models of the demo backends.

use http::StatusCode;
use serde_json::{Value, json};

use super::Profile;
use super::error::DemoError;
use super::reply::{self, Reply};

/// Creation time of the demo's models. All backends must report the same time, also after a
/// restart: a model is the same everywhere.
const CREATED: i64 = 1_767_225_600;

/// A demo model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum DemoModel {
    Demo,
    Large,
    Embed,
}

/// Task that a model supports. Requests of another task get an error, as from real servers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Task {
    Complete,
    Embed,
}

impl DemoModel {
    pub(super) fn find(profile: &Profile, id: &str) -> Option<Self> {
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
            Self::Demo | Self::Large => Task::Complete,
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
            Self::Complete => "completions",
            Self::Embed => "embeddings",
        }
    }
}

/// Handles `GET /v1/models`.
pub(super) fn list(profile: &Profile) -> Reply {
    let models: Vec<_> = profile
        .models
        .iter()
        .map(|model| model.describe())
        .collect();
    reply::json(StatusCode::OK, &json!({"object": "list", "data": models}))
}

/// Handles `GET /v1/models/{id}`, which describes one model.
pub(super) fn one(profile: &Profile, id: &str) -> Result<Reply, DemoError> {
    let model = DemoModel::find(profile, id).ok_or_else(|| DemoError::no_model(id))?;
    Ok(reply::json(StatusCode::OK, &model.describe()))
}
