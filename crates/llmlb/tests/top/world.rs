//! A server with an API key and two backends: one whose streams stay open until a test ends them, and one that
//! fails.

use serde_json::Value;
use testkit::backends::{CHAT, backend_of};
use testkit::{Connection, FakeLlm, Gate, LlmlbServer, Request, Sandbox, chat_completion, wire};

/// Secret of the key `alice`.
const SECRET: &str = "sk-alice-0123456789abcdef";

pub(crate) struct World {
    pub(crate) sandbox: Sandbox,
    pub(crate) server: LlmlbServer,
    /// Ends the streams of the model `held`.
    pub(crate) gate: Gate,
    _backends: [FakeLlm; 2],
}

impl World {
    pub(crate) fn start() -> Self {
        let sandbox = testkit::sandbox!();
        let gate = Gate::new();
        let end = gate.clone();
        let good = backend_of(&["m", "held"], move |request, stream| {
            if !request.text().contains("held") {
                return wire::json(stream, 200, &chat_completion("hello", 7, 5));
            }
            wire::begin_stream(stream);
            let chunk = r#"data: {"choices":[{"index":0,"delta":{"content":"a b c d e f"}}]}"#;
            wire::chunk(stream, &format!("{chunk}\n\n"));
            end.wait();
            wire::chunk(stream, "data: [DONE]\n\n");
            wire::end_stream(stream);
        });
        let bad = backend_of(&["broken"], |_, stream| {
            wire::json(stream, 500, r#"{"error":{"message":"out of memory"}}"#);
        });
        let server = sandbox
            .server()
            .backend_with(&good.url(), "name = \"good\"\nmax_concurrent = 8")
            .backend_with(
                &bad.url(),
                "name = \"bad\"\n\n[[key]]\nname = \"alice\"\nkey_env = \"ALICE\"\nrpm = 100",
            )
            .variable("ALICE", SECRET)
            .start()
            .unwrap();
        Self {
            sandbox,
            server,
            gate,
            _backends: [good, bad],
        }
    }

    /// Sends a request of `alice` for a model. Returns the status of the response.
    pub(crate) fn chat(&self, model: &str) -> u16 {
        let bearer = format!("Bearer {SECRET}");
        let request = Request::chat(model, "Hello").field("authorization", bearer);
        self.server.send(&request).unwrap().status()
    }

    /// Begins a stream that stays open until the gate is opened, and waits for its first chunk.
    pub(crate) fn open_stream(&self) -> Connection {
        let mut client = Connection::open(self.server.address);
        let body = r#"{"model":"held","stream":true,"messages":[{"role":"user","content":"x"}]}"#;
        let fields = format!("authorization: Bearer {SECRET}\r\n");
        client.send_post_with(CHAT, &fields, body);
        assert_eq!(client.head().status(), 200);
        testkit::read_chunk(&mut client.reader).unwrap().unwrap();
        client
    }

    pub(crate) fn snapshot(&self) -> Value {
        self.server.get("/dashboard/snapshot").json()
    }

    /// Waits for a snapshot.
    pub(crate) fn until(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        testkit::eventually(what, || Some(self.snapshot()).filter(&is_it))
    }
}
