//! Comparison of what clients saw, backends produced and the receiver got.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::client::{Fate, Seen, Sent};
use super::{CLIENTS, World};
use testkit::api_server::{End, Produced};

/// Sums of the requests that ended in the same way for their clients (for example complete or
/// incomplete) and were planned to end in the same way.
#[derive(Debug, Default)]
struct Row {
    sent: usize,
    recorded: usize,
    /// Number of requests that reached a backend and have no record, which is the defect that this
    /// test searches for.
    lost: usize,
    /// Prompt and completion tokens according to the receiver.
    billed: (u64, u64),
    /// Prompt and completion tokens according to the backends.
    made: (u64, u64),
    outcomes: BTreeMap<String, usize>,
}

/// Result of comparing the requests as clients saw them with the tokens that the backends produced
/// and the records that the receiver got.
#[derive(Debug)]
pub(super) struct Report {
    kills: usize,
    rows: BTreeMap<(Seen, &'static str), Row>,
    received: usize,
    books: String,
    problems: Vec<String>,
}

impl Report {
    pub(super) fn of(world: &World, sent: &BTreeMap<String, Sent>, kills: usize) -> Self {
        let mut records: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for record in world.receiver.distinct_records() {
            let id = record["request_id"].as_str().unwrap_or_default().to_owned();
            records.entry(id).or_default().push(record);
        }
        let mut made: BTreeMap<String, Vec<Produced>> = BTreeMap::new();
        let lines = world
            .backends
            .iter()
            .flat_map(|backend| backend.state.ledger.lines());
        for line in lines {
            made.entry(line.request_id.clone()).or_default().push(line);
        }
        let mut found = Self {
            kills,
            rows: BTreeMap::new(),
            received: records.values().map(Vec::len).sum(),
            books: String::new(),
            problems: Vec::new(),
        };
        for (id, request) in sent {
            let records = records.remove(id).unwrap_or_default();
            let made = made.remove(id).unwrap_or_default();
            found.compare(id, *request, &records, &made);
        }
        for id in records.keys() {
            found
                .problems
                .push(format!("{id}: a record of a request that was not sent"));
        }
        found.check_losses();
        let repeated = world.receiver.repeated_records();
        if repeated > 0 {
            found
                .problems
                .push(format!("records in more than one batch: {repeated}"));
        }
        found.verify(world);
        found
    }

    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    fn compare(&mut self, id: &str, request: Sent, records: &[Value], made: &[Produced]) {
        let kind = match (request.seen, request.is_stream) {
            (Seen::Complete, true) => "streamed",
            (Seen::Complete, false) => "plain",
            _ if request.fate == Fate::Cut => "to be cut",
            _ if request.fate == Fate::Disconnect => "to be disconnected",
            _ => "to be completed",
        };
        let mut problems = Vec::new();
        let row = self.rows.entry((request.seen, kind)).or_default();
        row.sent += 1;
        row.recorded += records.len();
        for record in records {
            let outcome = record["outcome"].as_str().unwrap_or_default();
            *row.outcomes.entry(outcome.to_owned()).or_default() += 1;
            row.billed.0 += number(record, "prompt_tokens");
            row.billed.1 += number(record, "completion_tokens");
            if !is_consistent(request, outcome) {
                problems.push(format!("{id}: {request:?} is recorded as {outcome}"));
            }
        }
        let whole: Vec<_> = made
            .iter()
            .filter(|line| line.state == End::Whole)
            .collect();
        for line in &whole {
            row.made.0 += line.prompt;
            row.made.1 += line.completion;
        }
        row.lost += usize::from(records.is_empty() && !made.is_empty());
        if records.len() > 1 {
            problems.push(format!("{id}: {} records", records.len()));
        }
        if request.seen == Seen::Complete {
            match (records, whole.as_slice()) {
                ([record], [line]) => {
                    let has =
                        ["prompt_tokens", "completion_tokens"].map(|name| number(record, name));
                    if has != [line.prompt, line.completion] || record["tokens_from"] != "reported"
                    {
                        problems.push(format!("{id}: {record} differs from {line:?}"));
                    }
                }
                _ => problems.push(format!("{id}: {records:?}, {made:?}")),
            }
        }
        self.problems.extend(problems);
    }

