//! Whether the Stacks that have to be done before a run are so. Pure.

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use crate::api::conditions::{self, READY};
use crate::api::pulumi::{Stack, StackSpec};
use crate::api::{duration, names};

/// Another Stack that has to be done first, and how it was found; `None` when it is not there.
#[derive(Clone, Debug)]
pub struct Needed {
    pub name: String,
    pub rule: Rule,
    pub stack: Option<Stack>,
}

/// What is asked of another Stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Its last run has succeeded on what it asks for now, and, if it says so, not longer ago than this.
    Succeeded { within: Option<SignedDuration> },
    /// It is Ready, and has seen its own spec.
    Ready,
}

/// What follows from how they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Satisfied,
    /// A run has to wait: why, and which of them are to be run again for it.
    Waits {
        message: String,
        stale: Vec<Stale>,
    },
}

/// A Stack that is to be run again, and the request that asks for it: the same as long as its last run is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    pub name: String,
    pub request: String,
}

/// What a spec asks of other Stacks: their names, and what is asked.
pub fn asked(spec: &StackSpec) -> Vec<(String, Rule)> {
    let prerequisites = spec.prerequisites.iter().map(|prerequisite| {
        let within = prerequisite.requirement.as_ref().and_then(|r| r.succeeded_within_duration.as_deref());
        let within = within.and_then(duration::seconds).map(|seconds| i64::try_from(seconds).unwrap_or(i64::MAX));
        (prerequisite.name.clone(), Rule::Succeeded { within: within.map(SignedDuration::from_secs) })
    });
    let dependencies = spec.depends_on.iter().map(|dependency| (dependency.name.clone(), Rule::Ready));
    prerequisites.chain(dependencies).collect()
}

/// Whether a Stack names another one as what has to be done first.
pub fn names_it(spec: &StackSpec, name: &str) -> bool {
    spec.prerequisites.iter().any(|p| p.name == name) || spec.depends_on.iter().any(|d| d.name == name)
}

/// Whether a run may begin now. All of them are looked at: every stale one is asked to run at once.
pub fn judge(needed: &[Needed], now: Timestamp) -> Standing {
    let mut stale = Vec::new();
    let mut problems = Vec::new();
    for needed in needed {
        let problem = match (&needed.stack, &needed.rule) {
            (None, _) => Some("it does not exist".to_owned()),
            (Some(stack), Rule::Ready) => not_ready(stack),
            (Some(stack), Rule::Succeeded { within }) => not_succeeded(stack).or_else(|| {
                let (name, age) = stack.status.as_ref()?.last_update.as_ref().and_then(|last| {
                    Some((last.name.clone()?, now.duration_since(last.last_resync_time.as_ref()?.0)))
                })?;
                let limit = (*within).filter(|limit| age > *limit)?;
                stale.push(Stale { name: needed.name.clone(), request: format!("after-{name}") });
                Some(format!("it ran more than {} ago and is asked to run again", duration::display(limit)))
            }),
        };
        problems.extend(problem.map(|problem| format!("{}: {problem}", needed.name)));
    }
    match problems.is_empty() {
        true => Standing::Satisfied,
        false => Standing::Waits { message: format!("waits for {}", problems.join("; ")), stale },
    }
}

fn not_ready(stack: &Stack) -> Option<String> {
    let conditions = stack.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let observed = stack.status.as_ref().and_then(|status| status.observed_generation);
    match conditions::find(conditions, READY) {
        _ if observed != stack.metadata.generation => Some("its spec has changed".to_owned()),
        Some(ready) if ready.status == "True" => None,
        Some(ready) => Some(format!("it is not ready ({})", ready.reason)),
        None => Some("it is not ready".to_owned()),
    }
}

fn not_succeeded(stack: &Stack) -> Option<String> {
    let Some(last) = stack.status.as_ref().and_then(|status| status.last_update.as_ref()) else {
        return Some("it has not run yet".to_owned());
    };
    let request = stack.annotations().get(names::ANNOTATION_RECONCILIATION_REQUEST);
    if Some(last.generation) != stack.metadata.generation {
        return Some("its spec has changed, and has not run yet".to_owned());
    }
    if request.is_some() && request != last.reconcile_request.as_ref() {
        return Some("it is asked to run again, and has not yet".to_owned());
    }
    (last.state.as_deref() != Some("succeeded")).then(|| "its last run has failed".to_owned())
}

/// The way from a Stack back to itself, if there is one: none of those on it could ever run. `needs` gives the names that a
/// Stack needs.
pub fn cycle(of: &str, needs: &dyn Fn(&str) -> Vec<String>) -> Option<Vec<String>> {
    let mut seen = std::collections::BTreeSet::new();
    let mut open: Vec<Vec<String>> = needs(of).into_iter().map(|next| vec![of.to_owned(), next]).collect();
    while let Some(path) = open.pop() {
        let Some(last) = path.last() else { continue };
        if last == of {
            return Some(path);
        }
        if seen.insert(last.clone()) {
            open.extend(needs(last).into_iter().map(|next| [path.as_slice(), &[next]].concat()));
        }
    }
    None
}

#[cfg(test)]
mod tests;
