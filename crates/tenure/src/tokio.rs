//! Waiting without blocking a tokio task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::claim::Claim;
use crate::error::Error;
use crate::guard::Tenure;
use crate::holder::Holder;

/// Tells the waiting thread that the future was dropped.
struct Wanted(Arc<AtomicBool>);

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Claim {
    /// [`acquire_within`](Self::acquire_within) on one of tokio's blocking threads.
    ///
    /// Dropping the future gives up: the key is not taken, or is let go again at once.
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
        let wanted = Arc::new(AtomicBool::new(true));
        let guard = Wanted(Arc::clone(&wanted));
        let deadline = Instant::now().checked_add(limit);
        let waiting = tokio::task::spawn_blocking(move || {
            // Taken in the moment in which nobody wants it any more: dropped with the task.
            self.wait(deadline, on_wait, || !wanted.load(Ordering::Acquire))
        });
        let joined = waiting.await;
        drop(guard);
        match joined {
            Ok(acquired) => acquired,
            Err(error) => Err(Error::io("wait for", &path, std::io::Error::other(error))),
        }
    }

    /// [`try_acquire`](Self::try_acquire) on one of tokio's blocking threads.
    pub async fn try_acquire_async(self) -> Result<Tenure, Error> {
        let path = self.path();
        match tokio::task::spawn_blocking(move || self.try_acquire()).await {
            Ok(acquired) => acquired,
            Err(error) => Err(Error::io("take", &path, std::io::Error::other(error))),
        }
    }
}
