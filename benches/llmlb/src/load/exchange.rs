//! A request and the answer that is right.

use crate::answer::{self, Model, Template};

/// What is asked, and what must come back.
pub struct Exchange {
    /// The request; each gets a prompt of its own by a number that is put in at `prompt_at`.
    pub(super) request: Vec<u8>,
    prompt_at: usize,
    count: u64,
    pub(super) answer: Template,
    /// How many bytes of the body make the first event and the first token.
    pub(super) event_at: usize,
    pub(super) token_at: usize,
}

impl Exchange {
    /// Asks this model with a prompt of this many bytes.
    pub fn new(model: Model, stream: bool, prompt: usize) -> Self {
        let filler: String = "A prompt which no other request has. "
            .chars()
            .cycle()
            .take(prompt)
            .collect();
        // In the order of the official clients: the model comes after the prompt.
        let before = r#"{"messages":[{"role":"user","content":""#;
        let stream_field = if stream { r#","stream":true"# } else { "" };
        let name = model.name();
        let body = format!(r#"{before}{filler}"}}],"model":"{name}"{stream_field}}}"#);
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n\
             content-type: application/json\r\nuser-agent: bench\r\n\
             authorization: Bearer sk-0123456789abcdef0123456789abcdef\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        let (answer, event_at, token_at) = if stream {
            answer::stream(model, false)
        } else {
            (answer::whole(model), usize::MAX, usize::MAX)
        };
        Self {
            prompt_at: head.len() + before.len(),
            request: (head + &body).into_bytes(),
            // Another run has other prompts.
            count: u64::from(std::process::id()) << 32,
            answer,
            event_at,
            token_at,
        }
    }

    /// Writes the next request over the one before it.
    pub(super) fn next(&mut self, request: &mut Vec<u8>) {
        if request.is_empty() {
            request.clone_from(&self.request);
        }
        self.count += 1;
        let id = answer::id(self.count);
        request[self.prompt_at..self.prompt_at + id.len()].copy_from_slice(&id);
    }
}
