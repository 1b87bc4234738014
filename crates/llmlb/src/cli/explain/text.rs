//! Explanation of a request in words.

use serde_json::Value;

use super::Explanation;
use crate::balance::ChoiceReason;

/// Returns the lines of a request.
pub(super) fn render(request: &Explanation) -> String {
    let mut lines = vec![format!(
        "Request {}",
        request.text("request_id").unwrap_or_default()
    )];
    let mut line = |name: &str, text: Option<String>| {
        lines.extend(text.map(|text| format!("  {name:<11} {text}")));
    };
    line("record", request.text("id").map(str::to_owned));
    line("arrived", arrived(request));
    line("key", key(request));
    line("model", model(request));
    line("outcome", Some(outcome(request)));
    line("backend", backend(request));
    line("candidates", candidates(request));
    line("queue", Some(queue(request)));
    for (place, attempt) in attempts(request).into_iter().enumerate() {
        line(&format!("attempt {}", place + 1), Some(attempt));
    }
    line("time", Some(times(request)));
    line("tokens", tokens(request));
    line("billing", Some(billing(request)));
    line("known from", Some(origin(request)));
    lines.join("\n")
}

fn arrived(request: &Explanation) -> Option<String> {
    let time = request.text("time")?;
    let path = request.text("path").unwrap_or("?");
    let stream = match request.fields.get("stream") {
        Some(Value::Bool(true)) => ", as a stream",
        _ => "",
    };
    let method = request.text("method").map(|method| format!("{method} "));
    Some(format!(
        "{time}: {}{path}{stream}",
        method.unwrap_or_default()
    ))
}

fn key(request: &Explanation) -> Option<String> {
    let key = request.text("key")?;
    let team = request.text("team");
    Some(team.map_or_else(|| key.to_owned(), |team| format!("{key} of team {team}")))
}

fn model(request: &Explanation) -> Option<String> {
    let model = request.text("model")?;
    let served = request
        .text("served_model")
        .filter(|served| *served != model);
    Some(match served {
        Some(served) => format!("{model}, which the backend names {served}"),
        None => model.to_owned(),
    })
}

fn outcome(request: &Explanation) -> String {
    let words = match request.text("outcome") {
        Some("complete") => "the client received the whole response",
        Some("cancelled") => "the client disconnected before the end",
        Some("cut") => "the backend ended its response early, or the server stopped",
        Some("failed") => "no backend responded",
        Some("refused") => "the request was rejected and not sent to a backend",
        Some("interrupted") => "the server was killed while the request was in progress",
        _ => "unknown",
    };
    let status = match request.number("status") {
        Some(status) => format!("status {status}"),
        None => "no status was sent".to_owned(),
    };
    let code = request.text("code").or(request.text("reason"));
    let code = code.map_or_else(String::new, |code| format!(" {code}"));
    format!("{words}; {status}{code}")
}

fn backend(request: &Explanation) -> Option<String> {
    let backend = request.text("backend")?;
    let why = request.text("why").and_then(ChoiceReason::from_name);
    Some(match why {
        Some(why) => format!("{backend}, because {}", why.sentence()),
        None => backend.to_owned(),
    })
}

fn candidates(request: &Explanation) -> Option<String> {
    let total = request.number("candidates").filter(|total| *total > 0)?;
    let compared: Vec<String> = request.list("compared").iter().map(candidate).collect();
    let rest = usize::try_from(total).unwrap_or(usize::MAX);
    let rest = rest.saturating_sub(compared.len());
    Some(match compared.as_slice() {
        [] => total.to_string(),
        shown if rest == 0 => format!("{total}: {}", shown.join("; ")),
        shown => format!("{total}: {}; and {rest} more", shown.join("; ")),
    })
}

