//! Hearing an answer that comes before the whole request was sent.
//!
//! A receiver that refuses a batch by its length answers 413 and closes: the next write fails, and
//! the client would report that instead of the answer which waits to be read.

use std::cell::Cell;

use ureq::Error;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

thread_local! {
    /// The client does everything on the thread that calls it.
    static CUT: Cell<bool> = const { Cell::new(false) };
}

/// Runs an attempt. `true`: not all of the request could be sent.
pub(super) fn watch<T>(attempt: impl FnOnce() -> T) -> (T, bool) {
    CUT.set(false);
    let done = attempt();
    (done, CUT.get())
}

/// Adds [`Heeding`] to connections.
#[derive(Debug)]
pub(super) struct Heed;

/// A connection that goes on to the answer when it can no longer be written to.
#[derive(Debug)]
pub(super) struct Heeding<T> {
    inner: T,
    broken: Option<Error>,
    is_broken: bool,
}

impl<T: Transport> Connector<T> for Heed {
    type Out = Heeding<T>;

    fn connect(
        &self,
        _details: &ConnectionDetails<'_>,
        chained: Option<T>,
    ) -> Result<Option<Self::Out>, Error> {
        Ok(chained.map(|inner| Heeding {
            inner,
            broken: None,
            is_broken: false,
        }))
    }
}

impl<T: Transport> Transport for Heeding<T> {
    fn buffers(&mut self) -> &mut dyn Buffers {
        self.inner.buffers()
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        if self.is_broken {
            return Ok(());
        }
        match self.inner.transmit_output(amount, timeout) {
            Err(error @ Error::Io(_)) => {
                self.is_broken = true;
                CUT.set(true);
                self.broken = Some(error);
                Ok(())
            }
            sent => sent,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        match self.inner.await_input(timeout) {
            Ok(true) => Ok(true),
            // What went wrong first says more.
            end => self.broken.take().map_or(end, Err),
        }
    }

    fn is_open(&mut self) -> bool {
        !self.is_broken && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
