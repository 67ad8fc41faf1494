//! Effects of missing references on the start of a run.

use super::*;
use crate::controller::references::{Reference, ReferencedKind};

#[test]
fn a_run_waits_until_all_referenced_objects_exist() {
    let reference = Reference {
        kind: ReferencedKind::Secret,
        name: "aws".to_owned(),
        referrer: "envFrom".to_owned(),
        directory: "/mounts/aws".to_owned(),
    };
    let mut observed = observed(update(None));
    let checked = observed.references.as_mut().expect("checked");
    checked.missing.push(reference);
    checked.empty.insert("ConfigMap/defaults".to_owned());
    observed.update.metadata.namespace = Some("apps".to_owned());
    let message = "waiting for Secret \"aws\" (envFrom): not found in namespace apps";
    assert_eq!(decide(&observed), Action::AwaitReferences(message.to_owned()));
    let deleted = |mut observed: Observed| {
        observed.update.metadata.deletion_timestamp = Some(Time(now()));
        observed
    };
    assert!(matches!(decide(&deleted(observed.clone())), Action::Record(_)), "it can be deleted meanwhile");
    observed.references.as_mut().expect("checked").missing.clear();
    let Action::Announce(binding) = decide(&observed) else { panic!("it is not announced") };
    assert_eq!(binding.empty_references, ["ConfigMap/defaults"]);
    let unchecked = Observed { references: None, ..observed };
    assert!(waits_because(&unchecked).starts_with("WorkspaceNotReady"), "nothing starts unchecked");
}
