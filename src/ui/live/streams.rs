//! Limits the number of open streams, in total and per user, and ends the streams of a session.

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
    open: Arc<Mutex<Vec<Arc<OpenStream>>>>,
    /// Signal that a stream has ended.
    freed: Arc<Notify>,
}

/// Open stream.
struct OpenStream {
    user: String,
    /// ID of the session to which the stream belongs.
    session: String,
    /// Token that is canceled when the user signs out of the session.
    signed_out: CancellationToken,
}

/// Slot of an open stream. Drop the slot to make it available again.
pub(in crate::ui) struct StreamSlot {
    open: Arc<Mutex<Vec<Arc<OpenStream>>>>,
    freed: Arc<Notify>,
    stream: Arc<OpenStream>,
}

impl Streams {
    pub(in crate::ui) fn new(tasks: TaskTracker, end: CancellationToken) -> Self {
        Streams { tasks, end, open: Arc::default(), freed: Arc::default() }
    }

    /// Waits until a new stream has a slot. The stream belongs to a session of a user. Returns `None` if no slot
    /// becomes available before the timeout.
    pub(in crate::ui) async fn wait(&self, user: &str, session: &str) -> Option<StreamSlot> {
        let slot = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                freed.as_mut().enable();
                if let Some(slot) = self.open(user, session) {
                    return slot;
                }
                freed.await;
            }
        };
        tokio::time::timeout(WAIT, slot).await.ok()
    }

    /// Returns a slot for a user's new stream, or `None` if too many streams are open.
    fn open(&self, user: &str, session: &str) -> Option<StreamSlot> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let own = open.iter().filter(|stream| stream.user == user).count();
        if open.len() >= MAX_STREAMS || own >= MAX_PER_USER {
            return None;
        }
        let (user, session, signed_out) = (user.to_owned(), session.to_owned(), CancellationToken::new());
        let stream = Arc::new(OpenStream { user, session, signed_out });
        open.push(stream.clone());
        Some(StreamSlot { open: self.open.clone(), freed: self.freed.clone(), stream })
    }

    /// Tells all streams of a session that the user has signed out.
    pub(in crate::ui) fn sign_out(&self, session: &str) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter(|stream| stream.session == session).for_each(|stream| stream.signed_out.cancel());
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

impl StreamSlot {
    /// Returns the token that is canceled when the user signs out of the stream's session.
    pub(in crate::ui) fn signed_out(&self) -> CancellationToken {
        self.stream.signed_out.clone()
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|stream| !Arc::ptr_eq(stream, &self.stream));
        drop(open);
        self.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_streams_is_limited_per_user_and_in_total() {
        let streams = Streams::new(TaskTracker::new(), CancellationToken::new());
        let mut open: Vec<_> = (0..MAX_PER_USER).filter_map(|_| streams.open("alice", "1")).collect();
        assert_eq!(open.len(), MAX_PER_USER);
        assert!(streams.open("alice", "1").is_none());
        open.pop();
        open.extend(streams.open("alice", "1"));
        open.extend((0..1000).filter_map(|number| streams.open(&format!("user-{number}"), "2")));
        assert_eq!(open.len(), MAX_STREAMS);
        drop(open);
        assert!(streams.open.lock().unwrap().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_waits_for_the_end_of_another_stream() {
        let streams = Streams::new(TaskTracker::new(), CancellationToken::new());
        let mut open: Vec<_> = (0..MAX_PER_USER).filter_map(|_| streams.open("alice", "1")).collect();
        assert!(streams.wait("alice", "1").await.is_none(), "no stream ends");
        let end = async {
            tokio::time::sleep(WAIT / 2).await;
            open.pop();
        };
        let (slot, ()) = tokio::join!(streams.wait("alice", "1"), end);
        assert!(slot.is_some());
    }

    #[test]
    fn a_sign_out_reaches_all_streams_of_the_session() {
        let streams = Streams::new(TaskTracker::new(), CancellationToken::new());
        let slots: Vec<_> = ["1", "2", "1"].iter().filter_map(|session| streams.open("alice", session)).collect();
        streams.sign_out("3");
        streams.sign_out("1");
        let signed_out: Vec<_> = slots.iter().map(|slot| slot.signed_out().is_cancelled()).collect();
        assert_eq!(signed_out, [true, false, true]);
        let later = streams.open("alice", "1").unwrap();
        assert!(!later.signed_out().is_cancelled(), "the caller checks the session again");
    }
}
