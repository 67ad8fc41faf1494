//! Cache of complete Stacks for expressions. The watch cache holds only some fields of each Stack.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kube::ResourceExt;

use crate::api::pulumi::Stack;
use crate::runtime::backoff::ObjectKey;

/// Limits of the cache. A Stack that exceeds the size, in bytes of JSON, is read each time.
const MAX_STACKS: usize = 256;
const MAX_STACK_SIZE: usize = 32 * 1024;

/// Cache with one version per Stack. Cheap to clone; all clones share the entries.
#[derive(Clone, Default)]
pub struct StackCache(Arc<Mutex<HashMap<ObjectKey, Arc<Stack>>>>);

impl StackCache {
    /// Returns the Stack if the cached version is that of `part`.
    pub fn get(&self, key: &ObjectKey, part: &Stack) -> Option<Arc<Stack>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()?;
        let version = |stack: &Stack| (stack.uid(), stack.resource_version());
        (version(&known) == version(part)).then_some(known)
    }

    /// Caches a Stack, replacing an older version.
    pub fn keep(&self, key: &ObjectKey, stack: &Arc<Stack>) {
        if serde_json::to_vec(stack.as_ref()).map_or(usize::MAX, |bytes| bytes.len()) > MAX_STACK_SIZE {
            return;
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= MAX_STACKS && !kept.contains_key(key) {
            kept.clear();
        }
        kept.insert(key.clone(), Arc::clone(stack));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::pulumi::StackSpec;

    fn stack(version: &str, text: usize) -> Arc<Stack> {
        let mut stack = Stack::new("base", StackSpec { stack: "x".repeat(text), ..StackSpec::default() });
        stack.metadata.resource_version = Some(version.to_owned());
        Arc::new(stack)
    }

    #[test]
    fn the_stack_cache_is_keyed_by_version_and_bounded() {
        let stacks = StackCache::default();
        let key = |number: usize| ("apps".to_owned(), number.to_string());
        stacks.keep(&key(0), &stack("1", 1));
        assert_eq!(stacks.get(&key(0), &stack("1", 1)).map(|stack| stack.spec.stack.len()), Some(1));
        assert!(stacks.get(&key(0), &stack("2", 1)).is_none(), "it has changed");
        stacks.keep(&key(1), &stack("1", MAX_STACK_SIZE));
        assert!(stacks.get(&key(1), &stack("1", 1)).is_none(), "it is too large");
        (0..10 * MAX_STACKS).for_each(|number| stacks.keep(&key(number), &stack("1", 1)));
        assert!(stacks.0.lock().unwrap().len() <= MAX_STACKS);
    }
}
