//! Handlers of `POST /v1/chat/completions` and `POST /v1/completions` on the demo backends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::error::DemoError;
use super::events::Events;
use super::fields::RequestFields;
use super::generate::SampleResponse;
use super::models::Task;
use super::prompt::Prompt;
use super::reply::{self, Reply};
use super::shape::{Form, Shape};
use super::{Profile, hash};

/// Maximum delay of a response that is not streamed. A shorter response is delayed by the time that
/// streaming its tokens would take.
const MAX_DELAY: Duration = Duration::from_secs(3);

/// Counter that makes the ids of responses created at the same time unique.
static RESPONSES: AtomicU64 = AtomicU64::new(0);

pub(super) async fn chat(profile: &Profile, fields: &RequestFields) -> Result<Reply, DemoError> {
    let model = fields.model(profile, Task::Complete)?;
    let prompt = Prompt::from_chat(fields)?;
    let max = match fields.number("max_completion_tokens", u64::MAX)? {
        Some(max) => Some(max),
        None => fields.number("max_tokens", u64::MAX)?,
    };
    let shape = Shape {
        form: Form::Chat,
        id: format!("chatcmpl-{}", unique(profile)),
        created: Timestamp::now().as_second(),
        model: model.id(),
    };
    complete(profile, fields, &prompt, max, &shape).await
}

pub(super) async fn text(profile: &Profile, fields: &RequestFields) -> Result<Reply, DemoError> {
    let model = fields.model(profile, Task::Complete)?;
    let prompt = Prompt::from_text(fields)?;
    let max = fields.number("max_tokens", u64::MAX)?;
    let shape = Shape {
        form: Form::Text,
        id: format!("cmpl-{}", unique(profile)),
        created: Timestamp::now().as_second(),
        model: model.id(),
    };
    complete(profile, fields, &prompt, max, &shape).await
}

async fn complete(
    profile: &Profile,
    fields: &RequestFields,
    prompt: &Prompt,
    max: Option<usize>,
    shape: &Shape,
) -> Result<Reply, DemoError> {
    fields.number("n", 1)?;
    let stream = fields.flag("stream")?;
    let include_usage = wants_usage(fields, stream)?;
    let response = SampleResponse::new(profile.name, prompt, max);
    let usage = usage(prompt.tokens, response.pieces.len());
    let schedule = profile.pace.schedule(prompt.seed);
    if stream {
        let include_usage = include_usage.then_some(&usage);
        let events = stream_of(&response, schedule, shape, include_usage);
        return Ok(reply::events(events));
    }
    let talking = schedule.take(response.pieces.len()).last();
    tokio::time::sleep(talking.unwrap_or_default().min(MAX_DELAY)).await;
    let whole = shape.whole(&response.text(), response.finish_reason(), &usage);
    Ok(reply::json(StatusCode::OK, &whole))
}

fn stream_of(
    response: &SampleResponse,
    schedule: impl Iterator<Item = Duration>,
    shape: &Shape,
    usage: Option<&Value>,
) -> Events {
    // With `include_usage`, every chunk of a stream has the field `usage`, as with OpenAI: `null`
    // except in the last one.
    let with_field = |mut chunk: Value| {
        if usage.is_some() {
            chunk["usage"] = Value::Null;
        }
        chunk
    };
    let mut events = Events::new();
    let mut opening = shape.opening();
    let mut last = Duration::ZERO;
    for (piece, due) in response.pieces.iter().zip(schedule) {
        // Send the opening chunk together with the first token, as real servers do.
        if let Some(opening) = opening.take() {
            events.push(due, &with_field(opening));
        }
        events.push(due, &with_field(shape.piece(piece)));
        last = due;
    }
    events.push(last, &with_field(shape.closing(response.finish_reason())));
    if let Some(usage) = usage {
        events.push(last, &shape.usage(usage));
    }
    events.push_done(last);
    events
}

fn wants_usage(fields: &RequestFields, stream: bool) -> Result<bool, DemoError> {
    let refused = |message: &str| DemoError::bad_field("stream_options", message);
    match fields.get("stream_options") {
        None => Ok(false),
        Some(_) if !stream => Err(refused(
            "'stream_options' is only allowed when 'stream' is true.",
        )),
        Some(Value::Object(options)) => match options.get("include_usage") {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(include)) => Ok(*include),
            Some(_) => Err(refused("'include_usage' must be true or false.")),
        },
        Some(_) => Err(refused("'stream_options' must be an object.")),
    }
}

fn usage(prompt: usize, completion: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
    })
}

/// Returns sixteen hexadecimal digits that are unique among all responses of all demo backends.
fn unique(profile: &Profile) -> String {
    let count = RESPONSES.fetch_add(1, Ordering::Relaxed);
    let started = Timestamp::now().as_microsecond().unsigned_abs();
    let number = hash::mixed(hash::mixed(started) ^ hash::fnv(profile.name.as_bytes()) ^ count);
    format!("{number:016x}")
}
