//! Parameters of an operation, without its source and settings.

use crate::agent::cancellation::Limits;
use crate::agent::refusal::Refusal;
use crate::pulumi::arguments::{OperationKind, Options};
use crate::pulumi::failure::lock::ExitedProcess;
use crate::pulumi::stack_name::Qualified;
use crate::rpc::proto;

/// Parsed parameters of a request. Unknown values are errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRequest {
    pub kind: OperationKind,
    pub limits: Limits,
    pub pending_creates: proto::PendingCreates,
    /// Exited CLI processes of interrupted runs. The agent can remove the locks of these processes. If the value is
    /// `None`, the agent must not remove any lock, even if the lock belongs to an exited process in the agent's own
    /// pod.
    pub exited_processes: Option<Vec<ExitedProcess>>,
    /// Pulumi stack that contains the applied resources. A destroy of any other Pulumi stack fails. If the requested
    /// stack name has no organization, the run adds the organization of this stack.
    applied_stack: Option<proto::PulumiStack>,
    /// Whether the operation may create the applied stack.
    create_stack: bool,
    /// Pulumi stacks that other Stacks have applied.
    applied_by_others: Vec<proto::AppliedByOther>,
    options: proto::RunOptions,
    /// Compressed plan of an earlier preview. Empty for a run without a plan.
    plan: Vec<u8>,
}

impl OperationRequest {
    pub fn of(request: &proto::RunRequest) -> Result<Self, Refusal> {
        let options = request.options.clone().unwrap_or_default();
        let kind = kind(request.kind, options.preview_of)?;
        check_plan(kind, &options, !request.plan.is_empty())?;
        let pending_creates = proto::PendingCreates::try_from(request.pending_creates).map_err(|_| {
            let number = request.pending_creates;
            Refusal::Invalid(format!("unsupported value {number} for pending creates"))
        })?;
        let limits = Limits::from_seconds(request.timeout_seconds, request.idle_timeout_seconds);
        let exited_processes = request.lock_recovery.then(|| request.dead_runs.iter().map(exited_process).collect());
        Ok(OperationRequest {
            kind,
            limits,
            pending_creates,
            exited_processes,
            applied_stack: request.applied_stack.clone(),
            create_stack: request.create_stack,
            applied_by_others: request.applied_by_others.clone(),
            options,
            plan: request.plan.clone(),
        })
    }

    /// Returns whether the run must fail if the resources have drifted from the state. Such a run does not change any
    /// resources.
    pub fn expects_no_drift(&self) -> bool {
        self.options.expect_no_refresh_changes && self.kind == OperationKind::Up
    }

    /// Returns whether the operation creates the stack if it is missing.
    pub fn creates(&self, stack: &Qualified<'_>) -> bool {
        self.kind.is_forward() && !self.options.stack_must_exist && !self.expects_state(stack)
    }

    /// Returns whether the state of this stack must contain resources, because earlier runs have created them. If the
    /// state is missing, the resources probably still exist.
    pub fn expects_state(&self, stack: &Qualified<'_>) -> bool {
        let has_resources = |applied: Qualified<'_>| !self.create_stack && !applied.differs_from(stack);
        self.kind.is_destroy() || self.applied().is_some_and(has_resources)
    }

    /// Returns whether this operation destroys a Pulumi stack that does not manage the resources, or previews such a
    /// destroy.
    pub fn destroys_another(&self, stack: &Qualified<'_>) -> bool {
        self.kind.is_destroy() && self.applied().is_some_and(|applied| applied.differs_from(stack))
    }

    /// Returns the name of the other Stack that has applied this Pulumi stack. Returns `None` if this Stack has also
    /// applied it: the controller compares the applied stacks before the run.
    ///
    /// An unknown part does not distinguish two stacks: without this rule, a run without an organization could delete the
    /// resources of another Stack. Only a first run compares its stack with an unknown backend. The applied stacks of
    /// Stacks that have migrated from the Pulumi Kubernetes Operator lack the backend until the next run.
    pub fn owner(&self, stack: &Qualified<'_>) -> Option<&str> {
        let applied = self.applied();
        let is_applied = |applied: &Qualified<'_>| applied.backend.is_some() && !applied.differs_from(stack);
        if applied.as_ref().is_some_and(is_applied) {
            return None;
        }
        // The controller sends a file only if both Stacks mount it, so an unknown backend is not this file.
        let is_file = stack.backend.is_some_and(|url| url.starts_with("file:"));
        let is_comparable = |other: &Qualified<'_>| other.backend.is_some() || (applied.is_none() && !is_file);
        let is_owned = |other: &&proto::AppliedByOther| {
            let other = other.stack.as_ref().map(qualified);
            other.is_some_and(|other| is_comparable(&other) && !other.differs_from(stack))
        };
        self.applied_by_others.iter().find(is_owned).map(|other| other.owner.as_str())
    }

