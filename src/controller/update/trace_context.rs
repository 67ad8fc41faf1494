//! Identifiers of a run's trace and spans. The identifiers depend only on the Update. The agent can therefore receive
//! the context of a span before the span exists, and repeated exports contain the same identifiers.
//!
//! All runs that a push triggers share one trace. These runs are the preview that saves the plan, the run that
//! executes the plan, and their retries until the first success. A run with a different cause has its own trace. If
//! such a run is a preview that saves a plan, its trace also contains the run that executes the plan. The root span
//! of the first run is the root of the trace. The root spans of the other runs are its children.

use kube::ResourceExt;
use opentelemetry::trace::{SpanId, TraceId};

use crate::api::auto::Update;
use crate::api::phase_times::PhaseTimes;
use crate::telemetry::traces::{span_id, trace_id};

/// Name that identifies the root span of a run.
const ROOT: &str = "root";

/// Trace of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace: TraceId,
    /// UID of the Update.
    uid: String,
    /// Whether the run is the first run of its trace.
    is_first: bool,
}

impl TraceContext {
    /// Returns the trace of an Update.
    ///
    /// The trace ID is a hash that includes the namespace, because users can change the annotation of an Update. A
    /// user who knows a Stack's UID can therefore add runs to its trace only in the namespace of the Stack.
    pub fn of(update: &Update) -> Self {
        let uid = update.uid().unwrap_or_default();
        let (namespace, name) = (update.namespace().unwrap_or_default(), update.name_any());
        let PhaseTimes { stack, digest, pushed, detected, .. } =
            PhaseTimes::of(update.annotations()).unwrap_or_default();
        let plan = update.spec.plan.as_ref().map(|plan| plan.update_name.as_str());
        let (trace, is_first) = match (&stack, pushed) {
            (Some(stack), Some(pushed)) => {
                (trace_id(&["push", &namespace, stack, &digest, &pushed.to_string()]), detected.is_some())
            }
            // A Stack never reuses the number in an Update name, so the name is unique.
            (Some(stack), None) => (trace_id(&["run", &namespace, stack, plan.unwrap_or(&name)]), plan.is_none()),
            (None, _) => (trace_id(&["update", &uid]), true),
        };
        TraceContext { trace, uid, is_first }
    }

    /// Returns the trace of an Update that a Stack has created or will create. Returns `None` for any other Update.
    pub fn of_stack(update: &Update) -> Option<Self> {
        PhaseTimes::of(update.annotations())?.stack.map(|_| Self::of(update))
    }

    pub fn trace(&self) -> TraceId {
        self.trace
    }

    /// Returns the ID of the run's root span, and the ID of the parent span. The parent ID is invalid if the root
    /// span is the root of the trace.
    pub fn root(&self) -> (SpanId, SpanId) {
        let root_of_trace = span_id(&[ROOT, &self.trace.to_string()]);
        match self.is_first {
            true => (root_of_trace, SpanId::INVALID),
            false => (self.span(ROOT), root_of_trace),
        }
    }

    /// Returns the ID of the run's span that has the given name.
    pub fn span(&self, name: &str) -> SpanId {
        span_id(&[&self.uid, name])
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::artifact::Digest;

    /// Returns the trace of an Update that belongs to a Stack and has the given name, times and plan.
    fn of(name: &str, stack: &str, times: &Value, plan: Option<&str>) -> TraceContext {
        let mut times = times.clone();
        times["stack"] = json!(stack);
        let plan = plan.map(|name| json!({"updateName": name, "fileDigest": Digest::of(b"plan")}));
        let update: Update = serde_json::from_value(json!({
            "apiVersion": "auto.pulumi.com/v1alpha1", "kind": "Update",
            "metadata": {
                "name": name, "namespace": "apps", "uid": format!("uid of {name}"),
                "annotations": {"auto.pulumi.com/phase-times": times.to_string()},
            },
            "spec": {"workspaceName": "app", "stackName": "dev", "type": "up", "plan": plan},
        }))
        .unwrap();
        TraceContext::of_stack(&update).expect("a trace")
    }

    #[test]
    fn all_runs_of_a_push_have_one_trace_with_one_root() {
        let preview = of("app-1", "uid", &json!({"digest": "sha256:a", "pushed": 5, "detected": 5}), None);
        let later = json!({"digest": "sha256:a", "pushed": 5});
        let (up, retry) = (of("app-2", "uid", &later, Some("app-1")), of("app-3", "uid", &later, None));
        assert_eq!((up.trace, retry.trace), (preview.trace, preview.trace));
        let (root, parent) = preview.root();
        assert_eq!((parent, up.root().1, retry.root().1), (SpanId::INVALID, root, root));
        assert_ne!(up.root().0, retry.root().0);
        assert_ne!(up.span("run"), retry.span("run"));
        for (stack, times) in [
            ("other", later),
            ("uid", json!({"digest": "sha256:b", "pushed": 5})),
            ("uid", json!({"digest": "sha256:a", "pushed": 6})),
        ] {
            assert_ne!(of("app-2", stack, &times, None).trace, preview.trace, "{stack} {times}");
        }
    }

    #[test]
    fn a_trace_of_another_cause_contains_the_run_of_its_plan() {
        let times = json!({"digest": "sha256:a", "requested": 9});
        let preview = of("app-4", "uid", &times, None);
        let up = of("app-5", "uid", &times, Some("app-4"));
        assert_eq!((up.trace, up.root().1), (preview.trace, preview.root().0));
        assert_eq!(preview.root().1, SpanId::INVALID);
        let drift = of("app-6", "uid", &times, None);
        assert_ne!(drift.trace, preview.trace);
        assert_eq!(drift.root().1, SpanId::INVALID);
    }
}
