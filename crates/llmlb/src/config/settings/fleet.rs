//! The section `[fleet]`: several servers that share a data directory.

use std::time::Duration;

use super::super::fleet::{FleetStore, FleetStoreUrl};
use super::super::setting::DefaultValue::{Constant, Described};
use super::super::setting::Reload::AfterRestart;
use super::super::setting::{Setting, section};
use super::super::types::{HOUR, Optional, SECOND, TimeSpan};

section! {
    /// The section `[fleet]`.
    FleetConfig {
        /// Lease store of the servers that share a data directory. `None` if only one machine uses
        /// the directory.
        store: Option<FleetStore> = FLEET_STORE,
        ttl: Duration = FLEET_TTL,
    }
}

pub(crate) static FLEET_STORE: Setting<Option<FleetStore>> = Setting {
    name: "fleet.store",
    reload: AfterRestart,
    variable: Some("LLMLB_FLEET_STORE"),
    flag: None,
    default: Described("none: the data directory is used by one machine", || None),
    value: &Optional {
        of: FleetStoreUrl,
        unset: "-",
    },
    about: "Lease store of the servers that share a data directory; `usage deliver` and `consolidate` use the variable too ([fleet.md](fleet.md)).",
};
pub(crate) static FLEET_TTL: Setting<Duration> = Setting {
    name: "fleet.ttl",
    reload: AfterRestart,
    variable: Some("LLMLB_FLEET_TTL"),
    flag: None,
    default: Constant(|| 30 * SECOND),
    value: &TimeSpan {
        range: SECOND..=HOUR,
    },
    about: "Time after which another server delivers if the delivering one crashed or cannot reach `fleet.store`.",
};
