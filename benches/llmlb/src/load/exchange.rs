//! A request and its expected response.

use crate::answer::{self, Model, Template};

/// A request, and the response that must follow.
pub struct Exchange {
    /// The request. A number at `prompt_at` makes the prompt of each request different.
    pub(super) request: Vec<u8>,
    prompt_at: usize,
    count: u64,
    pub(super) answer: Template,
    /// Length of the body up to the end of the first event.
    pub(super) event_at: usize,
    /// Length of the body up to the end of the first token.
    pub(super) token_at: usize,
}

impl Exchange {
    /// Creates requests to this model with prompts of this many bytes.
    pub fn new(model: Model, stream: bool, prompt: usize) -> Self {
        let filler: String = "A prompt which no other request has. "
            .chars()
            .cycle()
            .take(prompt)
            .collect();
        // The model follows the prompt, as in requests of the official clients.
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
            // The process id makes the prompts of each run different.
            count: u64::from(std::process::id()) << 32,
            answer,
            event_at,
            token_at,
        }
    }

    /// Overwrites the previous request with the next one.
    pub(super) fn next(&mut self, request: &mut Vec<u8>) {
        if request.is_empty() {
            request.clone_from(&self.request);
        }
        self.count += 1;
        let id = answer::id(self.count);
        request[self.prompt_at..self.prompt_at + id.len()].copy_from_slice(&id);
    }
}
