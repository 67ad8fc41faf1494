//! Builds the status of a Program. No other module does. Pure functions.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::api::conditions::{self, Claim, READY, STALLED, Status, program_reason};
use crate::api::pulumi::{Program, ProgramArtifact, ProgramStatus};
use crate::controller::program::decide::{Action, Published};

/// Returns the status of a Program after an action. An invalid Program keeps its last valid artifact.
pub fn after(program: &Program, action: &Action, now: Timestamp) -> ProgramStatus {
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
    let claim = Claim { kind: READY, status: is_ready, reason, message: &message };
    conditions::set(&mut status.conditions, &claim, generation, now);
    match is_ready {
        Status::True => conditions::remove(&mut status.conditions, STALLED),
        _ => conditions::set(
            &mut status.conditions,
            &Claim { kind: STALLED, status: Status::True, ..claim },
            generation,
            now,
        ),
    }
    status.summary = conditions::summary(&status.conditions);
    status
}

/// Returns the artifact for the status. An unchanged artifact keeps its `lastUpdateTime`.
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
