//! Admits a request if the limits of its API key allow it.

use std::time::SystemTime;

use http::{Response, StatusCode};

use super::shared::Shared;
use crate::config::LimitMode;
use crate::endpoint::Endpoint;
use crate::limits::{Candidate, Exceeded, LimitKind, Rates};
use crate::request::{ParsedRequest, RateLimit, Refusal, RequestGuard};

/// Admits a request that has been parsed and routed, and stores its share of the key's limits in
/// its guard, which frees the share. Returns what is left of the limits, whatever the decision.
pub(super) async fn admit(
    shared: &Shared,
    endpoint: Endpoint,
    parsed: &ParsedRequest,
    mode: LimitMode,
    guard: &mut RequestGuard,
) -> (Result<(), Refusal>, Rates) {
    let Some(key) = &guard.key else {
        return (Ok(()), Rates::default());
    };
    let candidate = Candidate {
        key: &key.name,
        limits: &key.limits,
        demand: parsed.demand(endpoint.api),
        model: guard.route.model.as_deref(),
        wall_ms: guard.identity.time_ms(),
        mode,
    };
    let (decision, rates) = shared.limiter.admit(&candidate).await;
    let admitted = match decision {
        Ok(admission) => {
            guard.admission = Some(admission);
            Ok(())
        }
        Err(exceeded) => Err(refusal(&key.name, &exceeded)),
    };
    (admitted, rates)
}

/// Returns what is left of the limits of the client's key, for the header fields of a response to a
/// request that was not admitted.
pub(super) fn rates(shared: &Shared, guard: &RequestGuard) -> Rates {
    guard.key.as_ref().map_or_else(Rates::default, |key| {
        let wall_ms = guard.identity.time_ms();
        shared.limiter.rates(&key.name, &key.limits, wall_ms)
    })
}

/// Adds header fields with the key's limits and what is left of them to a response.
pub(super) fn add_rates<B>(response: &mut Response<B>, rates: Rates, endpoint: Endpoint) {
    if rates == Rates::default() {
        return;
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or_default());
    rates.add_to(response.headers_mut(), endpoint.dialect, now);
}

fn refusal(key: &str, exceeded: &Exceeded) -> Refusal {
    let status = StatusCode::TOO_MANY_REQUESTS;
    let (code, kind, message) = match exceeded.kind {
        LimitKind::Budget(_) => (
            "insufficient_quota",
            "insufficient_quota",
            format!("The budget of the API key `{key}` is exhausted on {exceeded}"),
        ),
        LimitKind::Tokens => (
            "rate_limit_exceeded",
            "tokens",
            format!("Rate limit reached for the API key `{key}` on {exceeded}"),
        ),
        LimitKind::Requests | LimitKind::Concurrency => (
            "rate_limit_exceeded",
            "requests",
            format!("Rate limit reached for the API key `{key}` on {exceeded}"),
        ),
    };
    Refusal::new(status, code, message)
        .unrecorded()
        .rate_limited(RateLimit {
            kind,
            wait_ms: exceeded.wait_ms,
            // Clients retry a 429 by themselves. If the limit does not allow the request before the
            // period ends, a retry is useless.
            is_worth_retrying: !matches!(exceeded.kind, LimitKind::Budget(_))
                && exceeded.wait_ms.is_some(),
        })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http_body_util::BodyExt;
    use serde_json::{Value, json};

    use super::*;
    use crate::config::Period;
    use crate::endpoint::Dialect;

    fn exceeded(kind: LimitKind, wait_ms: Option<u64>) -> Exceeded {
        Exceeded {
            kind,
            limit: 3,
            used: 3,
            requested: 1,
            wait_ms,
        }
    }

    fn respond(exceeded: &Exceeded, dialect: Dialect) -> (Vec<String>, Value) {
        let id = HeaderValue::from_static("req-1");
        let response = refusal("alice", exceeded).into_response(dialect, &id);
        assert_eq!(response.status(), 429);
        let names = ["retry-after", "retry-after-ms", "x-should-retry"];
        let value = |name| response.headers().get(name);
        let values = names.map(|name| value(name).map_or("", |value| value.to_str().unwrap()));
        let values = values.map(str::to_owned).to_vec();
        let body = response.into_body().collect();
        let body = futures_now(body).unwrap().to_bytes();
        (values, serde_json::from_slice(&body).unwrap())
    }

    fn futures_now<F: Future>(future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        match future.as_mut().poll(&mut cx) {
            std::task::Poll::Ready(done) => done,
            std::task::Poll::Pending => panic!("the body is complete"),
        }
    }

    #[test]
    fn refusal_has_the_format_of_openai() {
        let (fields, body) = respond(&exceeded(LimitKind::Requests, Some(1200)), Dialect::OpenAi);
        assert_eq!(fields, ["2", "1200", ""]);
        assert_eq!(
            body,
            json!({ "error": {
                "message": "Rate limit reached for the API key `alice` on requests per min (RPM): \
                            Limit 3, Used 3, Requested 1. Please try again in 1.2s.",
                "type": "requests", "param": null, "code": "rate_limit_exceeded",
            }})
        );
        let (_, body) = respond(&exceeded(LimitKind::Tokens, Some(1)), Dialect::OpenAi);
        assert_eq!(body["error"]["type"], "tokens");
    }

    #[test]
    fn exhausted_budget_is_not_retried() {
        let budget = exceeded(LimitKind::Budget(Period::Month), Some(2_000_000_000));
        let (fields, body) = respond(&budget, Dialect::OpenAi);
        assert_eq!(fields, ["2000000", "2000000000", "false"]);
        assert_eq!(body["error"]["type"], "insufficient_quota");
        assert_eq!(body["error"]["code"], "insufficient_quota");
        let too_large = exceeded(LimitKind::Tokens, None);
        assert_eq!(respond(&too_large, Dialect::OpenAi).0, ["", "", "false"]);
    }

    #[test]
    fn other_dialects_have_their_own_format() {
        let requests = exceeded(LimitKind::Requests, Some(1));
        let (_, body) = respond(&requests, Dialect::Anthropic);
        assert_eq!(body["error"]["type"], "rate_limit_error");
        let (_, body) = respond(&requests, Dialect::Ollama);
        assert!(body["error"].as_str().unwrap().contains("Limit 3"));
    }
}
