//! Program controller: reports whether a Program is valid and which artifact it produces.
//!
//! Stacks do not wait for this status: they build the artifact from the Program themselves, with identical bytes.

mod decide;
mod status;

use std::sync::Arc;

use futures::StreamExt;
use jiff::Timestamp;
use kube::runtime::Controller;
use kube::runtime::reflector::{Store as Reflected, store::Writer as StoreWriter};
use kube::{Client, ResourceExt};

use crate::api::conditions::program_reason;
use crate::api::pulumi::{Program, ProgramSpec};
use crate::controller::program::decide::{Action, decide};
use crate::runtime::events::{Event, EventKind, Events};
use crate::runtime::reads::Reader;
use crate::runtime::reconcile::{Outcome, ReconcileError, ReconcileRunner, no_errors};
use crate::runtime::scope::Scope;
use crate::runtime::watch;
use crate::runtime::writes::Writer;
use crate::telemetry::metrics::Metrics;

/// Dependencies of a Program reconcile.
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

/// Runs the controller until `shutdown` completes.
pub async fn controller(
    client: Client,
    scope: &Scope,
    store: StoreWriter<Program>,
    runner: Arc<ReconcileRunner>,
    context: Arc<Context>,
    shutdown: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let programs = store.as_reader();
    let stream = watch::changes(scope.api(client), scope.own_kinds(), cut_down, store, runner.clone(), |_| ());
    Controller::for_stream(stream, programs)
        .graceful_shutdown_on(shutdown)
        .run(
            move |program, context| {
                let runner = runner.clone();
                let object = program.clone();
                // Boxed only on start: all due reconciles wait here for a slot, and waiting ones must stay small.
                let work = async move { Box::pin(reconcile(object, context)).await };
                async move { runner.run(program.as_ref(), work).await }
            },
            no_errors,
            context,
        )
        .for_each(|_| std::future::ready(()))
        .await;
}

/// Removes spec and status. Each reconcile reads the live object, and the cache is only used to count Programs.
fn cut_down(program: &mut Program) {
    program.program = ProgramSpec::default();
    program.status = None;
}

/// Observes, decides and acts. There is only one object to read and one to write.
async fn reconcile(program: Arc<Program>, context: Arc<Context>) -> Result<Outcome, ReconcileError> {
    context.metrics.programs(context.programs.len());
    let namespace = program.namespace().unwrap_or_default();
    let live = context.reader.get_opt::<Program>(&namespace, &program.name_any()).await?;
    let Some(live) = live.filter(|live| live.metadata.deletion_timestamp.is_none()) else {
        return Ok(Outcome::Settled);
    };
    let live = context.writer.take_over(&live).await?.unwrap_or(live);
    let action = decide(&live);
    let written = context.writer.status(&live, &status::after(&live, &action, Timestamp::now())).await?;
    if let (Some(_), Action::Refuse(problems)) = (written, action) {
        context.events.publish(Event::new(&live, EventKind::Warning, program_reason::SPEC_INVALID, problems));
    }
    Ok(Outcome::Settled)
}

#[cfg(test)]
mod tests;
