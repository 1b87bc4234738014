//! The table `[[backend]]`, and the entries of `[aliases]`.

use super::super::backends::fields::{
    AliasModels, BackendName, HttpUrl, ModelNames, ModelPatterns,
};
use super::super::setting::DefaultValue::{Constant, Described};
use super::super::setting::Reload::Applies;
use super::super::setting::{Flag, Setting, section};
use super::super::types::{Boolean, Number, Optional, VariableName, Word};
use super::super::{BackendUrl, Kind};
use super::{BACKEND_FLAG, BACKENDS};

section! {
    /// A `[[backend]]` table of the file.
    BackendFields {
        name: Option<String> = BACKEND_NAME,
        url: Option<BackendUrl> = BACKEND_URL,
        models: Option<Vec<String>> = BACKEND_MODELS,
        api_key_env: Option<String> = BACKEND_KEY,
        kind: Option<Kind> = BACKEND_KIND,
        weight: u32 = BACKEND_WEIGHT,
        max_concurrent: Option<u32> = BACKEND_LIMIT,
        only_models: Option<Vec<String>> = BACKEND_ONLY,
        reuse_after_errors: bool = BACKEND_REUSE,
        websocket: bool = BACKEND_WEBSOCKET,
    }
}

pub(crate) static BACKEND_NAME: Setting<Option<String>> = Setting {
    name: "backend.name",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("none: the name is host:port of the URL", || None),
    value: &Optional {
        of: BackendName,
        unset: "-",
    },
    about: "Name of the backend in logs, `/status` and records; unique.",
};
pub(crate) static BACKEND_URL: Setting<Option<BackendUrl>> = Setting {
    name: "backend.url",
    reload: Applies,
    variable: Some(BACKENDS),
    flag: Some(Flag {
        long: BACKEND_FLAG,
        short: None,
        // The setting has no flag here: `--backend` replaces the whole list of backends, not one
        // URL. It is read in backends/mod.rs.
        text: |_| None,
    }),
    default: Described("required", || None),
    value: &Optional {
        of: HttpUrl,
        unset: "-",
    },
    about: "URL of the backend; unique. A trailing /v1 is optional.",
};
pub(crate) static BACKEND_MODELS: Setting<Option<Vec<String>>> = Setting {
    name: "backend.models",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described(
        "none: llmlb uses the models that the backend reports",
        || None,
    ),
    value: &Optional {
        of: ModelNames,
        unset: "-",
    },
    about: "Models of the backend, used instead of its own list.",
};
pub(crate) static BACKEND_KEY: Setting<Option<String>> = Setting {
    name: "backend.api_key_env",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("no key", || None),
    value: &Optional {
        of: VariableName,
        unset: "-",
    },
    about: "Name of the variable that contains the backend's key; the key itself is never in the file.",
};
pub(crate) static BACKEND_KIND: Setting<Option<Kind>> = Setting {
    name: "backend.kind",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("detected", || None),
    value: &Optional {
        of: Word {
            words: &Kind::WORDS,
            noun: "a name",
        },
        unset: "-",
    },
    about: "Program or service that the backend runs.",
};
pub(crate) static BACKEND_WEIGHT: Setting<u32> = Setting {
    name: "backend.weight",
    reload: Applies,
    variable: None,
    flag: None,
    default: Constant(|| 1),
    value: &Number { range: 1..=1000 },
    about: "Share of requests, relative to the other backends.",
};
pub(crate) static BACKEND_LIMIT: Setting<Option<u32>> = Setting {
    name: "backend.max_concurrent",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("no limit", || None),
    value: &Optional {
        of: Number { range: 1..=100_000 },
        unset: "no limit",
    },
    about: "Maximum number of concurrent requests; further ones wait.",
};
pub(crate) static BACKEND_ONLY: Setting<Option<Vec<String>>> = Setting {
    name: "backend.only_models",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("all", || None),
    value: &Optional {
        of: ModelPatterns,
        unset: "-",
    },
    about: "Models of the backend's list that are used.",
};
pub(crate) static BACKEND_REUSE: Setting<bool> = Setting {
    name: "backend.reuse_after_errors",
    reload: Applies,
    variable: None,
    flag: None,
    default: Constant(|| false),
    value: &Boolean,
    about: "Reuse connections after error responses too: only for servers that always read the whole request.",
};
pub(crate) static BACKEND_WEBSOCKET: Setting<bool> = Setting {
    name: "backend.websocket",
    reload: Applies,
    variable: None,
    flag: None,
    default: Constant(|| false),
    value: &Boolean,
    about: "The backend accepts WebSockets on /v1/responses; without, llmlb answers 426 and clients use HTTP.",
};
/// Entry of `[aliases]`.
pub(crate) static ALIAS: Setting<Vec<String>> = Setting {
    name: "aliases.NAME",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("none", Vec::new),
    value: &AliasModels,
    about: "Additional name for a model, or common name for a model that backends name differently.",
};
