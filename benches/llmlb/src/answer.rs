//! Responses of the mock backend, which the load generator compares byte by byte.

use std::time::Duration;

/// Events of a stream before the usage and `[DONE]`: the role, the tokens and the finish reason.
const EVENTS: usize = 50;
/// Events of a slow stream, one per second.
const SLOW_EVENTS: usize = 30;
/// Length of the id, which is different in each response.
const ID: usize = 16;
const ID_MARK: &str = "@@@@@@@@@@@@@@@@";

/// Models, which differ only in their pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// Tokens without a pause.
    Burst,
    /// A token every 20 ms.
    Paced,
    /// A token every second.
    Slow,
}

impl Model {
    pub const ALL: [Self; 3] = [Self::Burst, Self::Paced, Self::Slow];

    pub fn name(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Paced => "paced",
            Self::Slow => "slow",
        }
    }

    /// Returns the pause before each token.
    pub fn pace(self) -> Duration {
        match self {
            Self::Burst => Duration::ZERO,
            Self::Paced => Duration::from_millis(20),
            Self::Slow => Duration::from_secs(1),
        }
    }

    pub fn events(self) -> usize {
        if self == Self::Slow {
            SLOW_EVENTS
        } else {
            EVENTS
        }
    }
}

/// Bytes with an id at known positions.
pub struct Template {
    bytes: Vec<u8>,
    ids: Vec<usize>,
}

impl Template {
    fn new(text: &str) -> Self {
        Self {
            bytes: text.as_bytes().to_vec(),
            ids: text.match_indices(ID_MARK).map(|(at, _)| at).collect(),
        }
    }

    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends the bytes with this id to `out`.
    pub fn write(&self, id: &[u8; ID], out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.bytes);
        for at in &self.ids {
            out[start + at..start + at + ID].copy_from_slice(id);
        }
    }

    /// True if these are the bytes, with the same id at all positions.
    pub fn matches(&self, got: &[u8]) -> bool {
        if got.len() != self.bytes.len() {
            return false;
        }
        let (mut from, mut id) = (0, None);
        for &at in &self.ids {
            let here = &got[at..at + ID];
            if got[from..at] != self.bytes[from..at] || *id.get_or_insert(here) != here {
                return false;
            }
            from = at + ID;
        }
        got[from..] == self.bytes[from..]
    }

    /// Returns the text around the first difference. Ids are not compared.
    pub fn around_first_difference(&self, got: &[u8]) -> String {
        let is_id = |at| self.ids.iter().any(|&id| (id..id + ID).contains(&at));
        let same = |&at: &usize| got.get(at) == self.bytes.get(at) || is_id(at);
        let at = (0..got.len()).take_while(same).count();
        let (from, to) = (at.saturating_sub(40), got.len().min(at + 80));
        format!("{:?} at byte {at}", String::from_utf8_lossy(&got[from..to]))
    }
}

/// Returns the id of the response with this number.
pub fn id(number: u64) -> [u8; ID] {
    let mut digits = [0; ID];
    for (index, digit) in digits.iter_mut().enumerate() {
        *digit = b"0123456789abcdef"[(number >> (60 - 4 * index) & 15) as usize];
    }
    digits
}

/// Returns the response to a request without `stream`.
pub fn whole(model: Model) -> Template {
    let name = model.name();
    let content = "The quick brown fox jumps over the lazy dog. ".repeat(4);
    Template::new(&format!(
        concat!(
            r#"{{"id":"chatcmpl-{}","object":"chat.completion","created":1700000000,"#,
            r#""model":"{}","choices":[{{"index":0,"message":{{"role":"assistant","content":"{}","#,
            r#""refusal":null}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"#,
            r#""prompt_tokens":256,"completion_tokens":48,"total_tokens":304,"#,
            r#""prompt_tokens_details":{{"cached_tokens":0}}}},"system_fingerprint":"fp_mock"}}"#
        ),
        ID_MARK, name, content
    ))
}

/// Returns the events of a stream, with `[DONE]` as the last.
pub fn events(model: Model, usage: bool) -> Vec<Template> {
    let name = model.name();
    let event = |choices: &str, rest: &str| {
        Template::new(&format!(
            concat!(
                r#"data: {{"id":"chatcmpl-{}","object":"chat.completion.chunk","#,
                r#""created":1700000000,"model":"{}","choices":[{}]{}}}"#,
                "\n\n"
            ),
            ID_MARK, name, choices, rest
        ))
    };
    let choice = |delta: &str, reason: &str| {
        event(
            &format!(r#"{{"index":0,"delta":{delta},"logprobs":null,"finish_reason":{reason}}}"#),
            "",
        )
    };
    let tokens = model.events() - 2;
    let mut all = vec![choice(r#"{"role":"assistant","content":""}"#, "null")];
    all.extend((0..tokens).map(|n| choice(&format!(r#"{{"content":" tok{n:02}"}}"#), "null")));
    all.push(choice("{}", "\"stop\""));
    if usage {
        all.push(event(
            "",
            &format!(
                r#","usage":{{"prompt_tokens":256,"completion_tokens":{tokens},"total_tokens":{}}}"#,
                256 + tokens
            ),
        ));
    }
    all.push(Template::new("data: [DONE]\n\n"));
    all
}

/// Returns all events of a stream as one body, and the ends of the first event and the first token.
pub fn stream(model: Model, usage: bool) -> (Template, usize, usize) {
    let events = events(model, usage);
    let mut text = Vec::new();
    for event in &events {
        text.extend_from_slice(&event.bytes);
    }
    let role = events[0].len();
    let text = String::from_utf8(text).expect("text");
    (Template::new(&text), role, role + events[1].len())
}

/// Returns the response to `/v1/models`.
pub fn models() -> String {
    let models = Model::ALL.map(|model| {
        let name = model.name();
        format!(r#"{{"id":"{name}","object":"model","created":1700000000,"owned_by":"mock"}}"#)
    });
    format!(r#"{{"object":"list","data":[{}]}}"#, models.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_matches_only_the_whole_response_with_one_id() {
        let (template, ..) = stream(Model::Burst, false);
        let mut text = Vec::new();
        for event in events(Model::Burst, false) {
            event.write(&id(7), &mut text);
        }
        assert!(template.matches(&text));
        assert!(!template.matches(&text[..text.len() - 1]));
        for at in [0, template.ids[0], template.ids[20] + 3, text.len() - 1] {
            let mut wrong = text.clone();
            wrong[at] ^= 1;
            assert!(!template.matches(&wrong), "a change at {at}");
        }
    }

    #[test]
    fn small_response_has_about_560_bytes() {
        assert!((540..580).contains(&whole(Model::Burst).len()));
    }
}
