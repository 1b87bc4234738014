//! Type of `telemetry.otlp_endpoint`.

use serde_json::{Value, json};

use super::types::ValueType;
use super::url::BackendUrl;
use super::values::{self, RawSetting};

/// True if this build sends traces. Always true in tests of this crate, so that they can parse the setting.
const IS_BUILT: bool = cfg!(any(test, feature = "otlp"));

/// Type of the URL of a receiver of traces.
pub(super) struct OtlpEndpoint;

impl ValueType<BackendUrl> for OtlpEndpoint {
    fn parse(&self, raw: RawSetting<'_>) -> Result<BackendUrl, String> {
        let url = values::text(raw, "a URL")?;
        if !IS_BUILT {
            return Err(
                "this build of llmlb sends no traces; build it with `cargo build --release -p llmlb \
                 --features otlp`, or use the program that `scripts/build-release` builds"
                    .to_owned(),
            );
        }
        BackendUrl::parse(url).map_err(str::to_owned)
    }

    fn format(&self, value: &BackendUrl) -> String {
        value.to_string()
    }

    fn allowed(&self) -> String {
        "http://HOST[:PORT] or https://.., without the path /v1/traces".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://" })
    }
}
