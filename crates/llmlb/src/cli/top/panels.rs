//! The tables of the screen, as rows of texts.

use std::collections::BTreeMap;

use super::theme::Tone;
use super::view::{Panel, Sort, View};
use super::words;
use crate::snapshot::format::{BackendLine, UsageHour, UsageSum};

/// A table with a title.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) title: String,
    pub(super) columns: Vec<Column>,
    pub(super) rows: Vec<Vec<Cell>>,
    /// Text that is shown without rows.
    pub(super) empty: &'static str,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) width: Width,
    pub(super) is_number: bool,
    /// Minimum width of the table that has this column.
    pub(super) from: u16,
}

/// Width of a column.
#[derive(Clone, Copy, Debug)]
pub(super) enum Width {
    Fixed(u16),
    /// A share of the width that is left.
    Share(u16),
}

/// A text of a table.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) text: String,
    pub(super) tone: Tone,
}

/// Returns the table of the backends.
pub(super) fn backends(view: &View) -> Table {
    let all = view.backends();
    let up = all.iter().filter(|one| one.state == "up").count();
    let order = match (view.sort, view.is_reversed) {
        (Sort::Configured, false) => String::new(),
        (sort, false) => format!(", by {}", sort.name()),
        (sort, true) => format!(", by {}, reversed", sort.name()),
    };
    Table {
        title: format!("backends: {up} of {} up{order}", all.len()),
        columns: vec![
            text("NAME", Width::Share(2), 0),
            text("STATE", Width::Fixed(8), 24),
            number("IN FLIGHT", 9, 34),
            number("WAITING", 7, 70),
            number("FIRST BYTE", 10, 48),
            number("TOKENS/S", 8, 58),
            number("REQUESTS", 8, 78),
            number("FAILED", 6, 40),
            text("MODELS OR ERROR", Width::Share(3), 100),
        ],
        rows: all.into_iter().map(backend).collect(),
        empty: "no backends",
    }
}

fn backend(line: &BackendLine) -> Vec<Cell> {
    let tone = match line.state.as_str() {
        "up" => Tone::Good,
        "down" => Tone::Bad,
        _ => Tone::Warning,
    };
    let in_flight = match line.max_concurrent {
        Some(max) => format!("{}/{max}", line.in_flight),
        None => line.in_flight.to_string(),
    };
    let first_byte = line
        .first_byte_ms
        .map_or_else(|| "-".to_owned(), words::milliseconds);
    let is_failing = if line.failed > 0 {
        Tone::Warning
    } else {
        Tone::Plain
    };
    let is_waiting = if line.waiting > 0 {
        Tone::Warning
    } else {
        Tone::Plain
    };
    let (what, what_tone) = match &line.error {
        Some(error) => (error.clone(), tone),
        None => (line.models.join(", "), Tone::Dim),
    };
    vec![
        plain(&line.name),
        cell(&line.state, tone),
        plain(in_flight),
        cell(words::count(line.waiting), is_waiting),
        plain(first_byte),
        plain(words::rate(line.tokens_per_s)),
        plain(words::count(line.requests)),
        cell(words::count(line.failed), is_failing),
        cell(what, what_tone),
    ]
}

/// Returns the tables of a panel, side by side if there are two.
pub(super) fn panel(view: &View, panel: Panel) -> Vec<Table> {
    match panel {
        Panel::Requests => vec![requests(view)],
        Panel::Usage => usage(view),
        Panel::Errors => vec![errors(view)],
        Panel::Limits => vec![limits(view)],
    }
}

fn requests(view: &View) -> Table {
    let snapshot = &view.snapshot;
    let more = match snapshot.live_more {
        0 => String::new(),
        more => format!(", {more} more"),
    };
    let row = |line: &crate::snapshot::format::LiveLine| {
        let tone = match line.state.as_str() {
            "queued" => Tone::Warning,
            "streaming" => Tone::Good,
            _ => Tone::Plain,
        };
        vec![
            plain(words::seconds(line.age_ms / 1000)),
            cell(&line.state, tone),
            plain(given(line.model.as_ref())),
            plain(given(line.backend.as_ref())),
            plain(given(line.key.as_ref())),
            plain(words::count(line.tokens)),
            cell(&line.id, Tone::Dim),
        ]
    };
    Table {
        title: format!("requests in flight, oldest first{more}"),
        columns: vec![
            number("AGE", 6, 0),
            text("STATE", Width::Fixed(9), 24),
            text("MODEL", Width::Share(3), 0),
            text("BACKEND", Width::Share(2), 50),
            text("KEY", Width::Share(2), 66),
            number("TOKENS", 6, 40),
            text("ID", Width::Fixed(36), 116),
        ],
        rows: snapshot.live.iter().map(row).collect(),
        empty: "no requests in flight",
    }
}

