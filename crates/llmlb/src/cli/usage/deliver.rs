//! `llmlb usage deliver`: delivers all records to the receiver, once or on a schedule.

use std::cell::Cell;
use std::time::Duration;

use spool::{
    Cancel, DeliveryOptions, Destination, Http, HttpError, Options, Progress, Run, RunError,
    Runner, Schedule, Sink, SpoolManager, Token, Watch,
};

use super::args::Deliver;
use super::data_dir::DataDir;
use super::{counted, delivered, disk, fleet, options, refused, report};
use crate::cli::data_args::{DataArgs, quoted};
use crate::cli::exit::{self, Failure};
use crate::cli::interrupt::interruptible;
use crate::cli::progress::ProgressLine;
use crate::cli::{output, time};
use crate::config::Receiver;
use crate::config::settings::UsageConfig;
use crate::exporter::{Alerts, Housekeeping, RunEnd};
use crate::fleet::{Fleet, FleetError};
use crate::receiver;

/// Destination in messages of a run that moves batches to `archive/`.
const ARCHIVE: &str = "archive/";

pub(super) fn deliver(args: &Deliver, flags: &DataArgs, quiet: bool) -> Result<u8, Failure> {
    let (config, token) = if args.archive || args.token_file.is_some() {
        (flags.config()?, None)
    } else {
        flags.config_with_token()?
    };
    let data = DataDir::of(flags, &config)?;
    let bounds = Housekeeping::new(config.usage.archive(), config.usage.failed());
    let mut fleet = fleet(&config, &data, "deliver");
    let job = DeliverJob {
        to: to(args, &config.usage, token)?,
        retry_command: retry_command(args, &data),
        data,
        options: options(args.batches.batch_size),
        delivery: delivery_options(args),
        json: args.json,
        quiet,
    };
    if args.change_destination && job.data.dir().exists() {
        let spool = fleet.spool();
        let changed = fleet.run(|| job.change_destination(&spool));
        changed.map_err(|error| refused(&error))??;
    }
    match args.every {
        Some(every) => {
            job.announce(every);
            // Exit with 0 after a signal, which is the regular end of periodic deliveries.
            interruptible(move |cancel| job.run_periodically(every, bounds, fleet, &cancel))?;
            Ok(exit::DONE)
        }
        None if !job.data.dir().exists() => {
            let dir = job.data.dir().display();
            if job.json {
                delivered::print(&Run::default(), job.name())?;
            } else {
                output::data(&format!("no records to deliver: {dir} does not exist"))?;
            }
            Ok(exit::DONE)
        }
        None => match interruptible(move |cancel| job.run_and_print(bounds, fleet, &cancel))? {
            Some(done) => done,
            None => Err(Failure::new(
                exit::FAILED,
                "second signal received: exited with records pending",
            )),
        },
    }
}

/// A delivery run of the command line: data directory, destination and options.
struct DeliverJob {
    to: Option<Http>,
    /// Command that retries this delivery at once, for hints.
    retry_command: String,
    data: DataDir,
    options: Options,
    delivery: DeliveryOptions,
    json: bool,
    quiet: bool,
}

impl DeliverJob {
    fn change_destination(&self, spool: &SpoolManager) -> Result<(), Failure> {
        let changed = spool::change_destination(spool, self.name())
            .map_err(|error| failed(&error, &self.data))?;
        if self.json || self.quiet || changed.from.as_deref() == self.name() {
            return Ok(());
        }
        let from = changed.from.as_deref().unwrap_or(ARCHIVE);
        let to = self.name().unwrap_or(ARCHIVE);
        output::message(&format!("destination changed from {from} to {to}"));
        if changed.ambiguous > 0 {
            let batches = counted(changed.ambiguous, "batch");
            let list = self.data.command("failed");
            output::message(&format!(
                "{from} may already have {batches}, now in failed/; list them with {list}"
            ));
        }
        Ok(())
    }

