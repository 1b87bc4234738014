//! Handlers with which client scripts read the log of the fake server: `/mock/requests?after=N`
//! returns the requests it received, and `/mock/produced` the tokens it generated.

use serde_json::{Value, json};

use super::State;
use super::call::Call;
use crate::message::Head;
use crate::server::Received;

/// A request that the fake server received, as its log stores it.
pub(super) struct LoggedRequest {
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl State {
    pub(super) fn log_request(&self, request: &Received) {
        self.requests.lock().expect("the list").push(LoggedRequest {
            line: request.head.line.clone(),
            headers: headers(&request.head),
            body: request.body.clone(),
        });
    }
}

pub(super) fn answer(call: &mut Call<'_>, name: &str) {
    let list: Vec<Value> = match name {
        "requests" => {
            let after = call.request.target().split_once("?after=");
            let after = after.map_or(0, |(_, number)| number.parse().expect("a number"));
            let requests = call.state.requests.lock().expect("the list");
            requests
                .iter()
                .skip(after)
                .map(LoggedRequest::json)
                .collect()
        }
        "produced" => {
            let lines = call.state.ledger.lines();
            lines.iter().map(super::ledger::Produced::json).collect()
        }
        _ => return call.error(404, None, "There is no such page."),
    };
    call.json(200, &list.into());
}

/// Returns the header fields of a request, with their names in lower case.
fn headers(head: &Head) -> Vec<(String, String)> {
    let fields = head.fields.iter();
    let lower = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
    lower.collect()
}

impl LoggedRequest {
    fn json(&self) -> Value {
        let mut words = self.line.split(' ');
        let digit = |bits: u8| char::from(b"0123456789abcdef"[usize::from(bits)]);
        let digits = self.body.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        let body: String = digits.map(digit).collect();
        json!({
            "method": words.next(),
            "target": words.next(),
            "headers": self.headers,
            "body": body,
        })
    }
}
