//! Fake LLM server whose responses are given by a script of the test.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::ops::Deref;
use std::sync::Arc;

use serde_json::json;

use crate::message::Head;
use crate::server::{BodyHandling, BodyRule, Received, Reply, Script, ScriptedServer};

const MODELS: &str = "/v1/models";

/// Scriptable LLM server on a loopback port. It serves `/v1/models` by itself; every other request
/// goes to its script.
pub struct FakeLlm(ScriptedServer);

type ModelsScript = dyn Fn(&Received) -> Reply + Send + Sync;

/// Options of a [`FakeLlm`] that is not started yet.
pub struct FakeLlmBuilder {
    address: SocketAddr,
    /// Script for requests for the model list. `None`: the main script responds to them, too.
    models: Option<Box<ModelsScript>>,
    body_rule: Box<BodyRule>,
}

impl FakeLlm {
    /// Starts a server with one model that responds to every request as the script says.
    pub fn start(
        model: &str,
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::builder(&[model]).start(script)
    }

    /// Starts a server with one model that responds to every request with a chat completion of 100
    /// prompt tokens and 50 completion tokens.
    pub fn answering(model: &str) -> io::Result<Self> {
        Self::start(model, |_| Reply::json(200, chat_completion("ok", 100, 50)))
    }

    /// Returns the options of a server with these models.
    pub fn builder(models: &[&str]) -> FakeLlmBuilder {
        let list = model_list(models);
        FakeLlmBuilder {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            models: Some(Box::new(move |_| Reply::json(200, &list))),
            body_rule: Box::new(|_| BodyHandling::Read),
        }
    }

    /// Starts a server with these models. The handler writes the response to every other request,
    /// byte by byte.
    #[track_caller]
    pub fn handling(
        models: &[&str],
        handler: impl Fn(&Received, &mut TcpStream) + Send + Sync + 'static,
    ) -> Self {
        Self::builder(models).handle(handler)
    }

    /// Starts a server whose handler writes the response to every request, also to those for the
    /// model list.
    #[track_caller]
    pub fn handling_all(
        handler: impl Fn(&Received, &mut TcpStream) + Send + Sync + 'static,
    ) -> Self {
        Self::builder(&[]).without_models().handle(handler)
    }

    /// Number of requests, apart from those for the model list.
    pub fn count(&self) -> usize {
        self.requests().len()
    }

    /// Values of `Authorization` that came with the requests for the model list, concatenated.
    pub fn probe_credentials(&self) -> String {
        let probes = self.0.executed();
        let probes = probes.iter().filter(|one| one.path().ends_with(MODELS));
        probes
            .filter_map(|one| one.head.header("authorization"))
            .collect()
    }

    /// Requests that reached the script, in order: all but those for the model list.
    pub fn requests(&self) -> Vec<Arc<Received>> {
        let mut executed = self.0.executed();
        executed.retain(|request| !is_probe(request));
        executed
    }

    /// Requests for the model list that the server has received, such as the probes of llmlb.
    pub fn probes(&self) -> Vec<Arc<Received>> {
        let mut executed = self.0.executed();
        executed.retain(|request| is_probe(request));
        executed
    }
}

impl Deref for FakeLlm {
    type Target = ScriptedServer;

    fn deref(&self) -> &ScriptedServer {
        &self.0
    }
}

impl FakeLlmBuilder {
    /// Sets the address on which the fake server listens; the default is a free loopback port.
    #[must_use]
    pub fn at(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// Sets the rule for request bodies; the default reads all of them.
    #[must_use]
    pub fn bodies(mut self, rule: impl Fn(&Head) -> BodyHandling + Send + Sync + 'static) -> Self {
        self.body_rule = Box::new(rule);
        self
    }

    /// Sets the reply to requests for the model list.
    #[must_use]
    pub fn models_reply(
        mut self,
        reply: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        self.models = Some(Box::new(reply));
        self
    }

    /// Leaves requests for the model list to the script.
    #[must_use]
    pub fn without_models(mut self) -> Self {
        self.models = None;
        self
    }

    /// Starts the server.
    pub fn start(
        self,
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> io::Result<FakeLlm> {
        self.start_with(Box::new(move |request, _| script(request)))
    }

    /// Starts the server with a handler that writes responses itself, byte by byte.
    #[track_caller]
    pub fn handle(
        self,
        handler: impl Fn(&Received, &mut TcpStream) + Send + Sync + 'static,
    ) -> FakeLlm {
        let script = move |request: &Received, stream: &mut TcpStream| {
            handler(request, stream);
            Reply::nothing()
        };
        self.start_with(Box::new(script)).expect("a free port")
    }

    fn start_with(self, script: Box<Script>) -> io::Result<FakeLlm> {
        let models = self.models;
        let script = move |request: &Received, stream: &mut TcpStream| match &models {
            Some(models) if is_probe(request) => models(request),
            _ => script(request, stream),
        };
        ScriptedServer::start_at(self.address, self.body_rule, Box::new(script)).map(FakeLlm)
    }
}

fn is_probe(request: &Received) -> bool {
    request.head.method() == "GET" && request.path() == MODELS
}

/// Returns the body of a model list.
pub fn model_list(models: &[&str]) -> String {
    let model = |id: &&str| json!({ "id": id, "object": "model", "owned_by": "testkit" });
    let models: Vec<_> = models.iter().map(model).collect();
    json!({ "object": "list", "data": models }).to_string()
}

/// Returns the body of a chat completion that reports these numbers of tokens.
pub fn chat_completion(content: &str, prompt_tokens: u64, completion_tokens: u64) -> String {
    json!({
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": content },
            "finish_reason": "stop",
        }],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    })
    .to_string()
}

/// Returns a streamed chat completion of these pieces, without usage.
pub fn chat_events(pieces: &[&str]) -> Reply {
    let mut reply = Reply::stream();
    for piece in pieces {
        let chunk = json!({
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "choices": [{ "index": 0, "delta": { "content": piece }, "finish_reason": null }],
        });
        reply = reply.event(&chunk.to_string());
    }
    let last = json!({
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }],
    });
    reply.event(&last.to_string()).event("[DONE]").end()
}
