//! A backend that speaks as the real ones do: OpenAI's and Anthropic's APIs, as far as their
//! clients go. It keeps what it received and counts what it produced.
//!
//! What an answer is like is said in the request's own text: see [`words`]. `chat`, `responses`,
//! `messages`, `files` and `media` are the APIs; `call` is one request and its answer; `look` lets
//! a script see what came.

mod call;
mod chat;
mod files;
mod form;
mod gzip;
pub(crate) mod ledger;
mod look;
mod media;
mod messages;
mod responses;
mod words;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::mock::Mock;
use call::Call;
use ledger::Ledger;
use look::Seen;

/// When a backend says how many tokens it used in a streamed chat or completion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reports {
    /// In a last chunk without choices, if asked for.
    IfAsked,
    /// It knows no `stream_options`, and refuses what it does not know.
    Refuses,
    /// Not even in an answer that is not streamed.
    Never,
    /// In every chunk, the sum so far, asked or not; and as [`Reports::IfAsked`].
    SoFar,
    /// As [`Reports::IfAsked`], but the last chunk comes twice.
    Twice,
    /// In the chunk with the reason for the end, asked or not; and as [`Reports::IfAsked`].
    WithTheReason,
}

/// What sort of backend it is.
pub(crate) struct Sort {
    pub(crate) name: &'static str,
    pub(crate) models: &'static [&'static str],
    pub(crate) reports: Reports,
    /// Without it, nobody is served.
    pub(crate) key: Option<&'static str>,
}

/// A backend that serves until it is dropped.
pub(crate) struct Backend {
    pub(crate) mock: Mock,
    pub(crate) state: Arc<State>,
}

/// What a backend knows.
pub(crate) struct State {
    pub(crate) sort: Sort,
    /// How many tokens it made for whom.
    pub(crate) ledger: Ledger,
    seen: Mutex<Vec<Seen>>,
    /// Counts everything that needs an id.
    ids: AtomicU64,
    files: Mutex<HashMap<String, files::Kept>>,
    responses: Mutex<HashMap<String, Value>>,
}

impl Backend {
    pub(crate) fn start(sort: Sort) -> Self {
        let state = Arc::new(State {
            sort,
            ledger: Ledger::default(),
            seen: Mutex::default(),
            ids: AtomicU64::new(1),
            files: Mutex::default(),
            responses: Mutex::default(),
        });
        let known = Arc::clone(&state);
        let any = "127.0.0.1:0".parse().expect("an address");
        let mock = Mock::raw(any, move |request, stream| {
            answer(&mut Call::new(&known, request, stream));
        });
        Self { mock, state }
    }
}

fn answer(call: &mut Call<'_>) {
    let (method, path) = (call.method(), call.path());
    if let Some(what) = path.strip_prefix("/mock/") {
        return look::answer(call, what);
    }
    let Some(path) = path.strip_prefix("/v1/") else {
        return call.error(404, None, "There is nothing here.");
    };
    if let Some(key) = call.state.sort.key
        && call.header("authorization") != Some(format!("Bearer {key}"))
        && call.header("x-api-key").as_deref() != Some(key)
    {
        return call.error(401, Some("invalid_api_key"), "Incorrect API key provided.");
    }
    // Probing is not what tests look for.
    if method != "GET" || path != "models" {
        call.state.see(call.request);
    }
    if let Some(status) = words::number(&call.text(), "status") {
        let status = u16::try_from(status).expect("a status");
        return call.error(status, Some("as_you_wish"), "This is what you asked for.");
    }
    let segments: Vec<_> = path.split('/').collect();
    match (method, segments.as_slice()) {
        ("GET", ["models"]) => call.json(200, &call.state.models()),
        ("POST", ["chat", "completions"]) => chat::answer(call, chat::Form::Chat),
        ("POST", ["completions"]) => chat::answer(call, chat::Form::Text),
        ("POST", ["responses"]) => responses::create(call),
        (_, ["responses", id, rest @ ..]) => responses::kept(call, method, id, rest),
        ("POST", ["messages"]) => messages::create(call),
        ("POST", ["messages", "count_tokens"]) => messages::count(call),
        ("POST", ["embeddings"]) => media::embeddings(call),
        ("POST", ["moderations"]) => media::moderations(call),
        ("POST", ["audio", "speech"]) => media::speech(call),
        ("POST", ["audio", "transcriptions"]) => media::transcription(call),
        ("POST", ["images", "generations"]) => media::image(call),
        ("POST", ["images", "edits"]) => media::image_edit(call),
        ("POST", ["files"]) => files::keep(call),
        ("GET", ["files"]) => files::list(call),
        (_, ["files", id, rest @ ..]) => files::kept(call, method, id, rest),
        _ => call.json(
            200,
            &json!({
                "object": "echo",
                "backend": call.state.sort.name,
                "method": method,
                "path": call.request.path(),
                "bytes": call.request.body.len(),
            }),
        ),
    }
}

impl State {
    fn models(&self) -> Value {
        let models: Vec<_> = self.sort.models.iter().map(|id| {
            json!({ "id": id, "object": "model", "created": 1_700_000_000, "owned_by": self.sort.name })
        }).collect();
        json!({ "object": "list", "data": models })
    }

    fn serves(&self, model: &str) -> bool {
        self.sort.models.contains(&model)
    }
}
