//! Async wrappers, which wait on tokio's blocking threads instead of blocking a task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::claim::Claim;
use crate::error::Error;
use crate::holder::Holder;
use crate::tenure::Tenure;

/// Guard that ends the wait on the blocking thread when the future is dropped. Otherwise the thread
/// would go on waiting, although no task needs the key any more.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

impl Claim {
    /// Like [`acquire_within`](Self::acquire_within), on a blocking thread of tokio.
    ///
    /// Dropping the future cancels the claim: the key is not acquired, or it is released at once.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
    /// use std::time::Duration;
    /// use tenure::{Key, Store};
    ///
    /// let dir = tempfile::tempdir()?;
    /// let store = Store::in_dir(dir.path());
    /// let tenure = store
    ///     .claim(&Key::name("job")?)
    ///     .acquire_within_async(Duration::from_secs(5), |_| {})
    ///     .await?;
    /// # drop(tenure);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn acquire_within_async(
        self,
        limit: Duration,
        on_wait: impl FnMut(&Holder) + Send + 'static,
    ) -> Result<Tenure, Error> {
        let path = self.path();
        let cancelled = Arc::new(AtomicBool::new(false));
        let guard = CancelOnDrop(Arc::clone(&cancelled));
        let deadline = Instant::now().checked_add(limit);
        let waiting = tokio::task::spawn_blocking(move || {
            // A key that is acquired just as the future is dropped is released: tokio drops the
            // task's result, and with it the tenure.
            self.wait(deadline, on_wait, || cancelled.load(Ordering::Acquire))
        });
        let joined = waiting.await;
        drop(guard);
        match joined {
            Ok(acquired) => acquired,
            Err(error) => Err(Error::io("wait for", &path, std::io::Error::other(error))),
        }
    }

    /// Like [`try_acquire`](Self::try_acquire), on a blocking thread of tokio.
    pub async fn try_acquire_async(self) -> Result<Tenure, Error> {
        let path = self.path();
        match tokio::task::spawn_blocking(move || self.try_acquire()).await {
            Ok(acquired) => acquired,
            Err(error) => Err(Error::io("acquire", &path, std::io::Error::other(error))),
        }
    }
}
