//! `llmlb usage deliver`: everything to its receiver, once or on a schedule.

use std::cell::Cell;
use std::time::Duration;

use spool::{
    BatchStore, Cancel, DeliveryOptions, Destination, Http, HttpError, HttpOptions, Options,
    Progress, Run, RunError, Schedule, Sink, SpoolManager, Token, Watch, run,
};

use super::args::Deliver;
use super::place::Place;
use super::{counted, disk, options, report};
use crate::cli::exit::{self, Failure};
use crate::cli::interrupt::interruptible;
use crate::cli::progress::Bar;
use crate::cli::{output, time};
use crate::config::{Secret, env};

pub(super) fn deliver(args: &Deliver, place: Place, quiet: bool) -> Result<u8, Failure> {
    let work = Work {
        to: receiver(args)?,
        place,
        options: options(args.batches.batch_size),
        delivery: delivery(args),
        quiet,
    };
    match args.every {
        Some(every) => {
            work.announce(every);
            // Ending when asked to is what it is for.
            interruptible(move |cancel| work.again_and_again(every, &cancel))?;
            Ok(exit::DONE)
        }
        None => match interruptible(move |cancel| work.once_for_a_person(&cancel))? {
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
    place: Place,
    options: Options,
    delivery: DeliveryOptions,
    quiet: bool,
}

impl Work {
    /// One run, told to whoever called it.
    fn once_for_a_person(&self, cancel: &Cancel) -> Result<u8, Failure> {
        match self.once(cancel) {
            Ok(run) => {
                output::data(&report::done(&run, self.name(), &self.place))?;
                if run.archived > 0 && !self.quiet {
                    let again = self.place.command("resend FILE");
                    output::hint(&format!(
                        "`--to URL` or LLMLB_USAGE_URL names a receiver; {again} puts a batch of \
                         the archive back"
                    ));
                }
                match report::problem(&run, &self.place, cancel.is_cancelled()) {
                    Some(failure) => Err(failure),
                    None => Ok(exit::DONE),
                }
            }
            // Not a failure: whoever delivers, delivers this too.
            Err(RunError::Busy { pid, .. }) => {
                output::data(&report::skipped(pid, &self.place))?;
                Ok(exit::DONE)
            }
            Err(error) => Err(failed(&error)),
        }
    }

    /// A run for each interval, told to the log. They never overlap.
    fn again_and_again(&self, every: Duration, cancel: &Cancel) {
        let mut schedule = Schedule::new(every);
        loop {
            let tick = schedule.tick();
            if tick.skipped > 0 {
                let skipped = counted(tick.skipped, "run");
                tracing::warn!("{skipped} skipped: the one before took longer than {every:?}");
            }
            if cancel.wait(tick.wait) {
                return;
            }
            match self.once(cancel) {
                Ok(run) => {
                    tracing::info!("{}", report::done(&run, self.name(), &self.place));
                    if let Some(failure) = report::problem(&run, &self.place, false) {
                        tracing::warn!("{}", failure.message());
                    }
                }
                Err(RunError::Busy { pid, .. }) => {
                    tracing::info!("{}", report::skipped(pid, &self.place));
                }
                Err(error) => tracing::warn!("{}", failed(&error).message()),
            }
        }
    }

    fn once(&self, cancel: &Cancel) -> Result<Run, RunError> {
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
        run(self.place.dir(), &self.options, &self.delivery, to, &watch)
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
        let to = self
            .name()
            .unwrap_or("its archive, because no URL was given");
        let every = time::span(every);
        tracing::info!("delivering from {from} to {to}, every {every}, until SIGTERM or Ctrl-C");
    }
}

/// The receiver, if one was named.
fn receiver(args: &Deliver) -> Result<Option<Http>, Failure> {
    let from_env = match &args.to {
        Some(_) => None,
        None => env::usage_url().transpose().map_err(not_text)?,
    };
    let url = args.to.as_deref().or(from_env.as_ref().map(Secret::expose));
    let Some(url) = url else {
        if args.token_file.is_some() {
            return Err(
                Failure::new(exit::USAGE, "there is a token, but no receiver")
                    .hint("name it: `--to URL`, or LLMLB_USAGE_URL"),
            );
        }
        return Ok(None);
    };
    let mut options = HttpOptions::default();
    options.timeout = args.timeout;
    options.token = token(args)?;
    options.conflict_is_failure = args.conflict_is_failure;
    options.allow_plain_http = args.allow_http;
    options.user_agent = format!("llmlb/{}", env!("CARGO_PKG_VERSION"));
    let is_plain = !args.allow_http && url.starts_with("http://");
    Http::new(url, options).map(Some).map_err(|error| {
        let failure = wrong(&error);
        if is_plain {
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

pub(super) fn failed(error: &RunError) -> Failure {
    match error {
        RunError::Disk(error) => disk(error),
        other => Failure::new(exit::FAILED, other.to_string()),
    }
}

fn not_text(name: &str) -> Failure {
    Failure::new(exit::FAILED, format!("{name} is not UTF-8 text"))
}

fn wrong(error: &HttpError) -> Failure {
    Failure::new(exit::FAILED, error.to_string())
}
