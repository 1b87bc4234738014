//! `POST /v1/chat/completions` and `POST /v1/completions`

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::answer::Answer;
use super::events::Events;
use super::fields::Fields;
use super::models::Task;
use super::prompt::Prompt;
use super::refusal::Refusal;
use super::reply::{self, Reply};
use super::shape::{Form, Shape};
use super::{Profile, hash};

/// Who asks for the whole answer waits as long as its tokens would take, but no longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// Distinguishes answers given at the same time.
static ANSWERS: AtomicU64 = AtomicU64::new(0);

pub(super) async fn chat(profile: &Profile, fields: &Fields) -> Result<Reply, Refusal> {
    let model = fields.model(profile, Task::Talk)?;
    let prompt = Prompt::of_chat(fields)?;
    let most = match fields.number("max_completion_tokens", u64::MAX)? {
        Some(most) => Some(most),
        None => fields.number("max_tokens", u64::MAX)?,
    };
    let shape = Shape {
        form: Form::Chat,
        id: format!("chatcmpl-{}", unique(profile)),
        created: Timestamp::now().as_second(),
        model: model.id(),
    };
    complete(profile, fields, &prompt, most, &shape).await
}

pub(super) async fn text(profile: &Profile, fields: &Fields) -> Result<Reply, Refusal> {
    let model = fields.model(profile, Task::Talk)?;
    let prompt = Prompt::of_text(fields)?;
    let most = fields.number("max_tokens", u64::MAX)?;
    let shape = Shape {
        form: Form::Text,
        id: format!("cmpl-{}", unique(profile)),
        created: Timestamp::now().as_second(),
        model: model.id(),
    };
    complete(profile, fields, &prompt, most, &shape).await
}

async fn complete(
    profile: &Profile,
    fields: &Fields,
    prompt: &Prompt,
    most: Option<usize>,
    shape: &Shape,
) -> Result<Reply, Refusal> {
    fields.number("n", 1)?;
    let stream = fields.flag("stream")?;
    let include_usage = wants_usage(fields, stream)?;
    let answer = Answer::new(profile.name, prompt, most);
    let usage = usage(prompt.tokens, answer.pieces.len());
    let schedule = profile.pace.schedule(prompt.seed);
    if stream {
        let include_usage = include_usage.then_some(&usage);
        let events = stream_of(&answer, schedule, shape, include_usage);
        return Ok(reply::events(events));
    }
    let talking = schedule.take(answer.pieces.len()).last();
    tokio::time::sleep(talking.unwrap_or_default().min(LONGEST_WAIT)).await;
    let whole = shape.whole(&answer.text(), answer.finish_reason(), &usage);
    Ok(reply::json(StatusCode::OK, &whole))
}

fn stream_of(
    answer: &Answer,
    schedule: impl Iterator<Item = Duration>,
    shape: &Shape,
    usage: Option<&Value>,
) -> Events {
    // Who asked for the usage finds the field in every chunk, as with OpenAI.
    let with_field = |mut chunk: Value| {
        if usage.is_some() {
            chunk["usage"] = Value::Null;
        }
        chunk
    };
    let mut events = Events::new();
    let mut opening = shape.opening();
    let mut last = Duration::ZERO;
    for (piece, due) in answer.pieces.iter().zip(schedule) {
        // A model knows that it will answer when it has the first token, not before.
        if let Some(opening) = opening.take() {
            events.push(due, &with_field(opening));
        }
        events.push(due, &with_field(shape.piece(piece)));
        last = due;
    }
    events.push(last, &with_field(shape.closing(answer.finish_reason())));
    if let Some(usage) = usage {
        events.push(last, &shape.usage(usage));
    }
    events.push_done(last);
    events
}

fn wants_usage(fields: &Fields, stream: bool) -> Result<bool, Refusal> {
    let refused = |message: &str| Refusal::bad_field("stream_options", message);
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

/// Sixteen digits that no other answer has, of this backend or another.
fn unique(profile: &Profile) -> String {
    let count = ANSWERS.fetch_add(1, Ordering::Relaxed);
    let started = Timestamp::now().as_microsecond().unsigned_abs();
    let number = hash::mixed(hash::mixed(started) ^ hash::of(profile.name.as_bytes()) ^ count);
    format!("{number:016x}")
}