    /// Returns the stack that manages the resources.
    pub fn applied(&self) -> Option<Qualified<'_>> {
        self.applied_stack.as_ref().map(qualified)
    }

    /// Returns the secrets provider for a new stack, if the request contains one.
    pub fn secrets_provider(&self) -> Option<&str> {
        Some(self.options.secrets_provider.as_str()).filter(|provider| !provider.is_empty())
    }

    /// Returns the compressed plan that the operation must follow. Empty for an operation without a plan.
    pub fn plan(&self) -> &[u8] {
        &self.plan
    }

    /// Returns whether the CLI itself must follow a plan.
    pub fn follows_cli_plan(&self) -> bool {
        !self.plan.is_empty() && self.kind == OperationKind::Up
    }

    /// Returns whether the result of the preview must contain its plan.
    pub fn saves_plan(&self) -> bool {
        self.options.save_plan
    }

    /// Returns whether the CLI itself must save the plan of the preview.
    pub fn saves_cli_plan(&self) -> bool {
        self.options.save_plan && self.kind == OperationKind::Preview
    }

    /// Returns the additional CLI options.
    pub fn options(&self) -> Options<'_> {
        let options = &self.options;
        Options {
            targets: &options.targets,
            target_dependents: options.target_dependents,
            replace: &options.replace,
            parallel: Some(options.parallel).filter(|number| *number > 0),
            continue_on_error: options.continue_on_error,
            expect_no_changes: options.expect_no_changes,
            remove: options.remove,
            run_program: options.run_program,
            log_level: options.log_level,
            policy_packs: &[],
        }
    }
}

fn qualified(stack: &proto::PulumiStack) -> Qualified<'_> {
    let known = |part: &str| !part.is_empty();
    Qualified {
        name: &stack.name,
        project: Some(stack.project.as_str()).filter(|part| known(part)),
        backend: Some(stack.backend.as_str()).filter(|part| known(part)),
    }
}

/// Returns the operation kind. For a preview, `preview_of` is the operation whose changes the preview reports.
fn kind(kind: i32, preview_of: i32) -> Result<OperationKind, Refusal> {
    use proto::{OperationKind as Kind, PreviewOf};
    let unsupported = || Refusal::Invalid(format!("unsupported operation kind {kind}"));
    let of = PreviewOf::try_from(preview_of)
        .map_err(|_| Refusal::Invalid(format!("unsupported value {preview_of} for the previewed operation")))?;
    Ok(match (Kind::try_from(kind).map_err(|_| unsupported())?, of) {
        (Kind::Preview, PreviewOf::Up) => OperationKind::Preview,
        (Kind::Preview, PreviewOf::Destroy) => OperationKind::PreviewDestroy,
        (Kind::Preview, PreviewOf::Refresh) => OperationKind::PreviewRefresh,
        (Kind::Up, PreviewOf::Up) => OperationKind::Up,
        (Kind::Destroy, PreviewOf::Up) => OperationKind::Destroy,
        (Kind::Refresh, PreviewOf::Up) => OperationKind::Refresh,
        (Kind::Unspecified, _) => return Err(unsupported()),
        (_, PreviewOf::Destroy | PreviewOf::Refresh) => {
            return Err(Refusal::Invalid("only a preview can report the changes of another operation".to_owned()));
        }
    })
}

/// Returns an error if an operation of this kind cannot save or follow the plan.
fn check_plan(kind: OperationKind, options: &proto::RunOptions, has_plan: bool) -> Result<(), Refusal> {
    let problem = match kind {
        OperationKind::PreviewRefresh if options.save_plan => "a preview of a refresh has no plan to save",
        _ if options.save_plan && !kind.is_preview() => "only a preview can save a plan",
        OperationKind::Up | OperationKind::Destroy => return Ok(()),
        _ if has_plan => "only an up or a destroy can follow a plan",
        _ => return Ok(()),
    };
    Err(Refusal::Invalid(problem.to_owned()))
}

