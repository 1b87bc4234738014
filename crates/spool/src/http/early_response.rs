//! Reads a response that arrives before the whole request was sent.
//!
//! A receiver that refuses a batch by its length responds 413 and closes the connection. The next
//! write fails, and ureq would report that error instead of the response. So the transport here
//! reports failed writes as successful, and the response is read.
//!
//! The caller must know that the request is incomplete, but ureq returns only the response. A
//! connection of ureq's pool serves several requests and cannot detect where the next one begins,
//! so it cannot store the status of a request. Instead all connections of an agent share one
//! [`UploadStatus`], and an agent serves one request at a time (`Http::send`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ureq::Error;
use ureq::unversioned::transport::{Buffers, ConnectionDetails, Connector, NextTimeout, Transport};

/// Status of the upload of the current request, shared by all connections of a ureq agent. ureq
/// does not report that a response arrived before the whole request was sent, so the status is read
/// from here.
#[derive(Clone, Debug, Default)]
pub(super) struct UploadStatus {
    is_incomplete: Arc<AtomicBool>,
}

impl UploadStatus {
    /// Marks the upload as complete. Must be called before each request: otherwise an incomplete
    /// upload of an earlier request would count for this one, and an accepted batch would not count
    /// as delivered.
    pub(super) fn reset(&self) {
        self.is_incomplete.store(false, Ordering::Relaxed);
    }

    fn mark_incomplete(&self) {
        self.is_incomplete.store(true, Ordering::Relaxed);
    }

    /// True if a part of the request could not be sent.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Ordering::Relaxed)
    }
}

/// Wraps connections in [`EarlyResponseTransport`].
#[derive(Debug)]
pub(super) struct EarlyResponseConnector {
    pub(super) upload: UploadStatus,
}

/// A connection on which the response can still be read after a write has failed.
#[derive(Debug)]
pub(super) struct EarlyResponseTransport<T> {
    inner: T,
    upload: UploadStatus,
    is_broken: bool,
    write_error: Option<Error>,
}

impl<T: Transport> Connector<T> for EarlyResponseConnector {
    type Out = EarlyResponseTransport<T>;

    fn connect(
        &self,
        _details: &ConnectionDetails<'_>,
        chained: Option<T>,
    ) -> Result<Option<Self::Out>, Error> {
        Ok(chained.map(|inner| EarlyResponseTransport {
            inner,
            upload: self.upload.clone(),
            is_broken: false,
            write_error: None,
        }))
    }
}

impl<T: Transport> Transport for EarlyResponseTransport<T> {
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
                self.upload.mark_incomplete();
                self.write_error = Some(error);
                Ok(())
            }
            sent => sent,
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        match self.inner.await_input(timeout) {
            Ok(true) => Ok(true),
            // If no response arrives, the failed write is the cause, so its error is returned.
            end => self.write_error.take().map_or(end, Err),
        }
    }

    fn is_open(&mut self) -> bool {
        !self.is_broken && self.inner.is_open()
    }

    fn is_tls(&self) -> bool {
        self.inner.is_tls()
    }
}
