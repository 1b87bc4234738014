//! Blocking calls of async clients, on a private runtime with one thread.
//!
//! The calling thread waits on a channel of the standard library, not in `block_on`: that would
//! panic on a thread that belongs to another async runtime.

use std::fmt;
use std::future::Future;
use std::sync::mpsc;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

use super::backend::StoreError;

/// Time for which the caller waits beyond the limit of a call, so that the runtime can report the
/// timeout itself.
const GRACE: Duration = Duration::from_millis(250);
/// Maximum number of threads on which the runtime resolves host names. Its default would permit
/// hundreds.
const MAX_BLOCKING_THREADS: usize = 4;

pub(super) struct Bridge {
    /// `None` only while the bridge is dropped: shutting a runtime down consumes it.
    runtime: Option<Runtime>,
    handle: Handle,
    /// Process that started the runtime. A forked child has no copy of the runtime's thread, so its
    /// calls would never complete.
    process: u32,
}

impl Bridge {
    pub(super) fn start() -> std::io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(MAX_BLOCKING_THREADS)
            .thread_name("tenure-store")
            .enable_all()
            .build()?;
        Ok(Self {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
            process: std::process::id(),
        })
    }

    /// True in a forked child of the process that started the runtime. The child has no runtime
    /// thread, so calls would wait forever and are refused instead.
    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Returns a handle for tasks that run in the background while no caller waits for their
    /// result.
    #[cfg(feature = "etcd")]
    pub(super) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a future of the async client on the runtime and blocks the calling thread until its
    /// result is available, for at most `limit`.
    pub(super) fn call<T: Send + 'static>(
        &self,
        limit: Duration,
        future: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        if self.is_forked() {
            return Err(StoreError::fatal(
                "this process was forked from the one that opened the store; a forked process must \
                 call `Store::connect` itself",
            ));
        }
        let (sender, receiver) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            let result = tokio::time::timeout(limit, future)
                .await
                .unwrap_or_else(|_| Err(StoreError::timeout(limit)));
            // Sending the result fails only if the caller has reported a timeout and left, so the
            // error is ignored.
            let _ = sender.send(result);
        });
        match receiver.recv_timeout(limit.saturating_add(GRACE)) {
            Ok(result) => result,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(StoreError::timeout(limit)),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(StoreError::fatal("the client of the store panicked"))
            }
        }
    }
}

/// Text of an error with its causes, without text that controls a terminal.
pub(super) fn describe_sources(error: &dyn std::error::Error) -> String {
    let mut why = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !why.contains(&cause) {
            why.push_str(": ");
            why.push_str(&cause);
        }
        source = error.source();
    }
    crate::text::sanitize_name(why)
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        if self.is_forked() {
            // The runtime is leaked in a forked child: threads that exist only in the parent may
            // have held the runtime's locks, and shutting it down could then wait forever.
            std::mem::forget(runtime);
        } else {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bridge").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_works_on_a_thread_of_another_runtime() {
        let outer = Builder::new_current_thread().build().unwrap();
        outer.block_on(async {
            let bridge = Bridge::start().unwrap();
            let one = bridge.call(Duration::from_secs(5), async { Ok(1) });
            assert_eq!(one.unwrap(), 1);
        });
    }

    #[test]
    fn call_times_out() {
        let bridge = Bridge::start().unwrap();
        let limit = Duration::from_millis(20);
        let never = std::future::pending::<Result<(), StoreError>>();
        let error = bridge.call(limit, never).unwrap_err();
        assert!(error.transient);
        assert_eq!(error.why, "no response within 20 ms");
    }

    #[test]
    fn call_fails_in_a_forked_process() {
        let mut bridge = Bridge::start().unwrap();
        bridge.process += 1;
        let error = bridge
            .call(Duration::from_secs(60), async { Ok(()) })
            .unwrap_err();
        assert!(!error.transient);
        assert!(error.why.contains("Store::connect"), "{}", error.why);
        bridge.process -= 1;
    }

    #[test]
    fn panic_of_a_client_is_an_error() {
        let bridge = Bridge::start().unwrap();
        let panics = async {
            assert!(Handle::try_current().is_err(), "a bug of a client");
            Ok(())
        };
        let error = bridge.call(Duration::from_secs(5), panics).unwrap_err();
        assert!(error.why.contains("panicked"), "{}", error.why);
    }
}
