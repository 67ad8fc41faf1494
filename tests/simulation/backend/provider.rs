//! The actual resources, which exist independently of the state.

use std::collections::BTreeMap;

use super::history::Process;
use super::{StackId, name};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    Update,
    Replace,
    Delete,
}

impl Verb {
    pub fn word(self) -> &'static str {
        match self {
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Replace => "replace",
            Verb::Delete => "delete",
        }
    }
}

#[derive(Default)]
pub struct Provider {
    /// Properties of the actual resources, by stack and URN.
    actual: BTreeMap<(StackId, String), String>,
    /// Last operation on each resource whose result is in the state, unless a user has changed the resource since.
    completed: BTreeMap<(StackId, String), (Verb, String)>,
}

impl Provider {
    pub fn resources(&self) -> impl Iterator<Item = (&StackId, &str)> {
        self.actual.keys().map(|(id, urn)| (id, urn.as_str()))
    }

    pub fn actual(&self, stack: &StackId, urn: &str) -> Option<&str> {
        self.actual.get(&key(stack, urn)).map(String::as_str)
    }

    /// Does an operation. Returns a violation if a completed operation is repeated or a resource is created twice.
    pub fn apply(&mut self, process: &Process, verb: Verb, urn: &str, properties: &str) -> Option<String> {
        let key = key(&process.stack, urn);
        let resource = name(urn);
        let last = self.completed.get(&key);
        let is_repeated =
            verb != Verb::Replace && last.is_some_and(|last| (last.0, last.1.as_str()) == (verb, properties));
        let exists = self.actual.contains_key(&key);
        let violation = if verb == Verb::Create && exists && !process.may_exist.contains(urn) {
            Some(format!("{process} creates {resource}, which exists"))
        } else if is_repeated && !process.may_exist.contains(urn) {
            Some(format!("{process} repeats {} {resource}", verb.word()))
        } else {
            None
        };
        match verb {
            Verb::Delete => drop(self.actual.remove(&key)),
            Verb::Create | Verb::Update | Verb::Replace => drop(self.actual.insert(key, properties.to_owned())),
        }
        violation
    }

    pub fn record_completed(&mut self, stack: &StackId, verb: Verb, urn: &str, properties: &str) {
        self.completed.insert(key(stack, urn), (verb, properties.to_owned()));
    }

    /// Changes or removes a resource as a user does outside Pulumi.
    pub fn drift(&mut self, stack: &StackId, urn: &str, properties: Option<&str>) {
        let key = key(stack, urn);
        self.completed.remove(&key);
        match properties {
            Some(properties) => drop(self.actual.insert(key, properties.to_owned())),
            None => drop(self.actual.remove(&key)),
        }
    }
}

fn key(stack: &StackId, urn: &str) -> (StackId, String) {
    (stack.clone(), urn.to_owned())
}
