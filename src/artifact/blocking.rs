//! Blocking work of the controller, such as access to the artifact store.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinHandle;

static IS_INLINE: AtomicBool = AtomicBool::new(false);

/// Runs the work on a thread for blocking work, or inline after [`run_inline`]. The work must not wait for a task.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if IS_INLINE.load(Ordering::Relaxed) {
        tokio::spawn(async move { work() })
    } else {
        tokio::task::spawn_blocking(work)
    }
}

/// Runs the blocking work of this process in its async tasks. A simulation has only one thread, because the order of
/// events would otherwise depend on the scheduler of the operating system.
pub fn run_inline() {
    IS_INLINE.store(true, Ordering::Relaxed);
}
