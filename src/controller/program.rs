//! Program controller: reports whether a Program is valid, and which artifact it produces.
//!
//! The Stack controller does not read the status of a Program. Instead, it builds a byte-identical artifact from the
//! Program.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::runtime::reflector::{Store as Reflected, store::Writer as StoreWriter};

use crate::api::conditions::{self, ConditionUpdate, READY, STALLED, Status, program_reason};
use crate::api::pulumi::{Program, ProgramArtifact, ProgramSpec, ProgramStatus};
use crate::artifact::Digest;
use crate::runtime::controller::Start;
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::reads::Reader;
use crate::runtime::reconcile::{Outcome, ReconcileError};
use crate::runtime::work_queue::Urgency;
use crate::runtime::writes::Writer;
use crate::source::program;
use crate::telemetry::metrics::Metrics;

/// Dependencies of a Program reconciliation.
#[derive(Clone)]
pub struct Context {
    pub reader: Reader,
    pub writer: Writer,
    pub events: Events,
    pub metrics: Metrics,
    /// All Programs that the controller watches.
    pub programs: Reflected<Program>,
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

/// Runs the controller until it is stopped.
pub async fn controller(start: Start<StoreWriter<Program>>, context: Arc<Context>) {
    start.run(strip_unused_fields, |_| (), |_| Urgency::Normal, Vec::new(), reconcile, context).await;
}

/// Removes the spec and the status. The controller uses the cache only to count Programs, and each reconciliation
/// reads its Program from the API server.
fn strip_unused_fields(program: &mut Program) {
    program.program = ProgramSpec::default();
    program.status = None;
}

/// Reconciles a Program. The reconciliation accesses no other objects, but publishes events.
async fn reconcile(program: Arc<Program>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.metrics.set_program_count(context.programs.len());
    let namespace = program.namespace().unwrap_or_default();
    let live = context.reader.get_opt::<Program>(&namespace, &program.name_any()).await?;
    let Some(live) = live.filter(|live| live.metadata.deletion_timestamp.is_none()) else {
        return Ok(Outcome::Settled);
    };
    let live = context.writer.take_over(&live).await?.unwrap_or(live);
    let action = decide(&live);
    let written = context.writer.status(&live, &status_after(&live, &action, Timestamp::now())).await?;
    if let (Some(_), Action::Refuse(problems)) = (written, action) {
        context.events.publish(Event::new(&live, EventKind::Warning, program_reason::SPEC_INVALID, problems));
    }
    Ok(Outcome::Settled)
}

/// Next action for a Program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Publish the artifact of a valid Program. `needs` describes the values that a Stack must provide, and defaults that
    /// Pulumi YAML inserts into strings in another form.
    Publish { artifact: Published, needs: Option<String> },
    /// Report the problems of an invalid Program, each with its location.
    Refuse(String),
}

/// Artifact of a Program as the status reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub path: String,
    pub revision: String,
    pub digest: Digest,
    pub size: Option<i64>,
}

/// Selects the next action for the Program.
pub fn decide(program: &Program) -> Action {
    let made = match program::make(program) {
        Ok(made) => made,
        Err(problems) => return Action::Refuse(problems),
    };
    let (namespace, name) = (program.namespace().unwrap_or_default(), program.name_any());
    let artifact = Published {
        path: format!("programs/{namespace}/{name}/{}.tar.gz", made.revision),
        revision: made.revision,
        digest: made.digest,
        size: i64::try_from(made.bytes.len()).ok(),
    };
    let notes = [&made.needs, &made.warnings].into_iter().filter(|notes| !notes.is_empty()).map(ToString::to_string);
    let needs = notes.reduce(|needs, warnings| format!("{needs}; {warnings}"));
    Action::Publish { artifact, needs }
}

/// Returns the status of a Program after an action. If the Program is invalid, the status keeps the last valid
/// artifact.
pub fn status_after(program: &Program, action: &Action, now: Timestamp) -> ProgramStatus {
    let mut status = program.status.clone().unwrap_or_default();
    let generation = program.metadata.generation.unwrap_or_default();
    status.observed_generation = Some(generation);
    let (is_ready, reason, message) = match action {
        Action::Publish { artifact, needs } => {
            let needs = needs.as_ref().map(|needs| format!("; {needs}")).unwrap_or_default();
            let message = format!("program is valid{needs}");
            status.artifact = Some(published(artifact, status.artifact.take(), now));
            (Status::True, program_reason::SUCCEEDED, message)
        }
        Action::Refuse(problems) => (Status::False, program_reason::SPEC_INVALID, problems.clone()),
    };
    let condition = ConditionUpdate { kind: READY, status: is_ready, reason, message: &message };
    conditions::set(&mut status.conditions, &condition, generation, now);
    match is_ready {
        Status::True => conditions::remove(&mut status.conditions, STALLED),
        _ => conditions::set(
            &mut status.conditions,
            &ConditionUpdate { kind: STALLED, status: Status::True, ..condition },
            generation,
            now,
        ),
    }
    status.summary = conditions::summary(&status.conditions);
    status
}

/// Returns the artifact for the status. Keeps the `lastUpdateTime` of an unchanged artifact.
fn published(artifact: &Published, before: Option<ProgramArtifact>, now: Timestamp) -> ProgramArtifact {
    let made = ProgramArtifact {
        path: artifact.path.clone(),
        revision: artifact.revision.clone(),
        digest: artifact.digest.clone(),
        last_update_time: Time(now),
        size: artifact.size,
    };
    match before {
        Some(before) if before.revision == made.revision && before.digest == made.digest => {
            ProgramArtifact { last_update_time: before.last_update_time, ..made }
        }
        _ => made,
    }
}

#[cfg(test)]
mod tests;
