//! Error responses of the demo backends, in OpenAI's form.

use http::{HeaderValue, Method, StatusCode, header};
use serde_json::json;

use super::reply::{self, Reply};

/// An error response.
#[derive(Debug)]
pub(super) struct DemoError {
    status: StatusCode,
    message: String,
    param: Option<&'static str>,
    code: Option<&'static str>,
    allow: Option<HeaderValue>,
}

impl DemoError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
            allow: None,
        }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn bad_field(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param),
            ..Self::bad_request(message)
        }
    }

    pub(super) fn missing(param: &'static str) -> Self {
        Self {
            code: Some("missing_required_parameter"),
            ..Self::bad_field(param, format!("Missing required parameter: '{param}'."))
        }
    }

    pub(super) fn no_model(id: &str) -> Self {
        Self {
            param: Some("model"),
            code: Some("model_not_found"),
            ..Self::new(
                StatusCode::NOT_FOUND,
                format!("The model '{id}' does not exist on this demo backend."),
            )
        }
    }

    pub(super) fn unknown_path(method: &Method, path: &str) -> Self {
        Self {
            code: Some("unknown_url"),
            ..Self::new(
                StatusCode::NOT_FOUND,
                format!("Unknown request URL: {method} {path}. Demo backends do not have it."),
            )
        }
    }

    pub(super) fn wrong_method(method: &Method, allowed: &'static Method) -> Self {
        Self {
            code: Some("method_not_supported"),
            allow: Some(HeaderValue::from_static(allowed.as_str())),
            ..Self::new(
                StatusCode::METHOD_NOT_ALLOWED,
                format!("This path does not allow {method}; use {allowed}."),
            )
        }
    }

    pub(super) fn too_large(limit: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("The body is longer than {limit} bytes."),
        )
    }

    pub(super) fn too_slow() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "The body did not arrive in time.",
        )
    }

    pub(super) fn reply(self) -> Reply {
        let mut reply = reply::json(
            self.status,
            &json!({"error": {
                "message": self.message,
                "type": "invalid_request_error",
                "param": self.param,
                "code": self.code,
            }}),
        );
        if let Some(allow) = self.allow {
            reply.headers_mut().insert(header::ALLOW, allow);
        }
        reply
    }
}
