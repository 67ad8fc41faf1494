//! Streams of objects whose reconciliation is due.

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;

/// Stream of objects whose reconciliation is due.
pub type Trigger<K> = BoxStream<'static, ObjectRef<K>>;

/// Returns the objects to which `map` maps the objects of a watch. The watch continues after an error.
pub fn mapped<O, K>(
    objects: impl Stream<Item = Result<O, watcher::Error>> + Send + 'static,
    mut map: impl FnMut(O) -> Option<ObjectRef<K>> + Send + 'static,
) -> Trigger<K>
where
    K: Resource<DynamicType = ()> + 'static,
    O: 'static,
{
    let mapped = move |object| {
        let reference = match object {
            Ok(object) => map(object),
            Err(error) => {
                // Such errors are expected, and the watch retries with backoff.
                tracing::debug!(kind = %K::kind(&()), error = &error as &dyn std::error::Error, "watch failed");
                None
            }
        };
        std::future::ready(reference)
    };
    objects.filter_map(mapped).boxed()
}