fn usage(view: &View) -> Vec<Table> {
    let snapshot = &view.snapshot;
    let usage = snapshot.usage.as_ref();
    let as_of = usage.and_then(|usage| usage.as_of.as_deref());
    let as_of = as_of.map_or_else(String::new, |at| {
        format!(" ({})", words::ago(at, &snapshot.at))
    });
    let empty = match (&snapshot.spool, usage) {
        (None, _) => "usage is not recorded (usage.enabled)",
        (_, None) => "the server is adding it up",
        _ => "no usage in the last 24 hours",
    };
    let hours = usage.map_or(&[][..], |usage| &usage.hours);
    let table = |name, title: &str, of: fn(&UsageHour) -> &BTreeMap<String, UsageSum>| Table {
        title: format!("tokens by {title}{as_of}"),
        columns: vec![
            text(name, Width::Share(1), 0),
            number("THIS HOUR", 9, 30),
            number("24 HOURS", 8, 0),
            number("REQUESTS", 8, 36),
        ],
        rows: usage_rows(hours, of),
        empty,
    };
    vec![
        table("MODEL", "model", |hour| &hour.model),
        table("KEY", "API key", |hour| &hour.key),
    ]
}

/// Returns a row for each name, that with the most tokens in all hours first.
fn usage_rows(
    hours: &[UsageHour],
    of: impl Fn(&UsageHour) -> &BTreeMap<String, UsageSum>,
) -> Vec<Vec<Cell>> {
    let mut sums: BTreeMap<&str, UsageSum> = BTreeMap::new();
    for (name, sum) in hours.iter().flat_map(&of) {
        sums.entry(name).or_default().add(*sum);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse((tokens(sum), sum.requests)));
    let this_hour = |name: &str| hours.last().and_then(|hour| of(hour).get(name));
    let row = |(name, sum): (&str, UsageSum)| {
        let this_hour = this_hour(name).map_or(0, tokens);
        vec![
            plain(name),
            plain(words::count(this_hour)),
            plain(words::count(tokens(&sum))),
            plain(words::count(sum.requests)),
        ]
    };
    sums.into_iter().map(row).collect()
}

fn tokens(sum: &UsageSum) -> u64 {
    sum.prompt.saturating_add(sum.completion)
}

fn errors(view: &View) -> Table {
    let row = |line: &crate::snapshot::format::ErrorLine| {
        let status = match line.status {
            0 => "-".to_owned(),
            status => status.to_string(),
        };
        let tone = match line.status {
            400..500 => Tone::Warning,
            _ => Tone::Bad,
        };
        vec![
            plain(words::clock(&line.at)),
            cell(status, tone),
            plain(line.code.as_ref().unwrap_or(&line.outcome)),
            plain(given(line.model.as_ref())),
            plain(given(line.backend.as_ref())),
            plain(given(line.key.as_ref())),
            plain(line.message.as_deref().unwrap_or_default()),
            cell(&line.id, Tone::Dim),
        ]
    };
    Table {
        title: "recent errors, newest first (UTC)".to_owned(),
        columns: vec![
            text("TIME", Width::Fixed(8), 0),
            text("HTTP", Width::Fixed(4), 30),
            text("ERROR", Width::Share(3), 0),
            text("MODEL", Width::Share(2), 60),
            text("BACKEND", Width::Share(2), 70),
            text("KEY", Width::Share(1), 130),
            text("MESSAGE", Width::Share(5), 50),
            text("ID", Width::Fixed(36), 116),
        ],
        rows: view.snapshot.errors.iter().map(row).collect(),
        empty: "no errors since the server started",
    }
}

fn limits(view: &View) -> Table {
    let row = |line: &crate::snapshot::format::LimitLine| {
        let percent = match line.limit {
            0 => 100,
            limit => u128::from(line.used) * 100 / u128::from(limit),
        };
        let tone = match percent {
            100.. => Tone::Bad,
            80.. => Tone::Warning,
            _ => Tone::Plain,
        };
        vec![
            plain(&line.key),
            plain(line.kind.replace('_', " ")),
            plain(words::count(line.used)),
            plain(words::count(line.limit)),
            cell(format!("{percent} %"), tone),
        ]
    };
    Table {
        title: "limits of API keys, the most used first".to_owned(),
        columns: vec![
            text("KEY", Width::Share(2), 0),
            text("LIMIT", Width::Share(2), 40),
            number("USED", 7, 30),
            number("OF", 7, 30),
            number("SHARE", 6, 0),
        ],
        rows: view.snapshot.limits.iter().map(row).collect(),
        empty: "no key with a limit has sent a request",
    }
}

fn text(name: &'static str, width: Width, from: u16) -> Column {
    Column {
        name,
        width,
        is_number: false,
        from,
    }
}

fn number(name: &'static str, width: u16, from: u16) -> Column {
    Column {
        name,
        width: Width::Fixed(width),
        is_number: true,
        from,
    }
}

fn plain(text: impl Into<String>) -> Cell {
    cell(text, Tone::Plain)
}

fn cell(text: impl Into<String>, tone: Tone) -> Cell {
    Cell {
        text: text.into(),
        tone,
    }
}

fn given(text: Option<&String>) -> String {
    text.map_or_else(|| "-".to_owned(), Clone::clone)
}
