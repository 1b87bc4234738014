//! The log: one line per event on stderr, with a timestamp unless stderr is a terminal.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
use crate::config::LogFormat;
use crate::request::LineStyle;
use crate::{app, request, text};

/// Maximum number of log lines that wait for a slow reader of stderr. Further lines are dropped, so
/// that memory stays bounded.
const MAX_QUEUED_LINES: usize = 4096;
/// Maximum number of characters in a log line. Backends and clients control parts of some lines and
/// could flood the log otherwise.
const MAX_LINE_CHARS: usize = 4000;
/// Maximum time for which the exit of the program waits for queued log lines.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// Handle of the log. Dropping it writes the queued lines, so that none is lost at the exit.
pub(super) struct StderrLog {
    lines: Arc<LineQueue>,
    quiet: bool,
    timed: bool,
    is_json: Arc<AtomicBool>,
}

/// Installs the log for the rest of the run. Warnings and errors are always logged, even with `-q`.
pub(super) fn install(verbose: bool, quiet: bool) -> StderrLog {
    let level = match (verbose, quiet) {
        (true, _) => LevelFilter::DEBUG,
        (_, true) => LevelFilter::WARN,
        _ => LevelFilter::INFO,
    };
    let timed = !io::stderr().is_terminal();
    let is_json = Arc::<AtomicBool>::default();
    let line = LineFormat {
        time: timed,
        is_json: Arc::clone(&is_json),
    };
    let lines = Arc::new(LineQueue::start());
    let to = Arc::clone(&lines);
    let printer = tracing_subscriber::fmt::layer()
        .with_writer(move || LineWriter(Arc::clone(&to)))
        .with_ansi(false)
        // Do not report failed writes: on a closed terminal the report itself would panic, and the server
        // must keep running.
        .log_internal_errors(false)
        .event_format(line);
    // Log only the events of our own crates: those of other crates, such as the HTTP library, would
    // bury the lines that help operators.
    let own_targets = Targets::new()
        .with_target("llmlb", level)
        .with_target("spool", level)
        .with_target("tenure", level);
    let _ = tracing_subscriber::registry()
        .with(printer.with_filter(own_targets))
        .try_init();
    StderrLog {
        lines,
        quiet,
        timed,
        is_json,
    }
}

impl StderrLog {
    /// Returns the destination of the access log; `None` with `-q`. All further lines of the log have
    /// `format`.
    pub(super) fn requests(&self, format: LogFormat) -> app::RequestLog {
        let is_json = format == LogFormat::Json;
        self.is_json.store(is_json, Ordering::Relaxed);
        let lines = Arc::clone(&self.lines);
        let lines: request::LogSink = Arc::new(move |text: &[u8]| lines.add(text));
        app::RequestLog {
            lines: (!self.quiet).then_some(lines),
            style: match (is_json, self.timed) {
                (true, _) => LineStyle::Json,
                (false, true) => LineStyle::Timed,
                (false, false) => LineStyle::Untimed,
            },
        }
    }
}

impl Drop for StderrLog {
    fn drop(&mut self) {
        self.lines.finish();
    }
}

/// Queue of log lines for stderr. A separate thread writes them, so that a blocked reader of stderr
/// never blocks a request. Lines that do not fit are counted and dropped.
struct LineQueue {
    queue: SyncSender<Vec<u8>>,
    lost: AtomicUsize,
    /// Number of log lines that are queued and not yet written. The exit waits until it is 0.
    waiting: Arc<(Mutex<usize>, Condvar)>,
}

impl LineQueue {
    fn start() -> Self {
        let (queue, lines) = sync_channel::<Vec<u8>>(MAX_QUEUED_LINES);
        let waiting: Arc<(Mutex<usize>, Condvar)> = Arc::default();
        let written = Arc::clone(&waiting);
        // Never join the thread: a write to a blocked stderr may never return.
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
        let _ = changed.wait_timeout_while(count, FLUSH_TIMEOUT, |count| *count > 0);
    }
}

/// Writer of log lines. Counts the lines that cannot be written, for example to a full disk, and
/// reports the number with the next line that can.
struct Printer<W> {
    to: W,
    dropped: usize,
    why: String,
    /// True if the last write stopped in the middle of a line, so that the rest of the line must be
    /// written first.
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

    /// Ends a torn line, and reports the number of lines that were dropped since the last line that
    /// was written.
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

/// Adds each line of the log to the queue: the formatter writes a line whole in one call.
struct LineWriter(Arc<LineQueue>);

impl Write for LineWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.add(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Format of a log line: `[time] llmlb: [warning: ] message field=value`, or a JSON object.
struct LineFormat {
    time: bool,
    is_json: Arc<AtomicBool>,
}

impl<S, N> FormatEvent<S, N> for LineFormat
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
        let mut text = String::new();
        let fields = context.field_format();
        fields.format_fields(Writer::new(&mut text), event)?;
        // Text from backends and clients must not contain line breaks: it could forge log lines.
        let text = text::shortened(&text, MAX_LINE_CHARS);
        if self.is_json.load(Ordering::Relaxed) {
            let line = serde_json::json!({
                "time": format!("{:.3}", jiff::Timestamp::now()),
                "level": level_word(*event.metadata().level()),
                "message": text,
            });
            return writeln!(writer, "{}", text::escaped_json(&line.to_string()));
        }
        if self.time {
            write!(writer, "{:.3} ", jiff::Timestamp::now())?;
        }
        let level = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        writeln!(writer, "llmlb: {level}{}", text::plain(&text))
    }
}

fn level_word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        _ => "debug",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulated disk that is full after `left` more bytes.
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
    fn dropped_lines_are_reported_when_the_disk_has_room_again() {
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
