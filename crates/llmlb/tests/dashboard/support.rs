//! Requests to the dashboard, as its page sends them.

use testkit::{Answer, Connection, LlmlbServer};

/// A request as the page of the server itself sends it.
#[derive(Clone)]
pub(crate) struct PageRequest {
    pub(crate) host: String,
    pub(crate) origin: Option<String>,
    pub(crate) token: Option<String>,
    /// Further header lines, each of which ends in `\r\n`.
    pub(crate) fields: String,
}

impl PageRequest {
    /// Returns a request with the token of the server, from its own origin.
    #[track_caller]
    pub(crate) fn new(server: &LlmlbServer) -> Self {
        let host = format!("127.0.0.1:{}", server.port());
        Self {
            origin: Some(format!("http://{host}")),
            host,
            token: Some(token(server)),
            fields: String::new(),
        }
    }

    #[track_caller]
    pub(crate) fn send(
        &self,
        server: &LlmlbServer,
        method: &str,
        path: &str,
        body: &str,
    ) -> Answer {
        let mut client = Connection::open(server.address);
        let field = |name: &str, value: &Option<String>| {
            let value = value.as_ref();
            value.map_or_else(String::new, |value| format!("{name}: {value}\r\n"))
        };
        let origin = field("origin", &self.origin);
        let token = field("x-llmlb-csrf", &self.token);
        let length = match method {
            "POST" => format!("content-length: {}\r\n", body.len()),
            _ => String::new(),
        };
        let (host, fields) = (&self.host, &self.fields);
        client.send(format!(
            "{method} {path} HTTP/1.1\r\nhost: {host}\r\n{origin}{token}{fields}{length}\r\n{body}"
        ));
        client.answer()
    }

    #[track_caller]
    pub(crate) fn act(&self, server: &LlmlbServer, path: &str, body: &str) -> Answer {
        self.send(server, "POST", path, body)
    }
}

#[track_caller]
pub(crate) fn token(server: &LlmlbServer) -> String {
    let session = server.get("/dashboard/session").json();
    session["csrf"].as_str().unwrap().to_owned()
}