    /// Delivers all records once, and prints the result.
    fn run_and_print(
        &self,
        mut bounds: Housekeeping,
        mut fleet: Fleet,
        cancel: &Cancel,
    ) -> Result<u8, Failure> {
        let mut runner = fleet.runner();
        let run = match fleet.run(|| self.run(&mut runner, cancel)) {
            Ok(run) => run,
            // Skip the run if another server has the fleet's lease: that server delivers these
            // records too.
            Err(FleetError::Held(holder)) => return self.print_skipped(&holder.to_string()),
            Err(error) => return Err(refused(&error)),
        };
        match run {
            Ok(run) => {
                self.apply(&mut bounds, &mut fleet, cancel);
                if let Some(error) = &run.no_reserve {
                    tracing::warn!(
                        "records cannot be staged, because the reserve on the disk is missing: {error}"
                    );
                }
                if self.json {
                    delivered::print(&run, self.name())?;
                } else {
                    output::data(&report::done(&run, self.name(), &self.data))?;
                }
                if run.archived > 0 && !self.quiet && !self.json {
                    let again = self.data.command("resend --archived --all");
                    output::hint(&format!(
                        "move archived batches back into the spool with {again}"
                    ));
                }
                let end = RunEnd::from_cancel(cancel);
                match report::problem(&run, &self.data, &self.retry_command, end) {
                    Some(failure) => Err(failure),
                    None => Ok(exit::DONE),
                }
            }
            // Exit with 0 after a skipped run: the process that holds the delivery lock delivers
            // these records too.
            Err(RunError::Busy { pid, .. }) => self.print_skipped(&report::holder(pid)),
            Err(error) => Err(failed(&error, &self.data)),
        }
    }

    fn print_skipped(&self, holder: &str) -> Result<u8, Failure> {
        if self.json {
            delivered::print_skipped(self.name())?;
        } else {
            output::data(&report::skipped(holder, &self.data))?;
        }
        Ok(exit::DONE)
    }

    /// Delivers all records at each interval and logs the results. Runs never overlap.
    fn run_periodically(
        &self,
        every: Duration,
        mut bounds: Housekeeping,
        mut fleet: Fleet,
        cancel: &Cancel,
    ) {
        let (mut schedule, mut runner) = (Schedule::new(every), fleet.runner());
        let mut alerts = Alerts::default();
        loop {
            let tick = schedule.tick();
            if tick.skipped > 0 {
                let skipped = counted(tick.skipped, "run");
                tracing::warn!("{skipped} skipped: the previous run took longer than {every:?}");
            }
            if cancel.wait(tick.wait) {
                return;
            }
            let run = match fleet.run(|| self.run(&mut runner, cancel)) {
                Ok(run) => run,
                Err(FleetError::Held(holder)) => {
                    tracing::info!("{}", report::skipped(&holder.to_string(), &self.data));
                    continue;
                }
                Err(error) => {
                    alerts.refused(&error);
                    continue;
                }
            };
            match &run {
                Ok(run) => tracing::info!("{}", report::done(run, self.name(), &self.data)),
                Err(RunError::Busy { pid, .. }) => {
                    tracing::info!("{}", report::skipped(&report::holder(*pid), &self.data));
                    continue;
                }
                Err(_) => {}
            }
            alerts.update(&run, self.data.dir(), RunEnd::from_cancel(cancel));
            self.apply(&mut bounds, &mut fleet, cancel);
        }
    }

    /// Deletes files from `archive/` and `failed/` beyond the configured age and size.
    fn apply(&self, bounds: &mut Housekeeping, fleet: &mut Fleet, cancel: &Cancel) {
        if bounds.has_bounds() && bounds.is_due() && !cancel.is_cancelled() {
            let spool = fleet.spool();
            // Ignore the result: only `/status` of a server shows the sizes of `archive/` and
            // `failed/`, and if another host has the lease, the next run retries.
            let _ = fleet.run(|| bounds.run(self.data.dir(), &spool));
        }
    }

    fn run(&self, runner: &mut Runner, cancel: &Cancel) -> Result<Run, RunError> {
        let bar = ProgressLine::new(self.quiet);
        let (total, done) = (Cell::new(self.waiting()), Cell::new(0));
        let progress = |seen: Progress| match seen {
            Progress::Consolidated { records, .. } => total.set(total.get() + records),
            Progress::Delivered { records, .. } => {
                done.set(done.get() + records);
                bar.show_count("delivered", done.get(), Some(total.get().max(done.get())));
            }
            Progress::Waiting { until, why, .. } => {
                bar.show_now(&format!("waiting until {}: {why}", time::point(until)));
            }
            _ => {}
        };
        let watch = Watch {
            cancel: cancel.clone(),
            progress: &progress,
        };
        let to = match &self.to {
            Some(http) => Destination::To(http),
            None => Destination::Archive,
        };
        runner.run(&self.options, &self.delivery, to, &watch)
    }

