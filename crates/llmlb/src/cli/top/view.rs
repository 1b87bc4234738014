//! State of the screen of `llmlb top`: the latest snapshot, the panel, the order of the backends, and the state of the connection.

use crate::snapshot::format::{BackendLine, Snapshot};

/// State of the screen.
#[derive(Clone, Debug)]
pub(super) struct View {
    pub(super) snapshot: Snapshot,
    pub(super) panel: Panel,
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    /// Number of lines of the panel that are scrolled past.
    pub(super) scroll: usize,
    pub(super) has_help: bool,
    /// Reason why the snapshot is not the latest state.
    pub(super) problem: Option<String>,
    /// A restart of the server that was noticed, as text.
    pub(super) notice: Option<String>,
}

/// The lower part of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Panel {
    Requests,
    Usage,
    Errors,
    Limits,
}

/// Column by which the backends are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// The order of the configuration.
    Configured,
    Name,
    InFlight,
    FirstByte,
    Tokens,
    Requests,
    Failed,
}

impl Panel {
    pub(super) const ALL: [Self; 4] = [Self::Requests, Self::Usage, Self::Errors, Self::Limits];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Usage => "usage",
            Self::Errors => "errors",
            Self::Limits => "limits",
        }
    }
}

impl Sort {
    const ALL: [Self; 7] = [
        Self::Configured,
        Self::Name,
        Self::InFlight,
        Self::FirstByte,
        Self::Tokens,
        Self::Requests,
        Self::Failed,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Configured => "configured order",
            Self::Name => "name",
            Self::InFlight => "in flight",
            Self::FirstByte => "first byte",
            Self::Tokens => "tokens/s",
            Self::Requests => "requests",
            Self::Failed => "failed",
        }
    }
}

impl View {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        Self {
            snapshot,
            panel: Panel::Requests,
            sort: Sort::Configured,
            is_reversed: false,
            scroll: 0,
            has_help: false,
            problem: None,
            notice: None,
        }
    }

    /// Shows a new snapshot, and says so if the server was restarted in between.
    pub(super) fn update(&mut self, snapshot: Snapshot) {
        if snapshot.pid != self.snapshot.pid || snapshot.uptime_s < self.snapshot.uptime_s {
            self.notice = Some(format!(
                "server restarted (pid {} is now {})",
                self.snapshot.pid, snapshot.pid
            ));
        }
        self.snapshot = snapshot;
        self.problem = None;
    }

    /// Applies a key. Returns false if it quits.
    pub(super) fn press(&mut self, key: Key) -> bool {
        let position = |panel| Panel::ALL.iter().position(|one| *one == panel);
        match key {
            Key::Char('q') | Key::Quit => return false,
            Key::Char('s') => {
                let at = Sort::ALL.iter().position(|sort| *sort == self.sort);
                let next = (at.unwrap_or_default() + 1) % Sort::ALL.len();
                self.sort = Sort::ALL[next];
            }
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            Key::Char('?' | 'h') => self.has_help = !self.has_help,
            Key::Char(digit @ '1'..='4') => {
                let at = usize::from(u8::try_from(digit).unwrap_or(b'1') - b'1');
                self.show(Panel::ALL[at]);
            }
            Key::Next | Key::Previous => {
                let step = if key == Key::Next {
                    1
                } else {
                    Panel::ALL.len() - 1
                };
                let at = position(self.panel).unwrap_or_default() + step;
                self.show(Panel::ALL[at % Panel::ALL.len()]);
            }
            Key::Down => self.scroll = self.scroll.saturating_add(1),
            Key::Up => self.scroll = self.scroll.saturating_sub(1),
            Key::Escape => {
                self.has_help = false;
                self.notice = None;
            }
            Key::Char(_) => {}
        }
        true
    }

    fn show(&mut self, panel: Panel) {
        self.panel = panel;
        self.scroll = 0;
    }

    /// Returns the backends in the chosen order.
    pub(super) fn backends(&self) -> Vec<&BackendLine> {
        let mut all: Vec<_> = self.snapshot.backends.iter().collect();
        // The largest first; names in the order of the alphabet.
        match self.sort {
            Sort::Configured => {}
            Sort::Name => all.sort_by(|one, other| one.name.cmp(&other.name)),
            Sort::InFlight => all.sort_by_key(|one| std::cmp::Reverse(one.in_flight)),
            Sort::FirstByte => all.sort_by(|one, other| {
                let ms = |line: &BackendLine| line.first_byte_ms.unwrap_or(-1.0);
                ms(other).total_cmp(&ms(one))
            }),
            Sort::Tokens => {
                all.sort_by(|one, other| other.tokens_per_s.total_cmp(&one.tokens_per_s));
            }
            Sort::Requests => all.sort_by_key(|one| std::cmp::Reverse(one.requests)),
            Sort::Failed => all.sort_by_key(|one| std::cmp::Reverse(one.failed)),
        }
        if self.is_reversed {
            all.reverse();
        }
        all
    }
}

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Next,
    Previous,
    Up,
    Down,
    Escape,
    /// Ctrl-C.
    Quit,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view() -> View {
        let backend = |name: &str, in_flight, first_byte_ms| BackendLine {
            name: name.to_owned(),
            in_flight,
            first_byte_ms,
            ..BackendLine::default()
        };
        View::new(Snapshot {
            pid: 7,
            uptime_s: 60,
            backends: vec![
                backend("b", 1, None),
                backend("c", 3, Some(9.0)),
                backend("a", 2, Some(700.0)),
            ],
            ..Snapshot::default()
        })
    }

    fn names(view: &View) -> String {
        view.backends()
            .iter()
            .map(|one| one.name.as_str())
            .collect()
    }

    #[test]
    fn key_s_sorts_the_backends_by_each_column() {
        let mut view = view();
        assert_eq!(names(&view), "bca");
        for sorted in ["abc", "cab", "acb"] {
            view.press(Key::Char('s'));
            assert_eq!(names(&view), sorted, "{:?}", view.sort);
        }
        view.press(Key::Char('r'));
        assert_eq!(names(&view), "bca");
        (0..4).for_each(|_| assert!(view.press(Key::Char('s'))));
        assert_eq!(view.sort, Sort::Configured);
    }

    #[test]
    fn keys_choose_the_panel_and_quit() {
        let mut view = view();
        view.press(Key::Down);
        view.press(Key::Char('3'));
        assert_eq!((view.panel, view.scroll), (Panel::Errors, 0));
        view.press(Key::Next);
        view.press(Key::Next);
        assert_eq!(view.panel, Panel::Requests);
        view.press(Key::Previous);
        assert_eq!(view.panel, Panel::Limits);
        assert!(view.press(Key::Char('x')) && view.press(Key::Escape));
        assert!(!view.press(Key::Char('q')) && !view.press(Key::Quit));
    }

    #[test]
    fn restart_of_the_server_is_noticed() {
        let mut view = view();
        view.problem = Some("connection refused".to_owned());
        view.update(view.snapshot.clone());
        assert_eq!((view.problem.clone(), view.notice.clone()), (None, None));
        view.update(Snapshot {
            pid: 8,
            ..view.snapshot.clone()
        });
        let notice = view.notice.as_deref();
        assert_eq!(notice, Some("server restarted (pid 7 is now 8)"));
    }
}
