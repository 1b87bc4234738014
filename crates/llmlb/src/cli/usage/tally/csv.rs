//! The usage report as CSV (RFC 4180).

use super::sums::{By, Row};
use crate::text::escaped;

const COLUMNS: [&str; 7] = [
    "requests",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "tokens",
    "estimated",
    "without_tokens",
];

/// Characters with which a spreadsheet takes a cell as a formula: `=`, `+`, `-`, `@` and their wide
/// forms, and characters that some spreadsheets skip.
const FORMULA: [char; 10] = [
    '=', '+', '-', '@', '\t', '\r', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}',
];

/// Formats the report as CSV: a header line, then a line for each row.
pub(super) fn table(by: &[By], rows: &[Row]) -> String {
    let head = by.iter().map(|by| by.name()).chain(COLUMNS);
    let mut lines = vec![head.collect::<Vec<_>>().join(",")];
    for row in rows {
        let names = row.names.iter().map(|name| cell(name.as_deref()));
        let numbers = row.sums.numbers();
        let cells = names.chain(numbers.map(|number| number.to_string()));
        lines.push(cells.collect::<Vec<_>>().join(","));
    }
    lines.join("\n")
}

/// Formats a name as a CSV cell; an unknown name is an empty cell. Clients choose these names, so a
/// name that a spreadsheet would run as a formula gets an apostrophe, and unsafe characters are
/// escaped. Names with a semicolon, which separates cells for some spreadsheets, are quoted too.
pub(in crate::cli::usage) fn cell(name: Option<&str>) -> String {
    let Some(name) = name else {
        return String::new();
    };
    let is_formula = name.trim_start_matches(' ').starts_with(FORMULA);
    let mut name = escaped(name).into_owned();
    if is_formula {
        name.insert(0, '\'');
    }
    if name.contains(['"', ',', ';']) || name.is_empty() {
        format!("\"{}\"", name.replace('"', "\"\""))
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_and_formulas_are_disarmed() {
        for (name, text) in [
            (None, ""),
            (Some(""), "\"\""),
            (Some("llama3:8b"), "llama3:8b"),
            (Some("a,b"), "\"a,b\""),
            (Some("say \"hi\"\n"), "\"say \"\"hi\"\"\\u000a\""),
            (Some("a\u{1b}[2J\u{202e}b"), "a\\u001b[2J\\u202eb"),
            (Some("\t=1"), "'\\u0009=1"),
            (Some("=1+2"), "'=1+2"),
            (Some("-x,y"), "\"'-x,y\""),
            // A name with a semicolon must be quoted: a spreadsheet whose list separator is the
            // semicolon would begin a cell with the formula after it.
            (Some("x;=1+2"), "\"x;=1+2\""),
            // The wide forms of `=` and `@` must be disarmed: some spreadsheets read them as the
            // ASCII characters.
            (Some("＝1+2"), "'＝1+2"),
            (Some("  =x"), "'  =x"),
            (Some("＠x"), "'＠x"),
        ] {
            assert_eq!(cell(name), text);
        }
    }
}