    /// Reports requests that reached a backend and have no record, and more interrupted requests than
    /// can have been in flight when the server was killed.
    fn check_losses(&mut self) {
        let missing: usize = self.rows.values().map(|row| row.lost).sum();
        if missing > 0 {
            self.problems
                .push(format!("{missing} requests have no record"));
        }
        let outcomes = self
            .rows
            .values()
            .map(|row| row.outcomes.get("interrupted"));
        let (interrupted, max): (usize, _) = (outcomes.flatten().sum(), self.kills * CLIENTS);
        if interrupted > max {
            let problem = format!(
                "{interrupted} requests were interrupted; at most {max} were in flight at kills"
            );
            self.problems.push(problem);
        }
    }

    fn verify(&mut self, world: &World) {
        let outcome = world.sandbox.run("usage verify --json");
        let verified: Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
        let count = |name: &str| number(&verified, name);
        self.books = format!(
            "{} staged = {} delivered + {} archived + {} pending + {} failed",
            count("staged"),
            count("delivered"),
            count("archived"),
            count("pending"),
            count("failed")
        );
        let received = self.received as u64;
        if outcome.code != Some(0)
            || verified["balanced"] != true
            || [count("staged"), count("delivered")] != [received, received]
        {
            self.problems.push(format!("verify: {outcome:?}"));
        }
    }
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_default()
}

/// True if this outcome of a record agrees with the end of the request that the client saw.
fn is_consistent(request: Sent, outcome: &str) -> bool {
    match (request.seen, outcome) {
        // A client that disconnected, or whose server was killed, may have missed only the last
        // bytes. The record may then say `complete` although the client did not see the end.
        (Seen::Complete | Seen::Disconnected | Seen::Nothing, "complete")
        | (Seen::Disconnected, "cancelled")
        // These requests were in flight when the server was killed. The next start of the server
        // recorded them as `interrupted`.
        | (Seen::Incomplete | Seen::Disconnected | Seen::Nothing, "interrupted")
        | (Seen::Refused, "complete" | "refused" | "failed") => true,
        (Seen::Incomplete, "complete") => request.fate == Fate::Complete,
        (Seen::Incomplete | Seen::Nothing, "cut") => request.fate == Fate::Cut,
        (Seen::Nothing, "cancelled") => request.fate == Fate::Disconnect,
        _ => false,
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sent: usize = self.rows.values().map(|row| row.sent).sum();
        writeln!(
            f,
            "{sent} requests were sent, the server was killed {} times, {} records were received",
            self.kills, self.received
        )?;
        writeln!(
            f,
            "  {:<26} {:>7} {:>8} {:>7} {:>20} {:>20}  outcomes",
            "the client saw", "sent", "records", "killed", "billed in+out", "made in+out"
        )?;
        for ((seen, kind), row) in &self.rows {
            let tokens = |(prompt, completion): (u64, u64)| format!("{prompt}+{completion}");
            let made = match seen {
                Seen::Complete => tokens(row.made),
                _ => "-".to_owned(),
            };
            let outcomes: Vec<_> = row
                .outcomes
                .iter()
                .map(|(name, count)| format!("{count} {name}"))
                .collect();
            writeln!(
                f,
                "  {:<26} {:>7} {:>8} {:>7} {:>20} {:>20}  {}",
                format!("{seen:?}, {kind}").to_lowercase(),
                row.sent,
                row.recorded,
                row.lost,
                tokens(row.billed),
                made,
                outcomes.join(", ")
            )?;
        }
        writeln!(f, "  the books: {}", self.books)?;
        for problem in self.problems.iter().take(20) {
            writeln!(f, "  problem: {problem}")?;
        }
        let verdict = if self.problems.is_empty() {
            "PASS"
        } else {
            "FAIL"
        };
        write!(f, "{verdict}: {} problems", self.problems.len())
    }
}
