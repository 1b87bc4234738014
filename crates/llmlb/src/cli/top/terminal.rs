//! The loop of the terminal: threads request snapshots, read keys and wait for signals, and this one draws.
//!
//! The terminal is restored at the end, on a signal, and on a panic.

use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};
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

/// Event that changes the screen or ends the program.
enum Input {
    Fetched(Result<Box<Document>, FetchError>),
    Terminal(io::Result<Event>),
    /// A signal, such as the SIGHUP of a closed terminal.
    Stop,
}

/// Shows the screen until a key or a signal ends it.
pub(super) fn run(source: Source, view: &mut View, theme: Theme) -> Result<u8, Failure> {
    let failed =
        |what: &str, error: io::Error| Failure::new(exit::FAILED, format!("{what}: {error}"));
    let (sender, inputs) = mpsc::sync_channel(1);
    wait_for_signals(sender.clone()).map_err(|error| failed("cannot handle signals", error))?;
    fetch(source, sender.clone()).map_err(|error| failed("cannot start a thread", error))?;
    let mut terminal =
        ratatui::try_init().map_err(|error| failed("cannot use the terminal", error))?;
    let shown = read_keys(sender).and_then(|()| show(&mut terminal, view, theme, &inputs));
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
    inputs: &Receiver<Input>,
) -> io::Result<()> {
    loop {
        terminal.draw(|frame| screen::draw(view, theme, frame.area(), frame.buffer_mut()))?;
        match inputs.recv() {
            Ok(Input::Fetched(Ok(document))) => view.update(document.snapshot),
            Ok(Input::Fetched(Err(error))) => view.problem = Some(error.why()),
            Ok(Input::Terminal(Ok(Event::Key(pressed)))) => {
                let is_pressed = pressed.kind != KeyEventKind::Release;
                let key = key(pressed).filter(|_| is_pressed);
                if key.is_some_and(|key| !view.press(key)) {
                    return Ok(());
                }
            }
            // Another size of the terminal.
            Ok(Input::Terminal(Ok(_))) => {}
            Ok(Input::Terminal(Err(error))) => return Err(error),
            Ok(Input::Stop) | Err(_) => return Ok(()),
        }
    }
}

/// Reads the keys on a thread of its own. Reading from a terminal that was closed may never return, and the
/// thread is not joined, so that the program ends all the same.
fn read_keys(inputs: SyncSender<Input>) -> io::Result<()> {
    let read = move || {
        loop {
            let event = event::read();
            let is_last = event.is_err();
            if inputs.send(Input::Terminal(event)).is_err() || is_last {
                break;
            }
        }
    };
    thread::Builder::new()
        .name("llmlb-keys".to_owned())
        .spawn(read)?;
    Ok(())
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

/// Requests snapshots on a thread of its own, which ends with the program.
fn fetch(mut source: Source, inputs: SyncSender<Input>) -> io::Result<()> {
    let fetch = move || {
        loop {
            thread::sleep(EVERY);
            if inputs
                .send(Input::Fetched(source.fetch().map(Box::new)))
                .is_err()
            {
                break;
            }
        }
    };
    thread::Builder::new()
        .name("llmlb-top".to_owned())
        .spawn(fetch)?;
    Ok(())
}

/// Sends [`Input::Stop`] when a signal ends the program.
fn wait_for_signals(inputs: SyncSender<Input>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    // The handlers are installed before the terminal is changed.
    let mut signals = runtime.block_on(async { Signals::install() })?;
    thread::Builder::new()
        .name("llmlb-signals".to_owned())
        .spawn(move || {
            runtime.block_on(signals.next_stop());
            let _ = inputs.send(Input::Stop);
        })?;
    Ok(())
}
