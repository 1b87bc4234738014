//! Draws the screen into a buffer of character cells, of a terminal or for plain text.

use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Rect};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{self, Paragraph, Row, Widget};

use super::panels::{self, Column, Table, Width};
use super::theme::{Theme, Tone};
use super::view::{Panel, View};
use super::words;
use crate::snapshot::format::{Snapshot, Spool};

/// Width of plain text that goes to no terminal.
pub(super) const PLAIN_WIDTH: u16 = 160;
/// Minimum and maximum width of plain text.
const PLAIN_WIDTHS: (u16, u16) = (40, 400);
/// Width below which the bar of keys is short.
const NARROW: u16 = 70;
/// Height of a table's title and column names.
const TABLE_HEAD: u16 = 2;
/// Minimum height of a table.
const MIN_TABLE: u16 = 4;
/// Minimum width of two tables side by side.
const TWO_TABLES: u16 = 76;
const KEYS: &str =
    " q quit   1-4 or Tab panel   s sort   r reverse   \u{2191}\u{2193} scroll   ? help ";
const FEW_KEYS: &str = " q quit  Tab panel  s sort  ? help ";
const HELP: [&str; 12] = [
    "q, Ctrl-C   quit",
    "1 2 3 4     requests in flight, usage, errors, limits",
    "Tab         next panel; Shift-Tab: the previous one",
    "s           sort the backends by the next column",
    "r           reverse the order",
    "Up, Down    scroll the panel",
    "Esc         close this help, dismiss a notice",
    "",
    "FIRST BYTE  average time until a response begins, of the last minute",
    "TOKENS/S    generated tokens per second, of the last 10 seconds",
    "WAITING     requests that wait for a slot of this backend",
    "FAILED      failed attempts since the server started",
];

/// Draws the screen of a terminal.
pub(super) fn draw(view: &View, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let head = head(view, theme);
    let head_height = clamp(head.len(), area.height);
    let [head_area, rest] = split(area, head_height);
    Paragraph::new(head).render(head_area, buffer);
    let [body, keys] = split(rest, rest.height.saturating_sub(1));
    let bar = if area.width < NARROW { FEW_KEYS } else { KEYS };
    Line::styled(bar, theme.keys()).render(keys, buffer);
    if view.has_help {
        let lines: Vec<_> = HELP.iter().map(|line| Line::raw(*line)).collect();
        return Paragraph::new(lines).render(inset(body), buffer);
    }
    let backends = panels::backends(view);
    let most = (body.height / 2).max(MIN_TABLE);
    let height = height_of(std::slice::from_ref(&backends), body.width).min(most);
    let [top, lower] = split(inset(body), height);
    draw_table(&backends, theme, top, 0, buffer);
    draw_panels(view, theme, lower, buffer);
}

/// Draws the chosen panel, and below it as many others as fit.
fn draw_panels(view: &View, theme: Theme, area: Rect, buffer: &mut Buffer) {
    let [gap, mut rest] = split(area, 1);
    tabs(view, theme).render(gap, buffer);
    let others = Panel::ALL.into_iter().filter(|panel| *panel != view.panel);
    for panel in [view.panel].into_iter().chain(others) {
        let is_chosen = panel == view.panel;
        let tables = panels::panel(view, panel);
        let height = height_of(&tables, rest.width);
        if !is_chosen && rest.height < height.min(MIN_TABLE + 1) {
            break;
        }
        let [area, below] = split(rest, height.min(rest.height));
        let scroll = if is_chosen { view.scroll } else { 0 };
        draw_tables(&tables, theme, area, scroll, buffer);
        let [_, next] = split(below, 1);
        rest = next;
    }
}

/// Returns the frame as plain text, with all rows of all tables.
pub(super) fn plain(view: &View, width: u16) -> String {
    let width = width.clamp(PLAIN_WIDTHS.0, PLAIN_WIDTHS.1);
    let theme = Theme::new(false);
    let head: Vec<String> = head(view, theme).iter().map(ToString::to_string).collect();
    let mut parts = vec![head.join("\n")];
    let mut tables = vec![panels::backends(view)];
    tables.extend(
        Panel::ALL
            .into_iter()
            .flat_map(|panel| panels::panel(view, panel)),
    );
    for table in tables {
        let area = Rect::new(0, 0, width, height_of(std::slice::from_ref(&table), width));
        let mut buffer = Buffer::empty(area);
        draw_table(&table, theme, area, 0, &mut buffer);
        parts.push(lines_of(&buffer).join("\n"));
    }
    parts.join("\n\n")
}

