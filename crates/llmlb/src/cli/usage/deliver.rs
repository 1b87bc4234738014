//! `llmlb usage deliver`: everything to its receiver, once or on a schedule.

use std::cell::Cell;
use std::time::Duration;

use spool::{
    BatchStore, Cancel, DeliveryOptions, Destination, Http, HttpError, Options, Progress, Run,
    RunError, Runner, Schedule, Sink, SpoolManager, Token, Watch,
};

use super::args::Deliver;
use super::place::Place;
use super::{counted, delivered, disk, options, report};
use crate::cli::exit::{self, Failure};
use crate::cli::interrupt::interruptible;
use crate::cli::progress::Bar;
use crate::cli::{output, time};
use crate::config::{self, Format, Secret, env};
use crate::exporter::{Alerts, Housekeeping};
use crate::receiver;

/// The destination of a data directory that names none.
const NOWHERE: &str = "its archive";

pub(super) fn deliver(args: &Deliver, place: Place, quiet: bool) -> Result<u8, Failure> {
    let (archive, failed) = config::usage_bounds()
        .map_err(|problems| Failure::new(exit::FAILED, problems.to_string()))?;
    let bounds = Housekeeping::new(archive, failed);
    let work = Work {
        to: to(args)?,
        again: again(args, &place),
        place,
        options: options(args.batches.batch_size),
        delivery: delivery(args),
        json: args.json,
        quiet,
    };
    if args.change_destination && work.place.dir().exists() {
        work.change_destination()?;
    }
    match args.every {
        Some(every) => {
            work.announce(every);
            // Ending when asked to is what it is for.
            interruptible(move |cancel| work.again_and_again(every, bounds, &cancel))?;
            Ok(exit::DONE)
        }
        None if !work.place.dir().exists() => {
            let dir = work.place.dir().display();
            if work.json {
                delivered::print(&Run::default(), work.name())?;
            } else {
                output::data(&format!("nothing to deliver: {dir} does not exist"))?;
            }
            Ok(exit::DONE)
        }
        None => match interruptible(move |cancel| work.once_for_a_person(bounds, &cancel))? {
            Some(done) => done,
            None => Err(Failure::new(
                exit::FAILED,
                "ended before everything was delivered",
            )),
        },
    }
}

/// What is delivered from where to where.
struct Work {
    to: Option<Http>,
    /// What to type to do it again at once.
    again: String,
    place: Place,
    options: Options,
    delivery: DeliveryOptions,
    json: bool,
    quiet: bool,
}

impl Work {
    fn change_destination(&self) -> Result<(), Failure> {
        let changed = spool::change_destination(self.place.dir(), self.name())
            .map_err(|error| failed(&error, &self.place))?;
        if self.json || self.quiet || changed.from.as_deref() == self.name() {
            return Ok(());
        }
        let from = changed.from.as_deref().unwrap_or(NOWHERE);
        let to = self.name().unwrap_or(NOWHERE);
        output::say(&format!("destination changed from {from} to {to}"));
        if changed.ambiguous > 0 {
            let batches = counted(changed.ambiguous, "batch");
            let look = self.place.command("failed");
            output::say(&format!(
                "{batches} that {from} may have: {look} lists them"
            ));
        }
        Ok(())
    }

    /// One run, told to whoever called it.
    fn once_for_a_person(&self, mut bounds: Housekeeping, cancel: &Cancel) -> Result<u8, Failure> {
        match self.once(&mut Runner::new(self.place.dir()), cancel) {
            Ok(run) => {
                self.apply(&mut bounds, cancel);
                if let Some(error) = &run.no_reserve {
                    tracing::warn!("no records can be staged until there is room: {error}");
                }
                if self.json {
                    delivered::print(&run, self.name())?;
                } else {
                    output::data(&report::done(&run, self.name(), &self.place))?;
                }
                if run.archived > 0 && !self.quiet && !self.json {
                    let again = self.place.command("resend --archived --all");
                    output::hint(&format!("{again} puts them back, to be delivered"));
                }
                match report::problem(&run, &self.place, &self.again, cancel.is_cancelled()) {
                    Some(failure) => Err(failure),
                    None => Ok(exit::DONE),
                }
            }
            // Not a failure: whoever delivers, delivers this too.
            Err(RunError::Busy { pid, .. }) => {
                if self.json {
                    delivered::print_skipped(self.name())?;
                } else {
                    output::data(&report::skipped(pid, &self.place))?;
                }
                Ok(exit::DONE)
            }
            Err(error) => Err(failed(&error, &self.place)),
        }
    }

    /// A run for each interval, told to the log. They never overlap.
    fn again_and_again(&self, every: Duration, mut bounds: Housekeeping, cancel: &Cancel) {
        let (mut schedule, mut runner) = (Schedule::new(every), Runner::new(self.place.dir()));
        let mut alerts = Alerts::default();
        loop {
            let tick = schedule.tick();
            if tick.skipped > 0 {
                let skipped = counted(tick.skipped, "run");
                tracing::warn!("{skipped} skipped: the one before took longer than {every:?}");
            }
            if cancel.wait(tick.wait) {
                return;
            }
            let run = self.once(&mut runner, cancel);
            match &run {
                Ok(run) => tracing::info!("{}", report::done(run, self.name(), &self.place)),
                Err(RunError::Busy { pid, .. }) => {
                    tracing::info!("{}", report::skipped(*pid, &self.place));
                    continue;
                }
                Err(_) => {}
            }
            alerts.update(&run, self.place.dir(), cancel.is_cancelled());
            self.apply(&mut bounds, cancel);
        }
    }

