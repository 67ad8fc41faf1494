//! Limits the number of open streams, in total and per user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Maximum total number of open streams.
const MAX_STREAMS: usize = 64;
/// Maximum number of open streams per user.
const MAX_PER_USER: usize = 6;
/// Maximum time for which a new stream waits until another stream closes. The controller detects with a delay that a
/// browser has left a page.
const WAIT: Duration = Duration::from_secs(2);

/// Open streams. Cheap to clone.
#[derive(Clone)]
pub(in crate::ui) struct Streams {
    tasks: TaskTracker,
    end: CancellationToken,
    users: Arc<Mutex<HashMap<String, usize>>>,
    /// Signal that a stream has ended.
    freed: Arc<Notify>,
}

/// Slot of an open stream. Drop the slot to make it available again.
pub(in crate::ui) struct StreamSlot {
    users: Arc<Mutex<HashMap<String, usize>>>,
    freed: Arc<Notify>,
    user: String,
}

impl Streams {
    pub(in crate::ui) fn new(tasks: TaskTracker, end: CancellationToken) -> Self {
        Streams { tasks, end, users: Arc::default(), freed: Arc::default() }
    }

    /// Waits until a user's new stream has a slot. Returns `None` if no slot becomes available before the timeout.
    pub(in crate::ui) async fn wait(&self, user: &str) -> Option<StreamSlot> {
        let slot = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                freed.as_mut().enable();
                if let Some(slot) = self.open(user) {
                    return slot;
                }
                freed.await;
            }
        };
        tokio::time::timeout(WAIT, slot).await.ok()
    }

    /// Returns a slot for a user's new stream, or `None` if too many streams are open.
    fn open(&self, user: &str) -> Option<StreamSlot> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let (total, own) = (users.values().sum::<usize>(), users.get(user).copied().unwrap_or_default());
        if total >= MAX_STREAMS || own >= MAX_PER_USER {
            return None;
        }
        users.insert(user.to_owned(), own + 1);
        Some(StreamSlot { users: self.users.clone(), freed: self.freed.clone(), user: user.to_owned() })
    }

    /// Runs a stream's task until the task completes or the controller stops.
    pub(in crate::ui) fn spawn(&self, slot: StreamSlot, task: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = task => {}
                () = end.cancelled() => {}
            }
            drop(slot);
        });
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        match users.get_mut(&self.user) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                users.remove(&self.user);
            }
        }
        drop(users);
        self.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_streams_is_limited_per_user_and_in_total() {
        let streams = Streams::new(TaskTracker::new(), CancellationToken::new());
        let mut open: Vec<_> = (0..MAX_PER_USER).filter_map(|_| streams.open("alice")).collect();
        assert_eq!(open.len(), MAX_PER_USER);
        assert!(streams.open("alice").is_none());
        open.pop();
        open.extend(streams.open("alice"));
        open.extend((0..1000).filter_map(|number| streams.open(&format!("user-{number}"))));
        assert_eq!(open.len(), MAX_STREAMS);
        drop(open);
        assert!(streams.users.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_waits_for_the_end_of_another_stream() {
        let streams = Streams::new(TaskTracker::new(), CancellationToken::new());
        let mut open: Vec<_> = (0..MAX_PER_USER).filter_map(|_| streams.open("alice")).collect();
        assert!(streams.wait("alice").await.is_none(), "no stream ends");
        let end = async {
            tokio::time::sleep(WAIT / 2).await;
            open.pop();
        };
        let (slot, ()) = tokio::join!(streams.wait("alice"), end);
        assert!(slot.is_some());
    }
}