fn exited_process(run: &proto::DeadRun) -> ExitedProcess {
    let permalink = Some(run.permalink.clone()).filter(|permalink| !permalink.is_empty());
    ExitedProcess { host: run.host.clone(), pid: run.pid, started: run.started, ended: run.ended, permalink }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_values_are_rejected_and_lock_recovery_passes_interrupted_runs() {
        let up = proto::RunRequest { kind: proto::OperationKind::Up.into(), ..Default::default() };
        for (request, word) in [
            (proto::RunRequest { kind: 0, ..up.clone() }, "kind 0"),
            (proto::RunRequest { kind: 99, ..up.clone() }, "kind 99"),
            (proto::RunRequest { pending_creates: 99, ..up.clone() }, "value 99"),
        ] {
            let refusal = OperationRequest::of(&request).unwrap_err().to_string();
            assert!(refusal.contains(word), "{refusal}");
        }
        let stack = Qualified { name: "dev", project: None, backend: None };
        let asks = |kind: proto::OperationKind, options: proto::RunOptions| {
            let request = proto::RunRequest { kind: kind.into(), options: Some(options), ..up.clone() };
            let parameters = OperationRequest::of(&request).unwrap();
            (parameters.creates(&stack), parameters.expects_no_drift())
        };
        let drift = proto::RunOptions { expect_no_refresh_changes: true, ..Default::default() };
        let existing = proto::RunOptions { stack_must_exist: true, ..Default::default() };
        assert_eq!(asks(proto::OperationKind::Up, drift.clone()), (true, true));
        assert_eq!(asks(proto::OperationKind::Up, existing), (false, false));
        assert_eq!(asks(proto::OperationKind::Preview, drift.clone()), (true, false));
        assert_eq!(asks(proto::OperationKind::Destroy, drift), (false, false));
        let dead = proto::DeadRun { host: "web-0".into(), pid: 42, started: 1, ended: 2, ..Default::default() };
        for (lock_recovery, dead_runs, expected) in [
            (false, vec![dead.clone()], None),
            (false, vec![], None),
            (true, vec![], Some(vec![])),
            (true, vec![dead.clone()], Some(vec![exited_process(&dead)])),
        ] {
            let request = proto::RunRequest { lock_recovery, dead_runs, ..up.clone() };
            assert_eq!(OperationRequest::of(&request).unwrap().exited_processes, expected);
        }
    }

    #[test]
    fn plans_and_previews_are_limited_to_the_operations_that_support_them() {
        use proto::{OperationKind as Kind, PreviewOf};
        let table: [(Kind, i32, bool, bool, Result<OperationKind, &str>); 15] = [
            (Kind::Preview, PreviewOf::Up.into(), false, false, Ok(OperationKind::Preview)),
            (Kind::Preview, PreviewOf::Up.into(), true, false, Ok(OperationKind::Preview)),
            (Kind::Preview, PreviewOf::Destroy.into(), true, false, Ok(OperationKind::PreviewDestroy)),
            (Kind::Preview, PreviewOf::Refresh.into(), false, false, Ok(OperationKind::PreviewRefresh)),
            (Kind::Preview, PreviewOf::Refresh.into(), true, false, Err("a preview of a refresh has no plan")),
            (Kind::Preview, 99, false, false, Err("value 99")),
            (Kind::Up, 0, false, true, Ok(OperationKind::Up)),
            (Kind::Destroy, 0, false, true, Ok(OperationKind::Destroy)),
            (Kind::Preview, 0, false, true, Err("only an up or a destroy")),
            (Kind::Preview, PreviewOf::Destroy.into(), false, true, Err("only an up or a destroy")),
            (Kind::Refresh, 0, false, true, Err("only an up or a destroy")),
            (Kind::Up, 0, true, false, Err("only a preview can save")),
            (Kind::Destroy, 0, true, true, Err("only a preview can save")),
            (Kind::Refresh, 0, true, false, Err("only a preview can save")),
            (Kind::Up, PreviewOf::Destroy.into(), false, false, Err("only a preview can report")),
        ];
        for (kind, preview_of, save_plan, has_plan, expected) in table {
            let options = Some(proto::RunOptions { preview_of, save_plan, ..Default::default() });
            let plan = if has_plan { vec![1] } else { Vec::new() };
            let request = proto::RunRequest { kind: kind.into(), options, plan, ..Default::default() };
            match (OperationRequest::of(&request), expected) {
                (Ok(parameters), Ok(kind)) => assert_eq!(parameters.kind, kind),
                (Err(Refusal::Invalid(problem)), Err(words)) => assert!(problem.contains(words), "{problem}"),
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
    }

    #[test]
    fn only_a_stack_without_resources_is_created() {
        use proto::OperationKind::{Destroy, Preview, Refresh, Up};
        // Columns: the operation, the backend of the applied stack, the permission to create this stack, whether the
        // operation creates the stack, and whether its state must contain resources.
        let rows = [
            (Up, None, false, true, false),
            (Up, Some("s3://a"), false, false, true),
            (Up, Some("s3://a"), true, true, false),
            (Up, Some("s3://b"), false, true, false),
            (Preview, Some("s3://a"), false, false, true),
            (Preview, Some("s3://b"), false, true, false),
            (Refresh, Some("s3://a"), false, false, true),
            (Refresh, None, false, false, false),
            (Destroy, None, false, false, true),
            (Destroy, Some("s3://a"), true, false, true),
        ];
        for (kind, backend, create_stack, creates, expects_state) in rows {
            let applied =
                |url: &str| proto::PulumiStack { name: "dev".into(), project: "web".into(), backend: url.into() };
            let applied_stack = backend.map(applied);
            let request = proto::RunRequest { kind: kind.into(), applied_stack, create_stack, ..Default::default() };
            let stack = Qualified { name: "dev", project: Some("web"), backend: Some("s3://a") };
            let parameters = OperationRequest::of(&request).unwrap();
            let found = (parameters.creates(&stack), parameters.expects_state(&stack));
            assert_eq!(found, (creates, expects_state), "{kind:?} {backend:?} {create_stack}");
        }
    }

    #[test]
    fn a_run_in_the_pulumi_stack_of_another_stack_is_detected() {
        let of =
            |backend: &str| proto::PulumiStack { name: "dev".into(), project: "web".into(), backend: backend.into() };
        let cloud = |name: &str| proto::PulumiStack { name: name.into(), ..of("https://api.pulumi.com") };
        let api = proto::PulumiStack { project: "api".into(), ..of("s3://a") };
        // Columns: the applied stack of this Stack and of the other Stack, the name and the backend of the run, and
        // whether the run fails.
        let rows = [
            ("a first run", None, of("s3://a"), ("dev", "s3://a"), true),
            ("another spelling", None, of("s3://a/?region=x"), ("organization/web/dev", "s3://a"), true),
            ("another backend", None, of("s3://b"), ("dev", "s3://a"), false),
            ("another project", None, api, ("dev", "s3://a"), false),
            ("another name", None, of("s3://a"), ("prod", "s3://a"), false),
            ("a backend that has changed", Some(of("s3://b")), of("s3://a"), ("dev", "s3://a"), true),
            ("both have applied it", Some(of("s3://a")), of("s3://a"), ("dev", "s3://a"), false),
            ("an unknown backend before the first run", None, of(""), ("dev", "s3://a"), true),
            ("an unknown backend beside a private file", None, of(""), ("dev", "file:///state"), false),
            ("a file on a shared volume", None, of("file:///state"), ("dev", "file:///state"), true),
            ("an unknown backend after a run", Some(of("s3://b")), of(""), ("dev", "s3://a"), false),
            ("two unknown backends", Some(of("")), of(""), ("dev", "s3://a"), false),
            ("the other has reported its backend", Some(of("")), of("s3://a"), ("dev", "s3://a"), true),
            ("an unknown organization", None, cloud("acme/dev"), ("dev", "https://api.pulumi.com"), true),
            ("another organization", None, cloud("acme/dev"), ("other/dev", "https://api.pulumi.com"), false),
        ];
        let kinds = [
            proto::OperationKind::Up,
            proto::OperationKind::Preview,
            proto::OperationKind::Refresh,
            proto::OperationKind::Destroy,
        ];
        for (what, applied_stack, other, (name, backend), expected) in rows {
            let applied_by_others = vec![proto::AppliedByOther { owner: "first".into(), stack: Some(other) }];
            for kind in kinds {
                let (applied_stack, applied_by_others) = (applied_stack.clone(), applied_by_others.clone());
                let kind = kind.into();
                let request = proto::RunRequest { kind, applied_stack, applied_by_others, ..Default::default() };
                let stack = Qualified { name, project: Some("web"), backend: Some(backend) };
                let owner = OperationRequest::of(&request).unwrap().owner(&stack).map(str::to_owned);
                assert_eq!(owner.as_deref(), expected.then_some("first"), "{what}");
            }
        }
    }

    #[test]
    fn a_destroy_of_a_stack_other_than_the_applied_stack_is_detected() {
        let applied = proto::PulumiStack { name: "dev".into(), project: "web".into(), backend: "s3://a".into() };
        let destroys_another = |kind: proto::OperationKind, applied: Option<proto::PulumiStack>, backend| {
            let request = proto::RunRequest { kind: kind.into(), applied_stack: applied, ..Default::default() };
            let stack = Qualified { name: "dev", project: Some("web"), backend };
            OperationRequest::of(&request).unwrap().destroys_another(&stack)
        };
        let destroy = proto::OperationKind::Destroy;
        assert!(destroys_another(destroy, Some(applied.clone()), Some("s3://b")));
        assert!(!destroys_another(destroy, Some(applied.clone()), Some("s3://a")));
        assert!(!destroys_another(destroy, Some(applied.clone()), None), "the applied stack is unknown");
        assert!(!destroys_another(destroy, None, Some("s3://b")), "no stack was applied");
        assert!(
            !destroys_another(proto::OperationKind::Up, Some(applied), Some("s3://b")),
            "only a destroy is checked"
        );
    }
}