/// Returns the lines of a buffer, without the blanks at their ends.
pub(super) fn lines_of(buffer: &Buffer) -> Vec<String> {
    let area = buffer.area();
    let line = |y| {
        let mut line = String::new();
        let mut x = area.left();
        while x < area.right() {
            let symbol = buffer[(x, y)].symbol();
            line.push_str(symbol);
            // A wide character covers the next cell too.
            x += clamp(Span::raw(symbol).width().max(1), u16::MAX);
        }
        line.trim_end().to_owned()
    };
    (area.top()..area.bottom()).map(line).collect()
}

/// Returns the lines about the server.
fn head(view: &View, theme: Theme) -> Vec<Line<'static>> {
    let snapshot = &view.snapshot;
    let mut lines = vec![server(snapshot, theme), load(snapshot, theme)];
    match &snapshot.spool {
        Some(spool) => lines.extend(spool_lines(snapshot, spool, theme)),
        None => lines.push(Line::styled(
            " usage is not recorded (usage.enabled)",
            theme.style(Tone::Warning),
        )),
    }
    if let Some(problem) = &view.problem {
        let text = format!(
            " no connection since {}: {problem}; retrying",
            words::clock(&snapshot.at)
        );
        lines.push(Line::styled(text, theme.style(Tone::Bad)));
    }
    if let Some(notice) = &view.notice {
        let text = format!(" {notice}; Esc to dismiss");
        lines.push(Line::styled(text, theme.style(Tone::Warning)));
    }
    lines
}

fn server(snapshot: &Snapshot, theme: Theme) -> Line<'static> {
    let tone = if snapshot.state == "ok" {
        Tone::Good
    } else {
        Tone::Warning
    };
    Line::from(vec![
        Span::styled(format!(" llmlb {}", snapshot.llmlb_version), theme.title()),
        Span::raw(format!("  {}  port {}  ", snapshot.instance, snapshot.port)),
        Span::styled(snapshot.state.clone(), theme.style(tone)),
        Span::raw(format!(
            "  up {}  {} UTC",
            words::seconds(snapshot.uptime_s),
            words::clock(&snapshot.at)
        )),
    ])
}

fn load(snapshot: &Snapshot, theme: Theme) -> Line<'static> {
    let waiting = match snapshot.waiting {
        0 => Tone::Plain,
        _ => Tone::Warning,
    };
    Line::from(vec![
        Span::raw(format!(" {} in flight  ", words::count(snapshot.in_flight))),
        Span::styled(
            format!("{} waiting", words::count(snapshot.waiting)),
            theme.style(waiting),
        ),
        Span::raw(format!(
            "  {} requests, {}/s  tokens/s: {} in, {} out",
            words::count(snapshot.requests),
            words::rate(snapshot.requests_per_s),
            words::rate(snapshot.prompt_tokens_per_s),
            words::rate(snapshot.completion_tokens_per_s),
        )),
    ])
}

/// Returns the state of usage records: whether all of them are on their way, and each is counted once.
fn spool_lines(snapshot: &Snapshot, spool: &Spool, theme: Theme) -> Vec<Line<'static>> {
    let count = |count: u64, name: &str, tone: Tone| {
        let tone = if count > 0 { tone } else { Tone::Plain };
        Span::styled(
            format!("  {} {name}", words::count(count)),
            theme.style(tone),
        )
    };
    let books = match spool.books.as_str() {
        "balanced" => Tone::Good,
        "unbalanced" => Tone::Bad,
        _ => Tone::Dim,
    };
    let (done, to) = match spool.to.as_deref() {
        Some(to) => ("delivered", format!(" to {to}")),
        None => ("archived", String::new()),
    };
    let delivered = spool.last_delivery.as_deref().map_or_else(
        || format!("none {done} yet"),
        |at| format!("{done} {}", words::ago(at, &snapshot.at)),
    );
    let mut lines = vec![Line::from(vec![
        Span::raw(format!(" usage: {} recorded", words::count(spool.recorded))),
        count(spool.pending, "pending", Tone::Plain),
        count(spool.failed, "failed", Tone::Bad),
        count(spool.lost, "lost", Tone::Bad),
        Span::raw("  books "),
        Span::styled(spool.books.clone(), theme.style(books)),
        Span::raw(format!("  {delivered}{to}")),
    ])];
    if let Some(error) = &spool.error {
        lines.push(Line::styled(
            format!(" usage: {error}"),
            theme.style(Tone::Bad),
        ));
    }
    if let (Some(problem), "unbalanced") = (&spool.books_problem, spool.books.as_str()) {
        lines.push(Line::styled(
            format!(" books: {problem}"),
            theme.style(Tone::Bad),
        ));
    }
    lines
}

