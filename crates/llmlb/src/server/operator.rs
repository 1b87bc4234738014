//! Requests of operators: data and actions of the dashboard, for programs on this machine and for API keys for
//! admins.

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;

use super::serve::ConnectionContext;
use crate::dashboard;
use crate::endpoint::DashboardPage;
use crate::keys::ApiKey;
use crate::request::{self, Refusal, is_local, json_response};
use crate::request_settings::RequestSettings;

/// Header field of the token that a request for an action must contain.
const TOKEN: HeaderName = HeaderName::from_static("x-llmlb-csrf");

/// An operator, as the log and the dashboard name it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operator<'a> {
    /// A program on this machine.
    Local,
    /// A client with an API key for admins.
    Key(&'a ApiKey),
}

impl<'a> Operator<'a> {
    /// Returns the operator who sent a request. Rejects other clients.
    pub(super) fn of(
        caller: &ConnectionContext,
        head: &Parts,
        settings: &RequestSettings,
        key: Option<&'a ApiKey>,
    ) -> Result<Self, Refusal> {
        if let Some(key) = key.filter(|key| key.is_admin) {
            return Ok(Self::Key(key));
        }
        if !is_local(caller.peer, caller.local, &head.headers) {
            let path = head.uri.path();
            return Err(super::admin::forbidden(path));
        }
        // A browser on this machine may show a page of another site. A private server has rejected its
        // requests already; a public one rejects them here, because no key proves who sends them.
        request::refuse_foreign_pages(&settings.hosts, head, caller.local.ip(), false)
            .map_err(Refusal::unrecorded)?;
        Ok(Self::Local)
    }

    fn name(self) -> &'a str {
        match self {
            Self::Local => "local",
            Self::Key(key) => &key.name,
        }
    }

    /// Returns the operator as the log names it.
    fn shown(self) -> String {
        match self {
            Self::Local => "a program on this machine".to_owned(),
            Self::Key(key) => format!("API key `{}`", key.name),
        }
    }
}

/// Responds with a file, data or the result of an action of the dashboard.
pub(super) async fn respond(
    caller: &ConnectionContext,
    head: &Parts,
    settings: &RequestSettings,
    page: DashboardPage,
    body: Incoming,
    key: Option<&ApiKey>,
) -> Result<Response<Full<Bytes>>, Refusal> {
    let dashboard = &caller.worker.shared.dashboard;
    let value = match page {
        DashboardPage::File(name) => return Ok(dashboard::file(name, &head.headers)),
        DashboardPage::Session => {
            let operator = Operator::of(caller, head, settings, key)?;
            dashboard.session(operator.name())
        }
        DashboardPage::Keys => {
            Operator::of(caller, head, settings, key)?;
            dashboard.list_keys().await?
        }
        DashboardPage::Action(action) => {
            let operator = Operator::of(caller, head, settings, key)?;
            request::require_own_page(&settings.hosts, head).map_err(Refusal::unrecorded)?;
            let token = head.headers.get(&TOKEN);
            if !token.is_some_and(|token| dashboard.is_token(token.as_bytes())) {
                return Err(Refusal::new(
                    StatusCode::FORBIDDEN,
                    "invalid_csrf_token",
                    "The field x-llmlb-csrf does not contain the token of /dashboard/session, which changes \
                     when the server restarts; reload the page.",
                )
                .unrecorded());
            }
            let budget = &caller.worker.shared.budget;
            let pace = settings.client_limits.body;
            let body = request::read_whole(body, dashboard::MAX_BODY, pace, budget)
                .await
                .map_err(Refusal::unrecorded)?;
            dashboard.act(action, &body, &operator.shown()).await?
        }
    };
    let mut response = json_response(StatusCode::OK, value.to_string());
    let fields = response.headers_mut();
    // The response may contain a token or a secret.
    fields.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let nosniff = HeaderValue::from_static("nosniff");
    fields.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    Ok(response)
}
