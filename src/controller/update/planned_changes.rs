//! Converts the changes that a preview reports.

use crate::api::auto::{PlannedResource, UpdatePlan};
use crate::api::{bounds, conditions};
use crate::artifact::Digest;
use crate::rpc::proto;

/// Returns the changes that a preview reports, or `None` for any other operation.
pub fn changes(result: &proto::Result) -> Option<UpdatePlan> {
    if result.plan.is_empty() && result.planned_steps.is_empty() && result.planned_step_count == 0 {
        return None;
    }
    let limit = |limit: u32| usize::try_from(limit).unwrap_or(usize::MAX);
    let line = |text: &str, most: u32| conditions::shorten(&text.replace(|c: char| c.is_control(), " "), limit(most));
    let resource = |step: &proto::PlannedStep| PlannedResource {
        urn: line(&step.urn, bounds::URN),
        operation: line(&step.operation, bounds::WORD),
        properties: step
            .properties
            .iter()
            .take(limit(bounds::PLANNED_PROPERTIES))
            .map(|property| line(property, bounds::WORD))
            .collect(),
    };
    let listed = i64::try_from(result.planned_steps.len()).unwrap_or(i64::MAX);
    Some(UpdatePlan {
        file_digest: (!result.plan.is_empty()).then(|| Digest::of(&result.plan)),
        resources: result.planned_steps.iter().take(limit(bounds::PLANNED_RESOURCES)).map(resource).collect(),
        resource_count: i64::from(result.planned_step_count).max(listed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reported_changes_are_bounded() {
        assert_eq!(changes(&proto::Result::default()), None);
        let step = proto::PlannedStep {
            urn: format!("urn:{}\n", "u".repeat(9000)),
            operation: "delete".to_owned(),
            properties: vec!["p".repeat(5000); 50],
        };
        let result =
            proto::Result { planned_steps: vec![step; 300], plan: b"plan".to_vec(), ..proto::Result::default() };
        let plan = changes(&result).expect("the result has changes");
        assert_eq!((plan.resources.len(), plan.resource_count), (200, 300));
        assert_eq!(plan.file_digest, Some(Digest::of(b"plan")));
        let resource = &plan.resources[0];
        assert!(resource.urn.len() <= 4096 && !resource.urn.contains('\n'));
        assert!(resource.properties.len() == 20 && resource.properties[0].len() <= 1024);
    }
}
