//! `llmlb top`: the state of a running server in a terminal, refreshed once per second.
//!
//! `source` finds the server and requests its snapshots, `view` decides what is shown, `screen` draws it,
//! `panels` formats the tables, and `terminal` reads keys.

mod panels;
mod screen;
mod source;
mod terminal;
mod theme;
mod view;
mod words;

use std::io::{self, IsTerminal};

use super::args::Top;
use super::exit::{self, Failure};
use super::output;
use crate::config::env;
use source::Source;
use theme::Theme;
use view::View;

pub(super) fn top(args: &Top) -> Result<u8, Failure> {
    let mut source = Source::new(args)?;
    let document = source.fetch().map_err(Failure::from)?;
    if args.json {
        output::data(&output::json(&document.json)?)?;
        return Ok(exit::DONE);
    }
    let mut view = View::new(document.snapshot);
    if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let of_terminal = || ratatui::crossterm::terminal::size().map(|(width, _)| width);
        let width = if io::stdout().is_terminal() {
            of_terminal().ok()
        } else {
            env::text("COLUMNS").and_then(|width| width.parse().ok())
        };
        let width = width.unwrap_or(screen::PLAIN_WIDTH);
        output::data(&screen::plain(&view, width))?;
        return Ok(exit::DONE);
    }
    terminal::run(
        source,
        &mut view,
        Theme::new(env::text("NO_COLOR").is_none()),
    )
}
