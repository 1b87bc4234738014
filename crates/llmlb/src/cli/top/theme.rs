//! Colours. No fact is shown by colour alone, and with `NO_COLOR` there is none.

use ratatui::style::{Color, Modifier, Style};

/// Styles of the screen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Theme {
    has_color: bool,
}

/// Importance of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Good,
    Warning,
    Bad,
    Dim,
}

impl Theme {
    pub(super) fn new(has_color: bool) -> Self {
        Self { has_color }
    }

    pub(super) fn style(self, tone: Tone) -> Style {
        let colored = |color, modifier| {
            let style = Style::new().add_modifier(modifier);
            if self.has_color {
                style.fg(color)
            } else {
                style
            }
        };
        match tone {
            Tone::Plain => Style::new(),
            Tone::Good => colored(Color::Green, Modifier::empty()),
            Tone::Warning => colored(Color::Yellow, Modifier::empty()),
            Tone::Bad => colored(Color::Red, Modifier::BOLD),
            Tone::Dim => colored(Color::DarkGray, Modifier::empty()),
        }
    }

    /// Style of a table's title.
    pub(super) fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Style of a table's column names.
    pub(super) fn columns(self) -> Style {
        Style::new().add_modifier(Modifier::UNDERLINED)
    }

    /// Style of the bar with the keys.
    pub(super) fn keys(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }
}
