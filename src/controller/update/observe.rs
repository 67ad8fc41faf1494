//! The only reads of an Update's reconcile.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::api::auto::{RunBinding, Update, Workspace};
use crate::api::names;
use crate::api::pulumi::Stack;
use crate::controller::update::Context;
use crate::controller::update::attachments::Seen;
use crate::runtime::reads::ReadError;

/// What is known at the start of a pass.
#[derive(Clone, Debug)]
pub struct Observed {
    pub update: Update,
    pub workspace: Option<Workspace>,
    pub pod: Option<Pod>,
    /// Another Update of the Workspace that goes first.
    pub ahead: Option<String>,
    /// What the attached task knows.
    pub seen: Option<Seen>,
    /// How the Stack stands that owns the Update. It matters only once the Update is being deleted.
    pub stack: Owner,
}

/// How an Update's Stack stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// It lives, or nobody has asked.
    Lives,
    Deleting,
    /// It is gone, or another one has its name.
    Gone,
}

/// Reads what a pass needs, and no more.
pub async fn observe(update: Update, context: &Context) -> Result<Observed, ReadError> {
    let namespace = update.namespace().unwrap_or_default();
    let name = update.spec.workspace_name.clone();
    let workspace = context.reader.get_opt::<Workspace>(&namespace, &name).await?;
    let pod = context.reader.get_opt::<Pod>(&namespace, &names::workspace_pod(&name)).await?;
    let ahead = ahead(&update, &context.updates.state());
    let seen = context.attachments.seen(&update.uid().unwrap_or_default());
    let stack = match (update.metadata.deletion_timestamp.is_some(), owner(&update)) {
        (true, Some((name, uid))) => match context.reader.get_opt::<Stack>(&namespace, &name).await? {
            Some(stack) if stack.uid().as_ref() != Some(&uid) => Owner::Gone,
            Some(stack) if stack.metadata.deletion_timestamp.is_some() => Owner::Deleting,
            Some(_) => Owner::Lives,
            None => Owner::Gone,
        },
        _ => Owner::Lives,
    };
    Ok(Observed { update, workspace, pod, ahead, seen, stack })
}

/// What an Update's run is bound to, once it was announced.
pub fn binding(update: &Update) -> Option<&RunBinding> {
    update.status.as_ref()?.run.as_ref()
}

/// Name and UID of the Stack that an Update belongs to.
fn owner(update: &Update) -> Option<(String, String)> {
    update.owner_references().iter().find(|o| o.kind == "Stack").map(|o| (o.name.clone(), o.uid.clone()))
}

/// Updates of one Workspace queue: a run that is open goes first, then the oldest; equal times queue by name.
fn ahead(update: &Update, all: &[Arc<Update>]) -> Option<String> {
    let place = |u: &Update| (binding(u).is_none(), u.creation_timestamp(), u.name_any());
    let mine = place(update);
    all.iter()
        .filter(|other| {
            other.metadata.namespace == update.metadata.namespace
                && other.spec.workspace_name == update.spec.workspace_name
                && other.uid() != update.uid()
                && !other.is_complete()
                && place(other) < mine
        })
        .min_by_key(|other| place(other))
        .map(|other| other.name_any())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::auto::{UpdateSpec, UpdateStatus};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn update(name: &str, second: i64, started: bool) -> Arc<Update> {
        let spec = UpdateSpec { workspace_name: "app".to_owned(), ..UpdateSpec::default() };
        let mut update = Update::new(name, spec);
        update.metadata.uid = Some(name.to_owned());
        update.metadata.creation_timestamp = jiff::Timestamp::from_second(second).ok().map(Time);
        let run = started.then(RunBinding::default);
        update.status = Some(UpdateStatus { run, ..UpdateStatus::default() });
        Arc::new(update)
    }

    #[test]
    fn updates_queue_by_time_then_name_and_an_open_run_goes_first() {
        let all = [update("b", 10, false), update("a", 10, false), update("old", 5, false), update("open", 20, true)];
        assert_eq!(ahead(&all[3], &all), None);
        assert_eq!(ahead(&all[2], &all).as_deref(), Some("open"));
        assert_eq!(ahead(&all[0], &all[..3]).as_deref(), Some("old"));
        assert_eq!(ahead(&all[0], &all[..2]).as_deref(), Some("a"));
        assert_eq!(ahead(&all[1], &all[..2]), None);
    }
}
