//! An LLM server that responds as a script says.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Deref;

use serde_json::json;

use crate::message::Head;
use crate::server::{BodyHandling, Received, Reply, ScriptedServer};

const MODELS: &str = "/v1/models";

/// Scriptable LLM server on a loopback port. It serves `/v1/models` by itself; every other request
/// goes to its script.
pub struct FakeLlm(ScriptedServer);

/// Options of a [`FakeLlm`] that is not started yet.
pub struct FakeLlmBuilder {
    address: SocketAddr,
    models: Box<dyn Fn(&Received) -> Reply + Send + Sync>,
    body_rule: Box<dyn Fn(&Head) -> BodyHandling + Send + Sync>,
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
            models: Box::new(move |_| Reply::json(200, &list)),
            body_rule: Box::new(|_| BodyHandling::Read),
        }
    }

    /// Requests that reached the script, in order: all but those for the model list.
    pub fn requests(&self) -> Vec<Received> {
        let mut executed = self.0.executed();
        executed.retain(|request| !is_probe(request));
        executed
    }

    /// Requests for the model list.
    pub fn probes(&self) -> Vec<Received> {
        let mut executed = self.0.executed();
        executed.retain(is_probe);
        executed
    }

    /// Closes the server and all its connections.
    pub fn stop(&mut self) {
        self.0.stop();
    }
}

impl Deref for FakeLlm {
    type Target = ScriptedServer;

    fn deref(&self) -> &ScriptedServer {
        &self.0
    }
}

impl FakeLlmBuilder {
    /// Sets the address; the default is a free loopback port.
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
        self.models = Box::new(reply);
        self
    }

    /// Starts the server.
    pub fn start(
        self,
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> io::Result<FakeLlm> {
        let models = self.models;
        let script = move |request: &Received| {
            if is_probe(request) {
                models(request)
            } else {
                script(request)
            }
        };
        ScriptedServer::start_at(self.address, self.body_rule, script).map(FakeLlm)
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
