//! Summaries of a Stack's states, and the next steps for the user. `docs/spec/v1/stack.md` describes the states.

mod fields;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use crate::api::auto::Workspace;
use crate::api::conditions::stack_reason as reason;
use crate::api::conditions::{
    self, DRIFTED, EXPIRING, OUTPUTS_WRITTEN, READY, drift_reason, update_reason, workspace_reason,
};
use crate::api::names::{
    self, ANNOTATION_ACKNOWLEDGE, ANNOTATION_CONFIRM_DESTROY, ANNOTATION_PAUSE, ANNOTATION_SCHEDULE,
};
use crate::api::pulumi::{LastUpdate, Stack, StackStatus};
use crate::api::resolve::{self, Decision};
use crate::view::phase::{self, Phase};

/// Summary for a Stack whose reason this version does not support.
const UNKNOWN: &str = "The next run waits. The cause is below.";
/// Summary for a stalled Stack whose reason this version does not support.
const UNKNOWN_STALLED: &str = "The Stack cannot continue until a user acts.";

/// Placeholder for the name of another Stack that only the cause contains.
const OTHER: &str = "OTHER";

/// Other objects that determine the steps. Without these objects, the steps are less specific.
#[derive(Clone, Copy, Debug, Default)]
pub struct Related<'a> {
    pub workspace: Option<&'a Workspace>,
    /// Whether the workspace pod does not exist.
    pub lacks_pod: bool,
    /// Name of the Stack in the same namespace that manages the same Pulumi stack.
    pub same_pulumi_stack: Option<&'a str>,
}

/// State of a Stack, which determines the summary and the steps.
pub struct State<'a> {
    stack: &'a Stack,
    related: Related<'a>,
    pub phase: Phase,
    /// Reason from the condition that best explains the phase.
    pub reason: Option<&'a str>,
    namespace: String,
    name: String,
}

impl<'a> State<'a> {
    /// Returns the state of a Stack.
    pub fn of(stack: &'a Stack) -> Self {
        let (namespace, name) = (stack.namespace().unwrap_or_default(), stack.name_any());
        let related = Related::default();
        State { stack, related, phase: Phase::of(stack), reason: main_reason(stack), namespace, name }
    }

    /// Returns the state with more specific steps.
    #[must_use]
    pub fn with(self, related: Related<'a>) -> Self {
        State { related, ..self }
    }