/// Returns the line with the names of the panels.
fn tabs(view: &View, theme: Theme) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, panel) in (1..).zip(Panel::ALL) {
        let count = match panel {
            Panel::Requests => view.snapshot.in_flight,
            Panel::Errors => view.snapshot.errors.len() as u64,
            Panel::Usage | Panel::Limits => 0,
        };
        let count = match count {
            0 => String::new(),
            count => format!(" ({})", words::count(count)),
        };
        let text = format!(" {number} {}{count} ", panel.name());
        let style = if panel == view.panel {
            theme.keys()
        } else {
            theme.style(Tone::Plain)
        };
        spans.extend([Span::styled(text, style), Span::raw(" ")]);
    }
    Line::from(spans)
}

fn draw_tables(tables: &[Table], theme: Theme, area: Rect, scroll: usize, buffer: &mut Buffer) {
    if let [left, right] = tables
        && area.width >= TWO_TABLES
    {
        let half = (area.width - 2) / 2;
        let at_left = Rect {
            width: half,
            ..area
        };
        let at_right = Rect {
            x: area.right() - half,
            ..at_left
        };
        draw_table(left, theme, at_left, scroll, buffer);
        return draw_table(right, theme, at_right, scroll, buffer);
    }
    let mut rest = area;
    for table in tables {
        let height = height_of(std::slice::from_ref(table), area.width);
        // Without room for all, each table gets a part.
        let share = area.height / clamp(tables.len(), u16::MAX).max(1);
        let [area, below] = split(rest, height.min(share.max(MIN_TABLE)));
        draw_table(table, theme, area, scroll, buffer);
        rest = below;
    }
}

/// Height of tables with all rows.
fn height_of(tables: &[Table], width: u16) -> u16 {
    let rows = tables.iter().map(|table| {
        let rows = table.rows.len().max(1);
        clamp(rows, u16::MAX - TABLE_HEAD) + TABLE_HEAD
    });
    if width >= TWO_TABLES {
        rows.max().unwrap_or_default()
    } else {
        rows.fold(0, u16::saturating_add)
    }
}

