//! What the clients saw, the backends made, and the receiver has, compared.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::client::{Fate, Saw, Sent};
use super::{CLIENTS, World};
use testkit::api_server::{End, Produced};

/// Requests that went alike.
#[derive(Debug, Default)]
struct Row {
    sent: usize,
    recorded: usize,
    /// A backend was asked, and there is no record.
    lost: usize,
    /// Tokens of prompts and completions, as the receiver has them.
    billed: (u64, u64),
    /// As the backends made them.
    made: (u64, u64),
    outcomes: BTreeMap<String, usize>,
}

/// What there is to be seen.
#[derive(Debug)]
pub(super) struct Reckoning {
    kills: usize,
    rows: BTreeMap<(Saw, &'static str), Row>,
    received: usize,
    books: String,
    problems: Vec<String>,
}

impl Reckoning {
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
            .flat_map(|one| one.state.ledger.lines());
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
        for (id, one) in sent {
            let records = records.remove(id).unwrap_or_default();
            let made = made.remove(id).unwrap_or_default();
            found.compare(id, *one, &records, &made);
        }
        for id in records.keys() {
            found
                .problems
                .push(format!("{id}: a record of nobody's request"));
        }
        found.look_for_losses();
        let repeated = world.receiver.repeated_records();
        if repeated > 0 {
            found
                .problems
                .push(format!("records that came twice: {repeated}"));
        }
        found.verify(world);
        found
    }

    pub(super) fn problems(&self) -> &[String] {
        &self.problems
    }

    fn compare(&mut self, id: &str, one: Sent, records: &[Value], made: &[Produced]) {
        let kind = match (one.saw, one.is_stream) {
            (Saw::Whole, true) => "streamed",
            (Saw::Whole, false) => "plain",
            _ if one.fate == Fate::Cut => "to be cut",
            _ if one.fate == Fate::Leave => "to be left",
            _ => "to be answered",
        };
        let mut problems = Vec::new();
        let row = self.rows.entry((one.saw, kind)).or_default();
        row.sent += 1;
        row.recorded += records.len();
        for record in records {
            let outcome = record["outcome"].as_str().unwrap_or_default();
            *row.outcomes.entry(outcome.to_owned()).or_default() += 1;
            row.billed.0 += number(record, "prompt_tokens");
            row.billed.1 += number(record, "completion_tokens");
            if !is_fitting(one, outcome) {
                problems.push(format!("{id}: {one:?} is recorded as {outcome}"));
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
        if one.saw == Saw::Whole {
            match (records, whole.as_slice()) {
                ([record], [line]) => {
                    let has =
                        ["prompt_tokens", "completion_tokens"].map(|name| number(record, name));
                    if has != [line.prompt, line.completion] || record["tokens_from"] != "reported"
                    {
                        problems.push(format!("{id}: {record} is not {line:?}"));
                    }
                }
                _ => problems.push(format!("{id}: {records:?}, {made:?}")),
            }
        }
        self.problems.extend(problems);
    }

    /// Only those may be missing that were under way when the server was killed.
    fn look_for_losses(&mut self) {
        let missing: usize = self.rows.values().map(|row| row.lost).sum();
        let most = self.kills * CLIENTS;
        if missing > most {
            let problem = format!("{missing} have no record, of {most} that may have none");
            self.problems.push(problem);
        }
    }

    fn verify(&mut self, world: &World) {
        let outcome = world.place.run("usage verify --json");
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

/// Whether a record may say so of a request that its client saw end so.
fn is_fitting(one: Sent, outcome: &str) -> bool {
    match (one.saw, outcome) {
        // Nobody knows how far the answer was when the client left, or the server was killed: it
        // may be whole, and the client does not have its last bytes.
        (Saw::Whole | Saw::Left | Saw::Nothing, "complete")
        | (Saw::Left, "cancelled")
        | (Saw::Refused, "complete" | "refused" | "failed") => true,
        (Saw::Broken, "complete") => one.fate == Fate::Answer,
        (Saw::Broken | Saw::Nothing, "cut") => one.fate == Fate::Cut,
        (Saw::Nothing, "cancelled") => one.fate == Fate::Leave,
        _ => false,
    }
}

impl fmt::Display for Reckoning {
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
        for ((saw, kind), row) in &self.rows {
            let tokens = |(prompt, completion): (u64, u64)| format!("{prompt}+{completion}");
            let made = match saw {
                Saw::Whole => tokens(row.made),
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
                format!("{saw:?}, {kind}").to_lowercase(),
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
            writeln!(f, "  NOT   {problem}")?;
        }
        let verdict = if self.problems.is_empty() {
            "PASS"
        } else {
            "FAIL"
        };
        write!(f, "{verdict}: {} problems", self.problems.len())
    }
}