    /// Returns a summary of the Stack's state in one or two sentences.
    pub fn summary(&self) -> &'static str {
        match self.phase {
            Phase::Pending => "The controller has not reconciled the Stack yet.",
            Phase::Ready if self.reason == Some(reason::PREVIEWED) => {
                "The last preview has succeeded. A preview changes no resources."
            }
            Phase::Ready => "The last run has succeeded, and no run is due.",
            Phase::Running if self.is_queued() => "A run is queued. The run starts when other runs have ended.",
            Phase::Running => "A run is open or queued.",
            Phase::Preparing => "The controller fetches the source or prepares the workspace pod.",
            Phase::Suspended if self.is_deleted() => {
                "The Stack was deleted while it was suspended, so its resources still exist."
            }
            Phase::Suspended => "spec.suspend is true, so no run starts.",
            Phase::Deleting => {
                "The Stack is being deleted. The controller destroys its resources first, if the spec requires it."
            }
            Phase::Retrying if self.reason == Some(reason::UPDATE_CONFLICT) => {
                "Another update holds the lock of the Pulumi stack. The controller retries the run."
            }
            Phase::Retrying if self.has_violated_policy() => {
                "The last run has violated a mandatory policy. The controller retries the run."
            }
            Phase::Retrying => "The last run has failed. The controller retries the run.",
            Phase::Waiting => self.summary_of_waiting(),
            Phase::Stalled => self.summary_of_stalled(),
        }
    }

    fn summary_of_waiting(&self) -> &'static str {
        match self.reason {
            Some(reason::AWAITING_APPROVAL) => "The plan of the next run requires an approval.",
            Some(reason::PAUSED) => "A run is due, but the controller or the namespace is paused.",
            Some(reason::OUTSIDE_SCHEDULE) => "A run is due, but no window is open, or a freeze prevents the run.",
            Some(reason::INPUTS_CHANGE_OFTEN) => "A run is due, but changed inputs have caused too many runs.",
            Some(reason::PREREQUISITE_NOT_SATISFIED) => "The Stack waits for other Stacks.",
            Some(reason::SOURCE_UNAVAILABLE) => "The source has no artifact that the controller can fetch.",
            _ => UNKNOWN,
        }
    }

    fn summary_of_stalled(&self) -> &'static str {
        match self.reason {
            Some(reason::RUN_OUTCOME_UNKNOWN | reason::PENDING_CREATES | reason::STACK_NOT_FOUND)
                if self.is_abandoned() =>
            {
                "A user has abandoned the last run, so no run starts until an input changes."
            }
            Some(reason::RUN_OUTCOME_UNKNOWN) => {
                "It is unknown whether the last run has ended. No new run starts, because two runs could conflict."
            }
            Some(reason::PENDING_CREATES) => {
                "An interrupted run was creating resources, and another run could create them again. You must decide."
            }
            Some(reason::STACK_NOT_FOUND) if self.is_deleted() => {
                "The backend does not contain the Pulumi stack to destroy. The destroy requires your decision."
            }
            Some(reason::STACK_NOT_FOUND) => {
                "The backend no longer contains the state of the resources. A run could create them again. You must decide."
            }
            Some(reason::BACKEND_UPGRADE_REQUIRED) => {
                "The state backend has a layout that the Pulumi CLI no longer supports. The controller does not retry the run."
            }
            Some(reason::CANCELED) => "A user has canceled the last run, so the controller does not retry it.",
            Some(reason::PLAN_REJECTED) => "A user has rejected the plan of the next run.",
            Some(reason::UPDATE_FAILED | reason::PREVIEW_FAILED) => {
                "Before the migration, the Pulumi Kubernetes Operator stopped retrying the last run."
            }
            Some(reason::UPDATE_CONFLICT) => "Another Stack manages the same Pulumi stack, so this Stack does not run.",
            Some(reason::DESTROY_UNCONFIRMED) => {
                "More Stacks were deleted than --max-destroys permits, so the destroy requires a confirmation."
            }
            Some(reason::SOURCE_UNAVAILABLE) => "The source does not exist, or the controller or the agent rejects it.",
            Some(reason::WORKSPACE_FAILED) => {
                "The workspace pod cannot start, the installation of dependencies fails, or the API server rejects an \
                 object."
            }
            Some(reason::SPEC_INVALID) => "The spec, or an object to which the spec refers, is not valid.",
            Some(reason::ACCESS_DENIED) => {
                "The Stack refers to an object in another namespace, which the controller does not permit."
            }
            Some(reason::PULUMI_VERSION_TOO_LOW) => "The Pulumi CLI in the image is too old.",
            Some(reason::NAMESPACE_TERMINATING) => "The namespace is being deleted, so no pod starts in it.",
            _ => UNKNOWN_STALLED,
        }
    }

    /// Returns the next steps for the user, the most likely step first. Each step is a sentence with a command on the
    /// next line.
    pub fn next_steps(&self) -> Vec<String> {
        let mut steps = match self.phase {
            Phase::Ready => Vec::new(),
            Phase::Pending => vec![step("Check that the controller is running:", "kubectl pulumi doctor")],
            Phase::Running | Phase::Preparing if self.waits_for_reference() => {
                vec![self.edit("Create the object that the cause names, or correct its name in the spec:")]
            }
            Phase::Running if self.is_queued() => {
                vec![step("Wait until other runs have ended. To list all runs:", "kubectl get updates -A")]
            }
            Phase::Running => vec![self.plugin("Follow the log of the run:", "logs -f", "")],
            Phase::Preparing | Phase::Deleting => {
                vec![self.plugin("List the events of the Workspace and its pod:", "events", "")]
            }
            Phase::Suspended if self.is_deleted() => {
                vec![self.plugin("Resume the Stack, so that the controller destroys its resources:", "resume", "")]
            }
            Phase::Suspended => vec![self.plugin("Resume the Stack:", "resume", "")],
            Phase::Retrying => self.of_retrying(),
            Phase::Waiting => self.of_waiting(),
            Phase::Stalled => self.of_stalled(),
        };
        // For these reasons, the preceding steps already show how to delete the Stack without a destroy.
        let alternatives = [reason::STACK_NOT_FOUND, reason::NAMESPACE_TERMINATING, reason::UPDATE_CONFLICT];
        let has_alternative = alternatives.map(Some).contains(&self.reason) && self.phase == Phase::Stalled;
        if self.destroys() && !matches!(self.phase, Phase::Running | Phase::Pending) && !has_alternative {
            steps.push(self.keep_resources("Or keep the resources, and delete the Stack without a destroy:"));
        }
        if phase::is_suspended(self.stack) && self.phase == Phase::Stalled {
            steps.push(self.plugin("The Stack is also suspended. To permit runs, resume it:", "resume", ""));
        }
        if let Some(status) = &self.stack.status {
            steps.extend(self.of_results(status));
        }
        steps
    }

    fn of_retrying(&self) -> Vec<String> {
        let retry = self.plugin("To retry the run now:", "reconcile", "");
        if self.last_update().is_some_and(|last| last.reason.as_deref() == Some(update_reason::RUN_REFUSED)) {
            return self.of_refused_run().into_iter().chain([retry]).collect();
        }
        // The Service selects the Workspace's pod, even if the pod comes from a pool.
        let service = names::workspace_object(&self.name);
        let log = "Correct the cause. The log of the last run contains all messages:";
        let first = match self.reason {
            Some(reason::UPDATE_CONFLICT) => step(
                "Wait until the other update ends. If no process holds the lock anymore, remove the lock:",
                &format!(
                    "kubectl exec -n {} service/{service} -c {} -- pulumi cancel --yes",
                    self.namespace,
                    names::PULUMI_CONTAINER
                ),
            ),
            _ if self.has_violated_policy() => self.correct_policy(),
            _ => self.plugin(log, "logs", ""),
        };
        vec![first, retry]
    }

    fn of_waiting(&self) -> Vec<String> {
        match self.reason {
            Some(reason::AWAITING_APPROVAL) => self.of_approval(),
            Some(reason::PAUSED) => self.of_pause(),
            Some(reason::OUTSIDE_SCHEDULE) => self.of_schedule(),
            Some(reason::INPUTS_CHANGE_OFTEN) => {
                vec![self.plugin(
                    "Remove the loop between the Stacks. To start a run now, request it:",
                    "reconcile",
                    "",
                )]
            }
            Some(reason::PREREQUISITE_NOT_SATISFIED) => {
                vec![self.plugin("Show the Stacks on which this Stack depends:", "tree", "")]
            }
            Some(reason::SOURCE_UNAVAILABLE) => self.of_source(),
            _ => vec![self.plugin("List the events:", "events", "")],
        }
    }

    /// Returns the steps with which a user decides about the plan. The commands contain the complete digest, because a
    /// tenant can create another plan whose digest has the same prefix.
    fn of_approval(&self) -> Vec<String> {
        let mut steps = vec![self.plugin("Review the plan, and approve it:", "approve", "")];
        if let Some(plan) = self.stack.status.as_ref().and_then(|status| status.plan.as_ref()) {
            let arguments = format!("--plan {}", plan.digest);
            steps.push(self.plugin("Or approve the plan without a terminal after the review:", "approve", &arguments));
        }
        steps.push(self.plugin("Or reject the plan:", "reject", "--reason TEXT"));
        steps
    }

    /// Returns the steps with which a user ends a pause. The message of the condition shows whether the namespace or
    /// the controller is paused.
    fn of_pause(&self) -> Vec<String> {
        let of_namespace = step(
            "Wait until the pause ends. An administrator ends the pause of the namespace:",
            &format!("kubectl annotate namespace {} {ANNOTATION_PAUSE}-", self.namespace),
        );
        let of_controller = step(
            "Wait until the pause ends. An administrator removes the flag --pause from the Deployment of the controller:",
            &format!("kubectl get deployments -A -l {}", names::CONTROLLER_SELECTOR),
        );
        match phase::cause(self.stack) {
            Some(cause) if cause.contains(ANNOTATION_PAUSE) => vec![of_namespace],
            Some(cause) if cause.contains("--pause") => vec![of_controller],
            _ => vec![of_namespace, of_controller],
        }
    }

    fn of_schedule(&self) -> Vec<String> {
        let namespace = &self.namespace;
        let annotation = ANNOTATION_SCHEDULE.replace('.', "\\.");
        let of_namespace = step(
            "Wait until the time in the cause. An administrator can change the schedule of the namespace:",
            &format!("kubectl get namespace {namespace} -o jsonpath='{{.metadata.annotations.{annotation}}}'"),
        );
        let of_stack = "Wait until the time in the cause, or change spec.schedule:";
        match self.stack.spec.schedule {
            Some(_) => vec![self.edit(of_stack), of_namespace],
            None => vec![of_namespace],
        }
    }

    fn of_stalled(&self) -> Vec<String> {
        match self.reason {
            Some(reason::RUN_OUTCOME_UNKNOWN | reason::PENDING_CREATES | reason::STACK_NOT_FOUND)
                if self.is_abandoned() =>
            {
                vec![self.plugin("Request another run:", "reconcile", "")]
            }
            Some(reason::RUN_OUTCOME_UNKNOWN) => vec![
                self.plugin(
                    "Make sure that the run has ended: check its pod and its node. Then run again with the current state:",
                    "resolve",
                    "--decision retry",
                ),
                self.plugin("Or remove pending creates from the state, and run again:", "resolve", "--decision clear"),
                self.plugin("Or start no run until an input changes:", "resolve", "--decision abandon"),
            ],
            Some(reason::PENDING_CREATES) => vec![
                self.plugin(
                    "If the run has ended, and the resources in the cause do not exist, remove them from the state:",
                    "resolve",
                    "--decision clear",
                ),
                self.plugin(
                    "If the run has ended, and the state is correct, for example after `pulumi import`, run again:",
                    "resolve",
                    "--decision retry",
                ),
            ],
            Some(reason::STACK_NOT_FOUND) if !self.is_deleted() => vec![
                self.plugin("Restore the state or correct the backend, and request a run:", "reconcile", ""),
                self.plugin(
                    "Or, if the resources no longer exist, create the Pulumi stack and all resources again:",
                    "resolve",
                    "--decision create",
                ),
                self.plugin("Or start no run until an input changes:", "resolve", "--decision abandon"),
            ],
            Some(reason::STACK_NOT_FOUND) => vec![
                self.plugin("Correct the backend or the names, and retry the destroy:", "resolve", "--decision retry"),
                self.plugin("Or delete the Stack without a destroy:", "resolve", "--decision abandon"),
            ],
            Some(reason::BACKEND_UPGRADE_REQUIRED) => vec![self.plugin(
                "Upgrade the backend with `pulumi state upgrade` of Pulumi CLI 3.274.1 or earlier, and request a run:",
                "reconcile",
                "",
            )],
            Some(reason::PLAN_REJECTED) => vec![self.plugin(
                "Change the source or the spec, or request another run, which creates a new plan:",
                "reconcile",
                "",
            )],
            Some(reason::CANCELED) => {
                vec![self.plugin("Change the source or the spec, or request another run:", "reconcile", "")]
            }
            Some(reason::UPDATE_FAILED | reason::PREVIEW_FAILED) => {
                vec![self.plugin("Correct the cause, and request another run:", "reconcile", "")]
            }
            _ => self.of_cause(),
        }
    }

    /// Returns the steps for a stalled Stack that requires a correction by a user.
    fn of_cause(&self) -> Vec<String> {
        match self.reason {
            Some(reason::DESTROY_UNCONFIRMED) => vec![self.confirm_destroy()],
            Some(reason::UPDATE_CONFLICT) => self.of_conflict(),
            Some(reason::SOURCE_UNAVAILABLE) => self.of_source(),
            Some(reason::WORKSPACE_FAILED) => vec![self.of_workspace()],
            Some(reason::SPEC_INVALID) if self.is_schedule_of_namespace_invalid() => vec![step(
                "Correct the annotation of the namespace:",
                &format!("kubectl edit namespace {}", self.namespace),
            )],
            Some(reason::SPEC_INVALID) => vec![self.edit("Correct the field or the object that the cause names:")],
            Some(reason::ACCESS_DENIED) => vec![self.edit(
                "Refer to an object in the namespace of the Stack. Only the controller can permit other namespaces \
                 (--no-cross-namespace-refs=false):",
            )],
            Some(reason::PULUMI_VERSION_TOO_LOW) => vec![self.edit(
                "Set spec.workspaceTemplate.spec.image to an image with version 3.105.0 or later of the Pulumi CLI:",
            )],
            Some(reason::NAMESPACE_TERMINATING) => vec![self.keep_resources(
                "Destroy the resources with the Pulumi CLI, or keep them. Then delete the Stack without a destroy:",
            )],
            _ => vec![self.edit("Follow the advice in the cause. For example, change the Stack:")],
        }
    }

    /// Returns the steps for results that do not prevent runs: drift, unwritten outputs, the expiry, and policy
    /// violations from a drift check.
    fn of_results(&self, status: &StackStatus) -> Vec<String> {
        let find = |kind: &str| conditions::find(&status.conditions, kind);
        let has_status =
            |condition: Option<&Condition>, value: &str| condition.is_some_and(|found| found.status == value);
        let is_ready = self.phase == Phase::Ready;
        let mut steps = Vec::new();
        if is_ready && status.policy_violations.as_ref().is_some_and(|found| found.mandatory > 0) {
            steps.push(self.correct_policy());
        }
        if is_ready && has_status(find(DRIFTED), "True") {
            steps.push(self.plugin("To correct the drift:", "reconcile", "--refresh"));
        }
        let has_invalid_drift = find(DRIFTED).is_some_and(|found| found.reason == drift_reason::SPEC_INVALID);
        if has_invalid_drift {
            steps.push(self.edit("No drift checks start. Correct spec.drift:"));
        }
        if has_status(find(DRIFTED), "Unknown") && !has_invalid_drift {
            let check = status.drift.as_ref().map(|drift| drift.update_name.as_str()).unwrap_or_default();
            steps.push(self.plugin("The drift check has failed. To read its log:", "logs", check));
        }
        if is_ready && has_status(find(OUTPUTS_WRITTEN), "False") {
            let sentence = "Correct the output or the object in the details, and write the outputs again:";
            steps.push(self.plugin(sentence, "reconcile", ""));
        }
        if !status.orphaned_stacks.is_empty() {
            let ids: Vec<&str> = status.orphaned_stacks.iter().map(|orphaned| orphaned.id.as_str()).collect();
            let (namespace, name, ids) = (&self.namespace, &self.name, ids.join(","));
            steps.push(step(
                "Delete the remaining resources in the details, or manage them with another Stack. Then acknowledge them:",
                &format!("kubectl annotate --overwrite -n {namespace} stack {name} {ANNOTATION_ACKNOWLEDGE}={ids}"),
            ));
        }
        if !self.is_deleted() && has_status(find(EXPIRING), "True") {
            steps.push(self.edit("To keep the Stack, change or remove spec.ttl and spec.expiresAt:"));
        }
        steps
    }

    /// Returns the step for the workspace pod of a stalled Stack. The events of a pod contain its errors, but without a pod
    /// they only repeat the cause.
    fn of_workspace(&self) -> String {
        let status = self.related.workspace.and_then(|workspace| workspace.status.as_ref());
        let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
        let is_invalid = ready.is_some_and(|ready| ready.reason == workspace_reason::SPEC_INVALID);
        let fields = fields::of_template(&self.stack.spec);
        match (is_invalid, self.related.lacks_pod) {
            (true, _) if !fields.is_empty() => self.edit(&format!(
                "Correct the field that the cause names. The Stack sets the fields of the pod in {}:",
                fields.join(", ")
            )),
            (true, _) => self.edit("Correct the field or the object that the cause names:"),
            (false, true) => self.edit("Create the object that the cause names, or correct the Stack:"),
            (false, false) => {
                self.plugin("Correct the cause. The events of the pod contain more messages:", "events", "")
            }
        }
    }

    /// Returns the steps for a source that is unavailable. Only Flux sources have their own reconciliation. The controller
    /// resolves the other sources again when their fields change.
    fn of_source(&self) -> Vec<String> {
        let spec = &self.stack.spec;
        let mut steps = Vec::new();
        if spec.flux_source.is_some() {
            let sentence = "Create the source, or correct its reference or its credentials. Then reconcile the source:";
            steps.push(self.plugin(sentence, "reconcile", "--with-source"));
        }
        if spec.program_ref.is_some() {
            let command = format!("kubectl get programs -n {}", self.namespace);
            steps.push(step("Create or correct the Program. To list the Programs of the namespace:", &command));
        }
        let fields = match fields::of_source(spec) {
            fields if fields.is_empty() => "the fields of the source".to_owned(),
            fields => fields.join(", "),
        };
        let correct = if steps.is_empty() { "Correct" } else { "Or correct" };
        steps.push(self.edit(&format!("{correct} {fields} in the Stack:")));
        let secrets = fields::repository_secrets(spec).into_iter();
        steps.extend(secrets.map(|secret| self.edit_secret("Or correct the credentials of the repository:", secret)));
        steps
    }

    /// Returns the steps for a run that could not start, for example because a Secret lacks a key. Such a run has no log.
    fn of_refused_run(&self) -> Vec<String> {
        let correct =
            self.edit("The run did not start. Correct the object that the cause names, or its reference in the Stack:");
        let secrets = fields::value_secrets(&self.stack.spec);
        let secret = match secrets.as_slice() {
            [secret] => Some(self.edit_secret("To correct the Secret with the values of the Stack:", secret)),
            _ => None,
        };
        std::iter::once(correct).chain(secret).collect()
    }

    /// Returns the steps for a Stack whose Pulumi stack another Stack manages, too.
    fn of_conflict(&self) -> Vec<String> {
        let namespace = &self.namespace;
        let (other, described) = match self.related.same_pulumi_stack {
            Some(other) => (other, format!("Stack {other}")),
            None => (OTHER, "the Stack that the cause names".to_owned()),
        };
        let delete = format!("kubectl delete -n {namespace} stack {other}");
        if !self.is_deleted() {
            let patch = patch_without_destroy(namespace, other);
            return vec![
                self.edit("Set another spec.stack or spec.backend, or set spec.preview:"),
                step(
                    &format!("Or hand the resources over to this Stack. Delete {described} without a destroy:"),
                    &format!("{patch} && {delete}"),
                ),
            ];
        }
        if fields::is_applied_elsewhere(self.stack) {
            return vec![
                self.edit("To destroy the resources, restore the previous spec.stack and spec.backend:"),
                self.keep_resources("Or keep the resources, and delete the Stack without a destroy:"),
            ];
        }
        vec![
            self.keep_resources(&format!(
                "To hand the resources over to {described}, delete this Stack without a destroy:"
            )),
            step(&format!("Or destroy the resources: delete {described}:"), &delete),
        ]
    }

    fn correct_policy(&self) -> String {
        self.plugin(
            "Correct the program, its configuration or the policy. To read the log of the last run:",
            "logs",
            "",
        )
    }

    fn confirm_destroy(&self) -> String {
        let (namespace, name) = (&self.namespace, &self.name);
        let confirmation = self.stack.destroy_confirmation().unwrap_or_default();
        let annotation = format!("{ANNOTATION_CONFIRM_DESTROY}={confirmation}");
        step(
            "Check that the Stack was deleted intentionally, and confirm the destroy:",
            &format!("kubectl annotate --overwrite -n {namespace} stack {name} {annotation}"),
        )
    }

    fn keep_resources(&self, sentence: &str) -> String {
        step(sentence, &patch_without_destroy(&self.namespace, &self.name))
    }

    fn edit_secret(&self, sentence: &str, name: &str) -> String {
        step(sentence, &format!("kubectl edit -n {} secret {name}", self.namespace))
    }

    fn edit(&self, sentence: &str) -> String {
        step(sentence, &format!("kubectl edit -n {} stack {}", self.namespace, self.name))
    }

    fn plugin(&self, sentence: &str, command: &str, arguments: &str) -> String {
        let arguments = if arguments.is_empty() { String::new() } else { format!(" {arguments}") };
        step(sentence, &format!("kubectl pulumi {command} -n {} {}{arguments}", self.namespace, self.name))
    }

    /// Returns whether the run waits for a missing Secret or ConfigMap.
    fn waits_for_reference(&self) -> bool {
        let starts = ["waiting for Secret", "waiting for ConfigMap"];
        phase::cause(self.stack).is_some_and(|cause| starts.iter().any(|start| cause.contains(start)))
    }

    fn is_schedule_of_namespace_invalid(&self) -> bool {
        let annotation = format!("annotation {ANNOTATION_SCHEDULE} of namespace");
        phase::cause(self.stack).is_some_and(|cause| cause.contains(&annotation))
    }

    /// Returns whether the run waits for a run slot or for its concurrency group.
    fn is_queued(&self) -> bool {
        let starts = [conditions::WAITING_FOR_SLOT, conditions::WAITING_FOR_GROUP];
        phase::cause(self.stack).is_some_and(|cause| starts.iter().any(|start| cause.contains(*start)))
    }

    fn is_deleted(&self) -> bool {
        self.stack.metadata.deletion_timestamp.is_some()
    }

    /// Returns whether the Stack is being deleted and the controller destroys its resources first.
    fn destroys(&self) -> bool {
        self.is_deleted() && self.stack.spec.destroy_on_finalize.unwrap_or_default()
    }

    fn last_update(&self) -> Option<&LastUpdate> {
        self.stack.status.as_ref()?.last_update.as_ref()
    }

    fn has_violated_policy(&self) -> bool {
        self.last_update().is_some_and(|last| last.reason.as_deref() == Some(update_reason::POLICY_VIOLATION))
    }

    /// Returns whether a user has decided to abandon the last run.
    fn is_abandoned(&self) -> bool {
        let value = self.stack.status.as_ref().and_then(|status| status.handled_resolve.as_deref());
        let last = self.last_update().and_then(|last| last.name.as_deref());
        value
            .and_then(|value| resolve::parse(value).ok())
            .is_some_and(|resolution| resolution.decision == Decision::Abandon && Some(resolution.update) == last)
    }
}

fn step(sentence: &str, command: &str) -> String {
    format!("{sentence}\n    {command}")
}

fn patch_without_destroy(namespace: &str, name: &str) -> String {
    let patch = "{\"spec\":{\"destroyOnFinalize\":false}}";
    format!("kubectl patch -n {namespace} stack {name} --type merge -p '{patch}'")
}

/// Returns the reason from the condition that best explains the phase.
fn main_reason(stack: &Stack) -> Option<&str> {
    let status = stack.status.as_ref()?;
    let ready = conditions::find(&status.conditions, READY);
    let condition = phase::stalled(status).or_else(|| phase::reconciling(status)).or(ready)?;
    Some(condition.reason.as_str())
}

#[cfg(test)]
mod tests;
