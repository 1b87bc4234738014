//! The usage report as a table for the terminal.

use super::sums::{By, Row, Sums};
use crate::text::is_unsafe;

/// Maximum width of a name in the table. Longer names are truncated, so that the table fits the
/// terminal.
const WIDEST_NAME: usize = 48;

const COLUMNS: [&str; 7] = [
    "REQUESTS",
    "PROMPT",
    "COMPLETION",
    "CACHED",
    "TOTAL",
    "ESTIMATED",
    "NO TOKENS",
];

/// Formats the report as a table with the names left-aligned, the numbers right-aligned, and a
/// total line.
pub(super) fn table(by: &[By], rows: &[Row], total: &Sums) -> String {
    let head = by.iter().map(|by| by.name().to_uppercase());
    let mut lines = vec![line(head.collect(), COLUMNS.map(str::to_owned))];
    for row in rows {
        let names = row.names.iter().map(|name| shown(name.as_deref()));
        lines.push(line(names.collect(), row.sums.numbers().map(separated)));
    }
    let mut names = vec![String::new(); by.len()];
    if let Some(first) = names.first_mut() {
        "TOTAL".clone_into(first);
    }
    lines.push(line(names, total.numbers().map(separated)));
    aligned(&lines, by.len())
}

fn line(mut names: Vec<String>, numbers: [String; 7]) -> Vec<String> {
    names.extend(numbers);
    names
}

/// Formats a name for the table. Clients choose names, so control characters, which could control
/// the terminal, are replaced by `?`.
fn shown(name: Option<&str>) -> String {
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return "-".to_owned();
    };
    let mut text: String = name
        .chars()
        .take(WIDEST_NAME)
        .map(|c| if is_unsafe(c) { '?' } else { c })
        .collect();
    if name.chars().count() > WIDEST_NAME {
        text.pop();
        text.push('…');
    }
    text
}

/// Formats a number with a comma after each three digits, such as `1,234,567`.
fn separated(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats rows as columns, two spaces apart: the first `left` columns left-aligned, the others
/// right-aligned.
fn aligned(lines: &[Vec<String>], left: usize) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        let widths = cells.map(|cell| cell.chars().count());
        widths.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let lines = lines.iter().map(|line| {
        let cells = line.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| {
            if column < left {
                format!("{cell:width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_aligns_columns_and_separates_thousands() {
        let row = |name: Option<&str>, requests, tokens| Row {
            names: vec![name.map(str::to_owned)],
            sums: Sums {
                requests,
                prompt_tokens: tokens,
                tokens,
                estimated: 1,
                ..Sums::default()
            },
        };
        let rows = [
            row(Some("llama-3.3-70b"), 1200, 1_234_567),
            row(Some("a\u{1b}[2J"), 1, 7),
            row(None, 2, 0),
        ];
        let total = Sums::total(&rows);
        let expected = "\
MODEL          REQUESTS     PROMPT  COMPLETION  CACHED      TOTAL  ESTIMATED  NO TOKENS
llama-3.3-70b     1,200  1,234,567           0       0  1,234,567          1          0
a?[2J                 1          7           0       0          7          1          0
-                     2          0           0       0          0          1          0
TOTAL             1,203  1,234,574           0       0  1,234,574          3          0";
        assert_eq!(table(&[By::Model], &rows, &total), expected);
    }

    #[test]
    fn numbers_have_a_separator_every_three_digits() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (123_456, "123,456"),
            (u64::MAX, "18,446,744,073,709,551,615"),
        ] {
            assert_eq!(separated(number), text);
        }
    }

    #[test]
    fn overlong_name_is_truncated() {
        let long = "x".repeat(100);
        assert_eq!(shown(Some(&long)).chars().count(), WIDEST_NAME);
        assert!(shown(Some(&long)).ends_with('…'));
        assert_eq!(shown(Some("")), "-");
    }
}
