//! Where reports go: stderr, one line each, with the time unless a person is watching.

use std::fmt;
use std::io::{self, IsTerminal};

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Installs the log for the rest of the run. Warnings are told whatever else is not.
pub(super) fn install(verbose: bool, quiet: bool) {
    let level = match (verbose, quiet) {
        (true, _) => LevelFilter::DEBUG,
        (_, true) => LevelFilter::WARN,
        _ => LevelFilter::INFO,
    };
    let line = Line {
        time: !io::stderr().is_terminal(),
    };
    let printer = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        // A terminal that is gone is no reason to fail.
        .log_internal_errors(false)
        .event_format(line);
    // What the HTTP library has to say is for its own developers.
    let ours = Targets::new()
        .with_target("llmlb", level)
        .with_target("tenure", level);
    let _ = tracing_subscriber::registry()
        .with(printer.with_filter(ours))
        .try_init();
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
        write!(writer, "llmlb: {level}")?;
        context
            .field_format()
            .format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}