    /// Returns an estimate of the pending records for the progress line, as if all batches were full.
    fn waiting(&self) -> u64 {
        let batches = SpoolManager::new(self.data.dir()).count();
        batches.unwrap_or_default() * self.options.batch_size as u64
    }

    fn name(&self) -> Option<&str> {
        self.to.as_ref().map(Sink::name)
    }

    fn announce(&self, every: Duration) {
        let from = self.data.dir().display();
        let to = self.name().unwrap_or(ARCHIVE);
        let every = time::span(every);
        tracing::info!("delivering from {from} to {to}, every {every}, until SIGTERM or Ctrl-C");
    }
}

/// Returns the command that retries this delivery with the same data directory, receiver and token,
/// for hints.
fn retry_command(args: &Deliver, data: &DataDir) -> String {
    let mut words = vec!["deliver".to_owned()];
    // Omit the query of the receiver's URL from the command: the query may contain a key.
    if let Some(to) = args.to.as_deref().and_then(|to| to.split('?').next()) {
        words.push(format!("--to {}", quoted(to)));
    }
    if let Some(file) = &args.token_file {
        words.push(format!(
            "--token-file {}",
            quoted(&file.display().to_string())
        ));
    }
    if let Some(format) = args.format {
        words.push(format!("--format {}", format.name()));
    }
    let flags = [
        (args.archive, "--archive"),
        (args.allow_http, "--allow-http"),
        (args.conflict_is_failure, "--conflict-is-failure"),
        (true, "--now"),
    ];
    let given = flags.into_iter().filter(|(is_given, _)| *is_given);
    words.extend(given.map(|(_, flag)| flag.to_owned()));
    data.command(&words.join(" "))
}

/// Returns the receiver of the records, with its token; `None` with `--archive`. `--token-file`
/// takes precedence over the configured token.
fn to(args: &Deliver, usage: &UsageConfig, token: Option<Token>) -> Result<Option<Http>, Failure> {
    if args.archive {
        return Ok(None);
    }
    let configured = usage.url.as_ref().map(Receiver::url);
    let Some(url) = args.to.as_deref().or(configured) else {
        return Err(Failure::new(exit::FAILED, "no receiver is configured")
            .hint("name the receiver: `--to URL`, LLMLB_USAGE_URL=URL, or url = \"URL\" below [usage] in llmlb.toml")
            .hint("keep the batches in archive/ until there is a receiver: `--archive`"));
    };
    let token = match &args.token_file {
        Some(file) => Some(Token::read(file).map_err(|error| wrong(&error))?),
        None => token,
    };
    let format = args.format.unwrap_or(usage.format);
    let allow_http = args.allow_http || usage.allow_http;
    let options = receiver::options(format, token, allow_http);
    let mut options = options.map_err(|error| wrong(&error))?;
    options.timeout = args.timeout;
    options.conflict_is_failure = args.conflict_is_failure;
    Http::new(url, options).map(Some).map_err(|error| {
        let failure = wrong(&error);
        if error.is_plain_http() {
            failure.hint("use https://, or on a trusted network `--allow-http`")
        } else {
            failure.hint("write a URL such as `--to https://billing.example/usage`")
        }
    })
}

fn delivery_options(args: &Deliver) -> DeliveryOptions {
    let mut delivery = DeliveryOptions::default();
    delivery.give_up_rounds = args.give_up_rounds;
    delivery.give_up_after = args.give_up_after;
    delivery.max_wait = args.max_wait;
    delivery.ignore_backoff = args.now;
    delivery
}

/// Returns the error for a delivery run that failed, with hints.
pub(super) fn failed(error: &RunError, data: &DataDir) -> Failure {
    match error {
        RunError::Disk(error) => disk(error),
        RunError::OtherDestination { requested, .. } => {
            let to = requested
                .as_deref()
                .map_or_else(|| "--archive".to_owned(), |url| format!("--to {url}"));
            let change = data.command(&format!("deliver {to} --change-destination"));
            Failure::new(exit::FAILED, error.to_string())
                .hint(format!("change the destination: {change}"))
                .hint("or name another data directory: `--data DIR`")
        }
        RunError::Fenced => Failure::new(exit::FAILED, error.to_string()).hint(
            "no record is lost: check that the lease store (fleet.store) responds in time, then \
             repeat the command",
        ),
        other => Failure::new(exit::FAILED, other.to_string()),
    }
}

fn wrong(error: &HttpError) -> Failure {
    Failure::new(exit::FAILED, error.to_string())
}