    /// Keeps `archive/` and `failed/` within the bounds that are set.
    fn apply(&self, bounds: &mut Housekeeping, cancel: &Cancel) {
        if bounds.has_bounds() && !cancel.is_cancelled() {
            // Sizes are for `status`.
            let _ = bounds.run(self.place.dir());
        }
    }

    fn once(&self, runner: &mut Runner, cancel: &Cancel) -> Result<Run, RunError> {
        let bar = Bar::new(self.quiet);
        let (total, done) = (Cell::new(self.waiting()), Cell::new(0));
        let progress = |seen: Progress| match seen {
            Progress::Consolidated { records, .. } => total.set(total.get() + records),
            Progress::Delivered { records, .. } => {
                done.set(done.get() + records);
                bar.show("delivered", done.get(), Some(total.get().max(done.get())));
            }
            Progress::Waiting { until, why, .. } => {
                bar.tell(&format!("waiting until {}: {why}", time::point(until)));
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

    /// About how many records wait already: most batches are full.
    fn waiting(&self) -> u64 {
        let batches = SpoolManager::of(self.place.dir()).count();
        batches.unwrap_or_default() * self.options.batch_size as u64
    }

    fn name(&self) -> Option<&str> {
        self.to.as_ref().map(Sink::name)
    }

    fn announce(&self, every: Duration) {
        let from = self.place.dir().display();
        let to = self.name().unwrap_or(NOWHERE);
        let every = time::span(every);
        tracing::info!("delivering from {from} to {to}, every {every}, until SIGTERM or Ctrl-C");
    }
}

/// The same command, with what was typed to name the data and the receiver.
fn again(args: &Deliver, place: &Place) -> String {
    // A query may hold a key.
    let to = args.to.as_deref().and_then(|to| to.split('?').next());
    let to = to.map_or_else(String::new, |to| format!(" --to {to}"));
    let format = match args.format {
        Format::Json => String::new(),
        other @ Format::CloudEvents => format!(" --format {}", other.name()),
    };
    place.command(&format!("deliver{to}{format} --now"))
}

/// The receiver, unless there is none.
fn to(args: &Deliver) -> Result<Option<Http>, Failure> {
    let from_env = match &args.to {
        Some(_) => None,
        None => env::usage_url().transpose().map_err(not_text)?,
    };
    let url = args.to.as_deref().or(from_env.as_ref().map(Secret::expose));
    if args.archive {
        return Ok(None);
    }
    let Some(url) = url else {
        return Err(Failure::new(exit::FAILED, "no receiver is named")
            .hint("name it: `--to URL`, or LLMLB_USAGE_URL")
            .hint("if there is none yet: `--archive` keeps the batches in archive/"));
    };
    let options = receiver::options(args.format, token(args)?, args.allow_http);
    let mut options = options.map_err(|error| wrong(&error))?;
    options.timeout = args.timeout;
    options.conflict_is_failure = args.conflict_is_failure;
    Http::new(url, options).map(Some).map_err(|error| {
        let failure = wrong(&error);
        if error.is_plain_http() {
            failure.hint("use https://, or `--allow-http` if the way there is safe")
        } else {
            failure.hint("a receiver is named like https://billing.example/usage")
        }
    })
}

/// The flag wins over the environment.
fn token(args: &Deliver) -> Result<Option<Token>, Failure> {
    if let Some(file) = &args.token_file {
        return Token::read(file).map(Some).map_err(|error| wrong(&error));
    }
    let Some(text) = env::usage_token().transpose().map_err(not_text)? else {
        return Ok(None);
    };
    Token::new(text.expose()).map(Some).map_err(|error| {
        let failure = Failure::new(exit::FAILED, format!("LLMLB_USAGE_TOKEN: {error}"));
        failure.hint("`--token-file FILE` reads it from a file")
    })
}

fn delivery(args: &Deliver) -> DeliveryOptions {
    let mut delivery = DeliveryOptions::default();
    delivery.give_up_rounds = args.give_up_rounds;
    delivery.give_up_after = args.give_up_after;
    delivery.longest_wait = args.max_wait;
    delivery.ignore_backoff = args.now;
    delivery
}

/// Why a run did not do its work, and what can be done about it.
pub(super) fn failed(error: &RunError, place: &Place) -> Failure {
    match error {
        RunError::Disk(error) => disk(error),
        RunError::OtherDestination { asked, .. } => {
            let to = asked
                .as_deref()
                .map_or_else(|| "--archive".to_owned(), |asked| format!("--to {asked}"));
            let change = place.command(&format!("deliver {to} --change-destination"));
            Failure::new(exit::FAILED, error.to_string())
                .hint(format!("to change it on purpose: {change}"))
                .hint("or name another data directory: `--data DIR`, or LLMLB_DATA_DIR")
        }
        other => Failure::new(exit::FAILED, other.to_string()),
    }
}

fn not_text(name: &str) -> Failure {
    Failure::new(exit::FAILED, format!("{name} is not UTF-8 text"))
}

fn wrong(error: &HttpError) -> Failure {
    Failure::new(exit::FAILED, error.to_string())
}
