//! A few threads for tokenising and rendering: work in proportion to a client's text never runs on the async runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;

use limits::ApiError;
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// The pool; jobs beyond the queue are refused with 429.
#[derive(Debug)]
pub struct TextPool {
    jobs: mpsc::SyncSender<Job>,
    capacity: usize,
}

impl TextPool {
    /// Starts `threads` threads with a queue of `capacity` jobs.
    pub fn new(threads: usize, capacity: usize) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::sync_channel::<Job>(capacity);
        let queue = Arc::new(Mutex::new(queue));
        for index in 0..threads.max(1) {
            let queue = Arc::clone(&queue);
            thread::Builder::new()
                .name(format!("proa-text-{index}"))
                .spawn(move || {
                    loop {
                        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
                        match job {
                            Ok(job) => job(),
                            Err(_) => return,
                        }
                    }
                })?;
        }
        Ok(TextPool { jobs, capacity })
    }

    /// Runs `work` on a text thread. A caller that goes away while its job is queued costs nothing.
    ///
    /// # Errors
    /// `QueueFull` when the queue is full, `Internal` when the work panics, else the work's own.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(move || {
            if reply.is_closed() {
                return;
            }
            let result =
                catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(ApiError::internal()));
            // An error means that the caller left meanwhile.
            let _ = reply.send(result);
        });
        if self.jobs.try_send(job).is_err() {
            return Err(ApiError::queue_full(
                self.capacity as u64,
                "--text-workers",
                1000,
            ));
        }
        answer.await.unwrap_or_else(|_| Err(ApiError::internal()))
    }
}
