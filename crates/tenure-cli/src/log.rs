//! Log events of the library on stderr: takeovers and other warnings; with `-v` all events.

use std::fmt::Write as _;
use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::output;

/// Maximum number of lines that wait while stderr is blocked. Further lines are dropped.
const QUEUE_LENGTH: usize = 64;
/// Maximum time for which the program, at its end, waits for a blocked stderr. Lines that are not
/// printed by then are dropped, so that the program ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Sender to the thread that prints log events. While it is `None`, each thread prints its own
/// events and can block on stderr.
static QUEUE: Mutex<Option<SyncSender<String>>> = Mutex::new(None);

struct Printer(Level);

/// Installs the subscriber for the rest of the run. Warnings are printed even with `--quiet`.
pub(crate) fn install(verbose: bool) {
    let level = if verbose { Level::DEBUG } else { Level::WARN };
    let _ = tracing::subscriber::set_global_default(Printer(level));
}

/// Thread that prints all events until the value is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    /// Receiver that is disconnected once the thread that prints has ended. Waiting for it ensures
    /// that the last lines are printed before the program ends.
    ended: Receiver<()>,
}

/// Prints events in a thread of their own from now on. The renewal of a lease must not wait for
/// stderr, which can be a pipe whose reader is stuck.
pub(crate) fn print_in_background() -> io::Result<Background> {
    let (lines, queue) = mpsc::sync_channel::<String>(QUEUE_LENGTH);
    let (end, ended) = mpsc::channel::<()>();
    thread::Builder::new()
        .name("tenure-log".to_owned())
        .spawn(move || {
            for line in queue {
                output::message(&line);
            }
            drop(end);
        })?;
    *queue_of_lines() = Some(lines);
    Ok(Background { ended })
}

impl Drop for Background {
    fn drop(&mut self) {
        queue_of_lines().take();
        // Lines that stderr does not accept within `FLUSH_TIMEOUT` are dropped.
        let _ = self.ended.recv_timeout(FLUSH_TIMEOUT);
    }
}

fn queue_of_lines() -> std::sync::MutexGuard<'static, Option<SyncSender<String>>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subscriber for Printer {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.0
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        let text = format!("{level}{}{}", line.message, line.fields);
        match &*queue_of_lines() {
            Some(queue) => {
                let _ = queue.try_send(text);
            }
            None => output::message(&text),
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = write!(self.fields, " {}={value}", field.name());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else {
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }
}
