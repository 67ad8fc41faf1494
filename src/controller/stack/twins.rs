//! Stacks that stand for the same stack of the same backend. They would undo each other's work, so only the first of them runs:
//! the one that was created first. The others say so, and go on when it is gone or stands for something else.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::mpsc;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use crate::api::auto::Workspace;
use crate::api::pulumi::Stack;
use crate::controller::stack::backend;
use crate::runtime::backoff::ObjectKey;
use crate::runtime::reads::{ReadError, Reader};

/// What a Stack stands for, as far as the Stack itself says it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Claim {
    /// Backend, organization and name. Two Stacks with the same stand for the same stack if their projects are the same.
    address: String,
    project: Option<String>,
    /// Whether the Stack itself names the project; else its source does.
    names_project: bool,
    /// Whether its Workspace was asked for the project. From then on its own reconciles tell.
    was_asked: bool,
    created: Timestamp,
}

/// The Stack that is first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Twin {
    pub namespace: String,
    pub name: String,
    pub project: String,
}

impl fmt::Display for Twin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.namespace, self.name)
    }
}

/// The claims of all Stacks, and which of them have the same address.
#[derive(Default)]
struct Claims {
    by_key: HashMap<ObjectKey, Claim>,
    by_address: HashMap<String, HashSet<ObjectKey>>,
}

impl Claims {
    /// Notes what a Stack claims, if it claims anything, and tells what it claimed before.
    fn replace(&mut self, key: &ObjectKey, claim: Option<Claim>) -> Option<Claim> {
        let before = self.by_key.remove(key);
        if let Some(before) = &before
            && let Some(keys) = self.by_address.get_mut(&before.address)
        {
            keys.remove(key);
            if keys.is_empty() {
                self.by_address.remove(&before.address);
            }
        }
        if let Some(claim) = claim {
            self.by_address.entry(claim.address.clone()).or_default().insert(key.clone());
            self.by_key.insert(key.clone(), claim);
        }
        before
    }

    /// The claims with an address.
    fn with_address(&self, address: &str) -> impl Iterator<Item = (&ObjectKey, &Claim)> {
        let keys = self.by_address.get(address).into_iter().flatten();
        keys.filter_map(|key| self.by_key.get_key_value(key))
    }
}

/// Who stands for what. Cheap to clone.
#[derive(Clone)]
pub struct Twins {
    claims: Arc<Mutex<Claims>>,
    /// By the first one: those that wait for it to go.
    waiting: Arc<Mutex<HashMap<ObjectKey, HashSet<ObjectKey>>>>,
    wake: mpsc::Sender<ObjectRef<Stack>>,
}

impl fmt::Debug for Twins {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Twins").finish_non_exhaustive()
    }
}

impl Twins {
    /// Stacks are woken through `wake`.
    pub fn new(wake: mpsc::Sender<ObjectRef<Stack>>) -> Twins {
        Twins { claims: Arc::default(), waiting: Arc::default(), wake }
    }

    /// Takes note of what a Stack stands for now.
    pub fn note(&self, stack: &Stack) {
        let key = key(stack);
        let mut claims = lock(&self.claims);
        let claim = claim(stack, claims.by_key.get(&key));
        let before = claims.replace(&key, claim.clone());
        drop(claims);
        if before.is_some() && before != claim {
            self.wake_those_behind(&key);
        }
    }

    /// A Stack is gone.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.claims).replace(key, None);
        self.wake_those_behind(key);
    }

    /// The Stack that is before this one, if one is. As long as the project of one of them is not known, none is.
    pub async fn first(
        &self,
        stack: &Stack,
        workspace: Option<&Workspace>,
        reader: &Reader,
    ) -> Result<Option<Twin>, ReadError> {
        let own_key = key(stack);
        let Some(own) = self.learn(&own_key, project_in(workspace)) else { return Ok(None) };
        let Some(project) = own.project.clone() else { return Ok(None) };
        for (key, claim) in self.before(&own_key, &own) {
            let theirs = match claim.project {
                Some(project) => Some(project),
                None if claim.was_asked => None,
                None => {
                    let workspace = reader.get_opt::<Workspace>(&key.0, &key.1).await?;
                    self.learn(&key, project_in(workspace.as_ref())).and_then(|claim| claim.project)
                }
            };
            if theirs.as_ref() == Some(&project) {
                lock(&self.waiting).entry(key.clone()).or_default().insert(own_key);
                return Ok(Some(Twin { namespace: key.0, name: key.1, project }));
            }
        }
        Ok(None)
    }

    /// The claim of a Stack, with the project that its source has turned out to be.
    fn learn(&self, key: &ObjectKey, project: Option<String>) -> Option<Claim> {
        let mut claims = lock(&self.claims);
        let claim = claims.by_key.get_mut(key)?;
        claim.was_asked = true;
        if project.is_some() && !claim.names_project {
            claim.project = project;
        }
        Some(claim.clone())
    }

    /// Those with the same address that were created before, the first one first.
    fn before(&self, key: &ObjectKey, own: &Claim) -> Vec<(ObjectKey, Claim)> {
        let claims = lock(&self.claims);
        let is_before = |(other, claim): &(&ObjectKey, &Claim)| (claim.created, *other) < (own.created, key);
        let before = claims.with_address(&own.address).filter(is_before);
        let mut before: Vec<_> = before.map(|(key, claim)| (key.clone(), claim.clone())).collect();
        before.sort_by(|(one_key, one), (other_key, other)| (one.created, one_key).cmp(&(other.created, other_key)));
        before
    }

    fn wake_those_behind(&self, key: &ObjectKey) {
        let behind = lock(&self.waiting).remove(key).unwrap_or_default();
        for (namespace, name) in behind {
            if self.wake.clone().try_send(ObjectRef::new(&name).within(&namespace)).is_err() {
                tracing::debug!(namespace, name, "it could not be woken; it looks again by itself");
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(stack: &Stack) -> ObjectKey {
    (stack.namespace().unwrap_or_default(), stack.name_any())
}

fn project_in(workspace: Option<&Workspace>) -> Option<String> {
    workspace?.status.as_ref()?.project_name.clone()
}

/// A preview changes nothing, and may be of what another Stack changes.
fn claim(stack: &Stack, before: Option<&Claim>) -> Option<Claim> {
    if stack.spec.preview.unwrap_or_default() {
        return None;
    }
    let (address, named) = backend::address(stack)?;
    let names_project = named.is_some();
    // After a restart of the controller it is the last run that tells: its workspace may be gone.
    let of_last_run = || stack.status.as_ref()?.project_info.as_ref().map(|info| info.name.clone());
    let learned = before.and_then(|before| before.project.clone()).or_else(of_last_run).filter(|_| !names_project);
    let was_asked = before.is_some_and(|before| before.was_asked);
    let created = stack.creation_timestamp().map(|time| time.0).unwrap_or_default();
    Some(Claim { address, project: named.or(learned), names_project, was_asked, created })
}

#[cfg(test)]
mod tests;
