//! The table `[[key]]`.

use jiff::Timestamp;

use super::super::backends::fields::ModelPatterns;
use super::super::key_limits::Period;
use super::super::keys::SecretHash;
use super::super::keys::fields::{Expiry, KeyName, Sha256Hex};
use super::super::setting::DefaultValue::{Constant, Described};
use super::super::setting::Reload::Applies;
use super::super::setting::{Setting, section};
use super::super::types::{Boolean, Number, Optional, VariableName, Word};

/// Maximum number of tokens that a limit or budget may have, so that sums of them cannot overflow.
pub(crate) const MAX_TOKENS: u64 = 1_000_000_000_000_000;

section! {
    /// Fields of one `[[key]]` table of the file.
    KeyFields {
        name: Option<String> = KEY_NAME,
        key_env: Option<String> = KEY_ENV,
        sha256: Option<SecretHash> = KEY_SHA256,
        team: Option<String> = KEY_TEAM,
        models: Option<Vec<String>> = KEY_MODELS,
        rpm: Option<u32> = KEY_RPM,
        tpm: Option<u64> = KEY_TPM,
        concurrency: Option<u32> = KEY_CONCURRENCY,
        budget_tokens: Option<u64> = KEY_BUDGET,
        per: Option<Period> = KEY_PER,
        expires: Option<Timestamp> = KEY_EXPIRES,
        admin: bool = KEY_ADMIN,
    }
}

pub(crate) static KEY_NAME: Setting<Option<String>> = Setting {
    name: "key.name",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("required", || None),
    value: &Optional {
        of: KeyName,
        unset: "-",
    },
    about: "Name of the API key in logs and usage records; unique.",
};
pub(crate) static KEY_ENV: Setting<Option<String>> = Setting {
    name: "key.key_env",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("none: `sha256` is set", || None),
    value: &Optional {
        of: VariableName,
        unset: "-",
    },
    about: "Name of the variable that contains the secret which clients send.",
};
pub(crate) static KEY_SHA256: Setting<Option<SecretHash>> = Setting {
    name: "key.sha256",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("none: `key_env` is set", || None),
    value: &Optional {
        of: Sha256Hex,
        unset: "-",
    },
    about: "SHA-256 of the secret, used instead of `key_env`. The secret must be random: a short one could be guessed from its hash.",
};
pub(crate) static KEY_TEAM: Setting<Option<String>> = Setting {
    name: "key.team",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("none", || None),
    value: &Optional {
        of: KeyName,
        unset: "-",
    },
    about: "Team in the usage records of the key.",
};
pub(crate) static KEY_MODELS: Setting<Option<Vec<String>>> = Setting {
    name: "key.models",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("all", || None),
    value: &Optional {
        of: ModelPatterns,
        unset: "-",
    },
    about: "Models and aliases that the key may use. Requests that run a model must then name it.",
};
pub(crate) static KEY_RPM: Setting<Option<u32>> = Setting {
    name: "key.rpm",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("no limit", || None),
    value: &Optional {
        of: Number {
            range: 1..=100_000_000,
        },
        unset: "no limit",
    },
    about: "Maximum number of requests in any 60 seconds.",
};
pub(crate) static KEY_TPM: Setting<Option<u64>> = Setting {
    name: "key.tpm",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("no limit", || None),
    value: &Optional {
        of: Number {
            range: 1..=MAX_TOKENS,
        },
        unset: "no limit",
    },
    about: "Maximum number of tokens, prompt and completion, in any 60 seconds.",
};
pub(crate) static KEY_CONCURRENCY: Setting<Option<u32>> = Setting {
    name: "key.concurrency",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("no limit", || None),
    value: &Optional {
        of: Number {
            range: 1..=1_000_000,
        },
        unset: "no limit",
    },
    about: "Maximum number of concurrent requests.",
};
pub(crate) static KEY_BUDGET: Setting<Option<u64>> = Setting {
    name: "key.budget_tokens",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("no limit", || None),
    value: &Optional {
        of: Number {
            range: 1..=MAX_TOKENS,
        },
        unset: "no limit",
    },
    about: "Maximum number of tokens in each period; needs `per`.",
};
pub(crate) static KEY_PER: Setting<Option<Period>> = Setting {
    name: "key.per",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("none", || None),
    value: &Optional {
        of: Word {
            words: &Period::WORDS,
            noun: "a period",
        },
        unset: "-",
    },
    about: "Period of `budget_tokens`, in UTC.",
};
pub(crate) static KEY_EXPIRES: Setting<Option<Timestamp>> = Setting {
    name: "key.expires",
    reload: Applies,
    variable: None,
    flag: None,
    default: Described("never", || None),
    value: &Optional {
        of: Expiry,
        unset: "never",
    },
    about: "Time from which the key is rejected. A date is the key's last day (UTC).",
};
pub(crate) static KEY_ADMIN: Setting<bool> = Setting {
    name: "key.admin",
    reload: Applies,
    variable: None,
    flag: None,
    default: Constant(|| false),
    value: &Boolean,
    about: "Allow the pages about the server, such as `/status`, from other machines.",
};
