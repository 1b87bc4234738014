//! Where reports go: stderr, one line each, with the time unless a person is watching.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

use super::progress;
use crate::{app, request, text};

/// How many lines may wait for a reader of stderr that is slow.
const MOST_WAITING: usize = 4096;
/// Maximum number of characters of a line. Backends and clients choose parts of some.
const LONGEST_LINE: usize = 4000;
/// How long the end of the program waits for it.
const LAST_LINES_WITHIN: Duration = Duration::from_millis(500);

/// The log, for as long as it is kept. What waits to be written is written when it is dropped.
pub(super) struct Log {
    lines: Arc<LineQueue>,
    quiet: bool,
    timed: bool,
}

/// Installs the log for the rest of the run. Warnings are told whatever else is not.
pub(super) fn install(verbose: bool, quiet: bool) -> Log {
    let level = match (verbose, quiet) {
        (true, _) => LevelFilter::DEBUG,
        (_, true) => LevelFilter::WARN,
        _ => LevelFilter::INFO,
    };
    let timed = !io::stderr().is_terminal();
    let line = Line { time: timed };
    let lines = Arc::new(LineQueue::start());
    let to = Arc::clone(&lines);
    let printer = tracing_subscriber::fmt::layer()
        .with_writer(move || Entry(Arc::clone(&to)))
        .with_ansi(false)
        // A terminal that is gone is no reason to fail.
        .log_internal_errors(false)
        .event_format(line);
    // What the HTTP library has to say is for its own developers.
    let ours = Targets::new()
        .with_target("llmlb", level)
        .with_target("spool", level)
        .with_target("tenure", level);
    let _ = tracing_subscriber::registry()
        .with(printer.with_filter(ours))
        .try_init();
    Log {
        lines,
        quiet,
        timed,
    }
}

impl Log {
    /// Where a line for each request goes; with `-q` nowhere.
    pub(super) fn requests(&self) -> app::Log {
        let lines = Arc::clone(&self.lines);
        let lines: request::LogSink = Arc::new(move |text: &[u8]| lines.add(text));
        app::Log {
            lines: (!self.quiet).then_some(lines),
            timed: self.timed,
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.lines.finish();
    }
}

/// Lines on their way to stderr. A thread writes them: whoever has something to report must not
/// wait for a reader that does not read. If too many wait, new ones are counted instead of kept.
struct LineQueue {
    queue: SyncSender<Vec<u8>>,
    lost: AtomicUsize,
    /// How many were queued and not yet written.
    waiting: Arc<(Mutex<usize>, Condvar)>,
}

impl LineQueue {
    fn start() -> Self {
        let (queue, lines) = sync_channel::<Vec<u8>>(MOST_WAITING);
        let waiting: Arc<(Mutex<usize>, Condvar)> = Arc::default();
        let written = Arc::clone(&waiting);
        // It ends with the process: it may be stuck in a write forever.
        thread::spawn(move || {
            let mut printer = Printer::new(io::stderr());
            for line in lines {
                progress::clear();
                printer.print(&line);
                let (count, changed) = &*written;
                *count.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
                changed.notify_all();
            }
        });
        Self {
            queue,
            lost: AtomicUsize::new(0),
            waiting,
        }
    }

    fn add(&self, line: &[u8]) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let mut text = Vec::new();
        if lost > 0 {
            text = dropped(lost, "stderr is blocked").into_bytes();
        }
        text.extend_from_slice(line);
        let (count, _) = &*self.waiting;
        let mut count = count.lock().unwrap_or_else(PoisonError::into_inner);
        if self.queue.try_send(text).is_ok() {
            *count += 1;
        } else {
            self.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }

    fn finish(&self) {
        let (count, changed) = &*self.waiting;
        let count = count.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = changed.wait_timeout_while(count, LAST_LINES_WITHIN, |count| *count > 0);
    }
}

/// Writes lines, and counts those that cannot be written, as on a full disk, until one can.
struct Printer<W> {
    to: W,
    dropped: usize,
    why: String,
    /// A part of a line was written last.
    is_torn: bool,
}

impl<W: Write> Printer<W> {
    fn new(to: W) -> Self {
        Self {
            to,
            dropped: 0,
            why: String::new(),
            is_torn: false,
        }
    }

    fn print(&mut self, line: &[u8]) {
        let printed = self.catch_up().and_then(|()| self.write(line));
        if let Err(error) = printed {
            self.dropped += 1;
            self.why = format!("stderr: {error}");
        }
    }

    /// Ends a line that was torn, and reports how many were dropped since.
    fn catch_up(&mut self) -> io::Result<()> {
        if self.is_torn {
            self.write(b"\n")?;
        }
        if self.dropped > 0 {
            let text = dropped(self.dropped, &self.why);
            self.write(text.as_bytes())?;
            self.dropped = 0;
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.to.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    self.is_torn = bytes[count - 1] != b'\n';
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn dropped(count: usize, why: &str) -> String {
    let lines = if count == 1 { "line" } else { "lines" };
    format!("llmlb: warning: dropped {count} log {lines}: {why}\n")
}

/// One line, as the formatter writes it: whole, in one call.
struct Entry(Arc<LineQueue>);

impl Write for Entry {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `[time] llmlb: [warning: ] message field=value`
struct Line {
    time: bool,
}

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if self.time {
            write!(writer, "{:.3} ", jiff::Timestamp::now())?;
        }
        let level = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        let mut text = String::new();
        let fields = context.field_format();
        fields.format_fields(Writer::new(&mut text), event)?;
        // What a backend or a client calls something must not look like lines of ours.
        let text = text::shortened(&text, LONGEST_LINE);
        writeln!(writer, "llmlb: {level}{}", text::plain(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with so many bytes left.
    #[derive(Default)]
    struct Disk {
        left: usize,
        text: Vec<u8>,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.left);
            if count == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.left -= count;
            self.text.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_that_a_full_disk_refuses_are_counted_and_reported_when_there_is_room() {
        let mut printer = Printer::new(Disk::default());
        printer.to.left = 8;
        for line in ["one\n", "two and more\n", "three\n"] {
            printer.print(line.as_bytes());
        }
        printer.to.left = 1000;
        for line in ["four\n", "five\n"] {
            printer.print(line.as_bytes());
        }
        let expected = "one\ntwo \nllmlb: warning: dropped 2 log lines: stderr: no storage space\n\
                        four\nfive\n";
        assert_eq!(String::from_utf8_lossy(&printer.to.text), expected);
    }
}
