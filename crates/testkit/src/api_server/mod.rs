//! Fake LLM server that implements OpenAI's and Anthropic's APIs, as far as the official clients use
//! them. It logs the requests that it receives and counts the tokens that it generates.
//!
//! The text of a request controls its response: see `words`. `chat`, `responses`, `messages`, `files`
//! and `media` are the APIs; `call` is one request and its response; `request_log` serves the log
//! to client scripts.

mod base64;
mod call;
mod chat;
mod files;
mod form;
mod gzip;
mod ledger;
mod media;
mod messages;
mod request_log;
mod responses;
mod words;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::fake_llm::FakeLlm;
use call::Call;
pub use ledger::{End, Ledger, Produced};
use request_log::LoggedRequest;

/// Way in which a server reports the usage of a streamed chat or completion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reports {
    /// Usage in a last chunk without choices, if the request asks for usage.
    IfAsked,
    /// Requests with `stream_options` are rejected.
    Refuses,
    /// No usage, not even in a response that is not streamed.
    Never,
    /// Every chunk of a stream has the usage so far, requested or not. If the request asks for
    /// usage, a last chunk without choices has it too.
    SoFar,
    /// As [`Reports::IfAsked`], but the chunk with the usage is sent twice. A proxy that adds both
    /// up would record twice the tokens.
    Twice,
    /// The chunk with the finish reason has the usage, requested or not. If the request asks for
    /// usage, a last chunk without choices has it too.
    WithTheReason,
}

/// Properties of a server.
pub struct Sort {
    /// Name of the server, which is part of the ids that it issues.
    pub name: &'static str,
    /// Models that the server serves.
    pub models: &'static [&'static str],
    /// Way in which the server reports usage.
    pub reports: Reports,
    /// API key that every request needs; `None` if the server requires no key.
    pub key: Option<&'static str>,
}

/// A fake LLM server with OpenAI's and Anthropic's APIs, used as a backend of llmlb. It runs until
/// it is dropped.
pub struct Backend {
    /// Server itself.
    pub mock: FakeLlm,
    /// State that the API handlers of one server share.
    pub state: Arc<State>,
}

/// State that the API handlers of one server share.
pub struct State {
    /// Name, models, way of reporting usage, and API key of the server.
    pub sort: Sort,
    /// Tokens generated for each request.
    pub ledger: Ledger,
    requests: Mutex<Vec<LoggedRequest>>,
    /// Number in the next id that the server issues for a response, a file or another object.
    ids: AtomicU64,
    files: Mutex<HashMap<String, files::Kept>>,
    responses: Mutex<HashMap<String, Value>>,
}

impl Backend {
    /// Starts a server.
    #[track_caller]
    pub fn start(sort: Sort) -> Self {
        let state = Arc::new(State {
            sort,
            ledger: Ledger::default(),
            requests: Mutex::default(),
            ids: AtomicU64::new(1),
            files: Mutex::default(),
            responses: Mutex::default(),
        });
        let known = Arc::clone(&state);
        let mock = FakeLlm::handling_all(move |request, stream| {
            answer(&mut Call::new(&known, request, stream));
        });
        Self { mock, state }
    }
}

fn answer(call: &mut Call<'_>) {
    let (method, path) = (call.method(), call.path());
    if let Some(name) = path.strip_prefix("/mock/") {
        return request_log::answer(call, name);
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
    // Requests for the model list are probes. Their number depends on time, so they are not logged:
    // tests compare the log.
    if method != "GET" || path != "models" {
        call.state.log_request(call.request);
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
                "path": call.request.target(),
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