fn candidate(one: &Value) -> String {
    let name = one["backend"]
        .as_str()
        .unwrap_or("a backend that was removed");
    let state = match one["state"].as_str() {
        Some("healthy") => "healthy",
        Some("ejected") => "ejected",
        Some("full") => "at its limit",
        Some("down") => "down",
        Some("tried") => "tried before",
        Some("lacks_endpoint") => "does not serve this endpoint",
        _ => "unknown",
    };
    let in_flight = one["in_flight"].as_u64().unwrap_or_default();
    let latency = one["latency_ms"].as_f64();
    let latency = latency.map_or_else(String::new, |ms| format!(", first byte after {ms:.0} ms"));
    format!("{name} {state}, {in_flight} in flight{latency}")
}

fn queue(request: &Explanation) -> String {
    match request.number("queue_ms") {
        None | Some(0) => "no wait".to_owned(),
        Some(ms) => format!("waited {ms} ms for a slot"),
    }
}

fn attempts(request: &Explanation) -> Vec<String> {
    let failed = request.list("attempts").iter().map(|attempt| {
        let name = attempt["backend"].as_str().unwrap_or("?");
        let error = attempt["error"].as_str().unwrap_or("?");
        let why = attempt["why"].as_str().and_then(ChoiceReason::from_name);
        let why = why.map_or_else(String::new, |why| {
            format!(" (selected because {})", why.sentence())
        });
        let times = match (attempt["at_ms"].as_u64(), attempt["ms"].as_u64()) {
            (Some(at), Some(ms)) => format!(" at {at} ms, after {ms} ms"),
            _ => String::new(),
        };
        let error = match error.parse::<u16>() {
            Ok(status) => format!("status {status}"),
            Err(_) => error.to_owned(),
        };
        format!("{name} failed{times}: {error}{why}")
    });
    let mut attempts: Vec<String> = failed.collect();
    if let Some(backend) = request.text("backend") {
        let sent = request.number("sent_ms").unwrap_or_default();
        let head = request.number("head_ms");
        let head = head.map_or_else(String::new, |ms| {
            format!(", head of the response at {ms} ms")
        });
        let first = request.number("first_byte_ms");
        let first = first.map_or_else(String::new, |ms| format!(", first byte at {ms} ms"));
        attempts.push(format!("{backend} at {sent} ms{head}{first}"));
    }
    attempts
}

fn times(request: &Explanation) -> String {
    let total = request.number("ms").unwrap_or_default();
    match request.number("first_byte_ms") {
        Some(first) => format!("{total} ms in total, {first} ms to the first byte"),
        None => format!("{total} ms in total"),
    }
}

fn tokens(request: &Explanation) -> Option<String> {
    let count = |name| request.number(name).unwrap_or_default();
    let source = match request.text("tokens_from")? {
        "reported" => "reported by the backend",
        "estimated" => "estimated",
        _ => return Some("none are known".to_owned()),
    };
    let (prompt, completion) = (count("prompt_tokens"), count("completion_tokens"));
    let cached = match count("cached_tokens") {
        0 => String::new(),
        cached => format!(" ({cached} of them cached)"),
    };
    Some(format!(
        "{prompt} prompt{cached} + {completion} completion, {source}"
    ))
}

fn billing(request: &Explanation) -> String {
    let place = request.record.as_ref().map(|(_, file)| file.display());
    let file = place.map_or_else(String::new, |file| format!(": {file}"));
    match request.billing() {
        "staged" => format!("recorded, not in a batch yet{file}"),
        "pending" => format!("recorded, its batch waits for delivery{file}"),
        "archived" => {
            format!("recorded, its batch is archived, because there is no receiver{file}")
        }
        "failed" => format!("recorded, its batch could not be delivered{file}"),
        "not_recorded" => "not recorded: requests like this have no usage record".to_owned(),
        _ => {
            "recorded, and no longer in the data directory: its batch was delivered, or the server \
              has another data directory"
                .to_owned()
        }
    }
}

/// Returns the source of an explanation, for the line `known from`.
fn origin(request: &Explanation) -> String {
    match request.port {
        Some(port) => format!("the server on port {port}"),
        None => "its usage record, which does not list the states of the candidates".to_owned(),
    }
}
