//! Background tasks without which the controller must not continue.
//!
//! A panic ends only its task. Without its watches or its events, the controller would continue with outdated data and
//! would still be the leader. The process therefore ends after a panic, and another process starts all tasks again.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

/// Payload of a panic.
type Panic = Box<dyn Any + Send>;

/// Spawns critical background tasks. Cheap to clone.
#[derive(Clone)]
pub struct CriticalTasks {
    tasks: TaskTracker,
    panics: mpsc::UnboundedSender<Panic>,
}

impl CriticalTasks {
    /// Returns the spawner, and the channel that receives the panics of the tasks. The process must end after a panic.
    pub fn new(tasks: TaskTracker) -> (Self, mpsc::UnboundedReceiver<Panic>) {
        let (sender, panics) = mpsc::unbounded_channel();
        (CriticalTasks { tasks, panics: sender }, panics)
    }

    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let panics = self.panics.clone();
        self.tasks.spawn(async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                // An error means that the process is already shutting down.
                drop(panics.send(panic));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_panics_are_reported() {
        let (critical_tasks, mut panics) = CriticalTasks::new(TaskTracker::new());
        critical_tasks.spawn(async {});
        critical_tasks.spawn(async { panic!("defect") });
        drop(critical_tasks);
        let panic = panics.recv().await.expect("the task panics");
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"defect"));
        assert!(panics.recv().await.is_none(), "the other task has ended without a panic");
    }
}