/// Draws a table. The last line says how many rows do not fit.
fn draw_table(table: &Table, theme: Theme, area: Rect, scroll: usize, buffer: &mut Buffer) {
    let [title, body] = split(area, 1);
    Line::styled(table.title.clone(), theme.title()).render(title, buffer);
    if table.rows.is_empty() {
        return Line::styled(table.empty, theme.style(Tone::Dim)).render(body, buffer);
    }
    let is_shown = |column: &&Column| area.width >= column.from;
    let shown: Vec<usize> = (0..table.columns.len())
        .filter(|at| is_shown(&&table.columns[*at]))
        .collect();
    let widths = shown.iter().map(|at| match table.columns[*at].width {
        Width::Fixed(width) => Constraint::Length(width),
        Width::Share(share) => Constraint::Fill(share),
    });
    let align = |text: String, column: Column| {
        let alignment = if column.is_number {
            Alignment::Right
        } else {
            Alignment::Left
        };
        Text::raw(text).alignment(alignment)
    };
    let names = shown.iter().map(|at| {
        let column = table.columns[*at];
        align(column.name.to_owned(), column)
    });
    let room = usize::from(body.height.saturating_sub(1));
    let count = table.rows.len();
    let scroll = scroll.min(count.saturating_sub(room));
    let left_out = (count - scroll).saturating_sub(room);
    // The line that says so takes the place of a row.
    let fitting = if left_out > 0 {
        room.saturating_sub(1)
    } else {
        room
    };
    let rows = table.rows.iter().skip(scroll).take(fitting).map(|row| {
        let cells = shown.iter().filter_map(|at| {
            let (cell, column) = (row.get(*at)?, table.columns[*at]);
            let text = align(cell.text.clone(), column);
            Some(widgets::Cell::from(text).style(theme.style(cell.tone)))
        });
        Row::new(cells.collect::<Vec<_>>())
    });
    let widget = widgets::Table::new(rows.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(Row::new(names.collect::<Vec<_>>()).style(theme.columns()))
        .column_spacing(1);
    Widget::render(widget, body, buffer);
    if left_out > 0 && body.height > 1 {
        let line = Rect {
            y: body.bottom() - 1,
            height: 1,
            ..body
        };
        let text = format!("\u{2026} {} more", count - scroll - fitting);
        Line::styled(text, theme.style(Tone::Dim)).render(line, buffer);
    }
}

/// Splits an area at a height.
fn split(area: Rect, height: u16) -> [Rect; 2] {
    let height = height.min(area.height);
    let upper = Rect { height, ..area };
    let lower = Rect {
        y: area.y + height,
        height: area.height - height,
        ..area
    };
    [upper, lower]
}

/// Returns an area without its first and last column.
fn inset(area: Rect) -> Rect {
    if area.width < 3 {
        return area;
    }
    Rect {
        x: area.x + 1,
        width: area.width - 2,
        ..area
    }
}

fn clamp(count: usize, max: u16) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::view::Key;
    use crate::snapshot::format::{BackendLine, ErrorLine, LiveLine};

    fn view() -> View {
        let backend = |name: &str, state: &str| BackendLine {
            name: name.to_owned(),
            state: state.to_owned(),
            error: (state == "down").then(|| "connection refused".to_owned()),
            first_byte_ms: Some(105.0),
            ..BackendLine::default()
        };
        let live = |at: u64| LiveLine {
            id: format!("id-{at}"),
            age_ms: at * 1000,
            model: Some("model".to_owned()),
            state: "streaming".to_owned(),
            ..LiveLine::default()
        };
        View::new(Snapshot {
            state: "ok".to_owned(),
            instance: "gpu-1:32768".to_owned(),
            backends: vec![backend("fast", "up"), backend("\u{6a21}\u{578b}", "down")],
            live: (0..30).map(live).collect(),
            errors: vec![ErrorLine {
                at: "2026-11-19T19:54:00Z".to_owned(),
                status: 502,
                code: Some("backend_failed".to_owned()),
                ..ErrorLine::default()
            }],
            spool: Some(Spool {
                failed: 1,
                books: "unbalanced".to_owned(),
                books_problem: Some("spool/x: the batch is gone".to_owned()),
                ..Spool::default()
            }),
            ..Snapshot::default()
        })
    }

    fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        draw(view, Theme::new(false), area, &mut buffer);
        lines_of(&buffer)
    }

    fn has(lines: &[String], words: &str) -> bool {
        lines.iter().any(|line| line.contains(words))
    }

    #[test]
    fn screen_of_80_by_24_has_the_backends_a_panel_and_the_keys() {
        let mut view = view();
        let lines = screen(&view, 80, 24);
        for words in [
            "backends: 1 of 2 up",
            "down",
            "105 ms",
            "streaming",
            "books unbalanced",
        ] {
            assert!(has(&lines, words), "{words} in {lines:#?}");
        }
        assert!(
            has(&lines, "\u{6a21}\u{578b}"),
            "a name of wide characters: {lines:#?}"
        );
        assert!(has(&lines, "the batch is gone"));
        assert!(lines[23].contains("q quit"));
        assert!(has(&lines, "\u{2026} "), "rows that do not fit: {lines:#?}");
        view.press(Key::Char('3'));
        assert!(has(&screen(&view, 80, 24), "backend_failed"));
        view.press(Key::Char('?'));
        assert!(has(&screen(&view, 80, 24), "sort the backends"));
    }

    #[test]
    fn panel_scrolls_to_its_last_row() {
        let mut view = view();
        (0..1000).for_each(|_| {
            view.press(Key::Down);
        });
        let lines = screen(&view, 80, 24);
        assert!(has(&lines, "   29s streaming"), "{lines:#?}");
        assert!(!has(&lines, " more"), "{lines:#?}");
    }

    #[test]
    fn every_size_is_drawn() {
        let mut view = view();
        for panel in ['1', '2', '3', '4', '?'] {
            view.press(Key::Char(panel));
            for width in [0, 1, 2, 3, 10, 22, 40, 80, 200, 1000] {
                for height in [0, 1, 2, 3, 5, 8, 12, 24, 100] {
                    assert_eq!(screen(&view, width, height).len(), usize::from(height));
                }
            }
        }
    }

    #[test]
    fn tall_screen_has_further_panels() {
        let lines = screen(&view(), 120, 60);
        for words in [
            "requests in flight",
            "tokens by model",
            "recent errors",
            "limits of API keys",
        ] {
            assert!(has(&lines, words), "{words} in {lines:#?}");
        }
    }

    #[test]
    fn plain_text_has_all_rows() {
        let text = plain(&view(), 160);
        assert!(
            text.contains("id-29") && text.contains("tokens by API key"),
            "{text}"
        );
        assert!(text.lines().all(|line| line == line.trim_end()));
    }
}
