//! Log of a server for the scripts of clients: `/mock/requests?after=N`, `/mock/produced`.

use serde_json::{Value, json};

use super::State;
use super::call::Call;
use crate::message::Head;
use crate::server::Received;

/// A request as it was received.
pub(super) struct Seen {
    line: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl State {
    pub(super) fn see(&self, request: &Received) {
        self.seen.lock().expect("the list").push(Seen {
            line: request.head.line.clone(),
            headers: headers(&request.head),
            body: request.body.clone(),
        });
    }
}

pub(super) fn answer(call: &mut Call<'_>, what: &str) {
    let list: Vec<Value> = match what {
        "requests" => {
            let after = call.request.target().split_once("?after=");
            let after = after.map_or(0, |(_, number)| number.parse().expect("a number"));
            let seen = call.state.seen.lock().expect("the list");
            seen.iter().skip(after).map(Seen::json).collect()
        }
        "produced" => {
            let lines = call.state.ledger.lines();
            lines.iter().map(super::ledger::Produced::json).collect()
        }
        _ => return call.error(404, None, "There is nothing here."),
    };
    call.json(200, &list.into());
}

/// Returns the fields with names in lower case.
fn headers(head: &Head) -> Vec<(String, String)> {
    let fields = head.fields.iter();
    let lower = fields.map(|(name, value)| (name.to_ascii_lowercase(), value.clone()));
    lower.collect()
}

impl Seen {
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
