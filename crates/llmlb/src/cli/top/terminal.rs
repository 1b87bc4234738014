//! The loop of the terminal: a thread requests snapshots, and this one draws them and reads keys.
//!
//! The terminal is restored at the end, on a signal, and on a panic.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::thread;
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::exit::{self, Failure};
use super::screen;
use super::source::{Document, FetchError, Source};
use super::theme::Theme;
use super::view::{Key, View};
use crate::sys::signals::Signals;

/// Interval of snapshots.
const EVERY: Duration = Duration::from_secs(1);
/// Maximum time until a snapshot or a signal is noticed.
const TICK: Duration = Duration::from_millis(100);

/// Shows the screen until a key or a signal ends it.
pub(super) fn run(source: Source, view: &mut View, theme: Theme) -> Result<u8, Failure> {
    let failed =
        |what: &str, error: io::Error| Failure::new(exit::FAILED, format!("{what}: {error}"));
    let stop = signals().map_err(|error| failed("cannot handle signals", error))?;
    let (snapshots, _until) =
        fetch(source).map_err(|error| failed("cannot start a thread", error))?;
    let mut terminal =
        ratatui::try_init().map_err(|error| failed("cannot use the terminal", error))?;
    let shown = show(&mut terminal, view, theme, &snapshots, &stop);
    let restored = ratatui::try_restore();
    shown
        .and(restored)
        .map_err(|error| failed("the terminal failed", error))?;
    Ok(exit::DONE)
}

fn show(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    theme: Theme,
    snapshots: &Receiver<Result<Document, FetchError>>,
    stop: &Receiver<()>,
) -> io::Result<()> {
    loop {
        terminal.draw(|frame| screen::draw(view, theme, frame.area(), frame.buffer_mut()))?;
        let mut is_changed = false;
        while !is_changed {
            if stop.try_recv() != Err(TryRecvError::Empty) {
                return Ok(());
            }
            while let Ok(fetched) = snapshots.try_recv() {
                is_changed = true;
                match fetched {
                    Ok(document) => view.update(document.snapshot),
                    Err(error) => view.problem = Some(error.why()),
                }
            }
            while !is_changed && event::poll(TICK)? {
                is_changed = true;
                match event::read()? {
                    Event::Key(pressed)
                        if pressed.kind != KeyEventKind::Release
                            && key(pressed).is_some_and(|key| !view.press(key)) =>
                    {
                        return Ok(());
                    }
                    _ => {} // A key that does not quit, or another size of the terminal.
                }
            }
        }
    }
}

fn key(pressed: KeyEvent) -> Option<Key> {
    if pressed.modifiers.contains(KeyModifiers::CONTROL) {
        return (pressed.code == KeyCode::Char('c')).then_some(Key::Quit);
    }
    match pressed.code {
        KeyCode::Char(letter) => Some(Key::Char(letter.to_ascii_lowercase())),
        KeyCode::Tab | KeyCode::Right => Some(Key::Next),
        KeyCode::BackTab | KeyCode::Left => Some(Key::Previous),
        KeyCode::Up => Some(Key::Up),
        KeyCode::Down => Some(Key::Down),
        KeyCode::Esc => Some(Key::Escape),
        _ => None,
    }
}

type Fetched = Result<Document, FetchError>;

/// Requests snapshots on a thread of its own, which ends when the sender that is returned is dropped.
fn fetch(mut source: Source) -> io::Result<(Receiver<Fetched>, Sender<()>)> {
    let (sender, snapshots) = mpsc::sync_channel(1);
    let (until, ended) = mpsc::channel::<()>();
    thread::Builder::new()
        .name("llmlb-top".to_owned())
        .spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(EVERY) {
                if sender.send(source.fetch()).is_err() {
                    break;
                }
            }
        })?;
    Ok((snapshots, until))
}

/// Returns a channel that gets a message, or is closed, when a signal ends the program.
fn signals() -> io::Result<Receiver<()>> {
    let (sender, stop) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // The handlers are installed before the terminal is changed.
    let mut signals = runtime.block_on(async { Signals::install() })?;
    thread::Builder::new()
        .name("llmlb-signals".to_owned())
        .spawn(move || {
            runtime.block_on(signals.next_stop());
            let _ = sender.send(());
        })?;
    Ok(stop)
}
