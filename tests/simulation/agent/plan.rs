//! Plans, in the formats of the agent: a JSON object for an `up`, and a list of URNs for a destroy.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use pulumi_controller::pulumi::arguments::OperationKind;
use serde_json::{Value, json};

use super::cli::{Plan, Step};

/// Returns the compressed plan of a preview.
pub fn of_preview(kind: OperationKind, steps: &[Step]) -> Vec<u8> {
    let plan = match kind {
        OperationKind::PreviewDestroy => json!(deletions_of(steps)),
        _ => {
            let steps = steps.iter().filter(|step| step.operation != "missing");
            let resource = |step: &Step| (step.urn.clone(), json!({"steps": [step.operation], "goal": step.to}));
            json!({"resourcePlans": steps.map(resource).collect::<BTreeMap<_, _>>()})
        }
    };
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    let compressed = encoder.write_all(plan.to_string().as_bytes()).and_then(|()| encoder.finish());
    compressed.unwrap_or_default()
}

/// Returns the URNs that a destroy deletes.
pub fn deletions_of(steps: &[Step]) -> BTreeSet<String> {
    steps.iter().filter(|step| step.operation == "delete").map(|step| step.urn.clone()).collect()
}

/// Returns the plan of an `up`, or `None` if the plan is invalid.
pub fn of_up(compressed: &[u8]) -> Option<Plan> {
    let plan = decompressed(compressed)?;
    let resource = |(urn, resource): (&String, &Value)| {
        let operation = resource.pointer("/steps/0").and_then(Value::as_str).unwrap_or_default().to_owned();
        let goal = resource.get("goal").and_then(Value::as_str).unwrap_or_default().to_owned();
        (urn.clone(), (operation, goal))
    };
    Some(plan.get("resourcePlans")?.as_object()?.iter().map(resource).collect())
}

/// Returns the plan of a destroy, or `None` if the plan is invalid.
pub fn deletions(compressed: &[u8]) -> Option<BTreeSet<String>> {
    let urns = decompressed(compressed)?;
    urns.as_array()?.iter().map(|urn| urn.as_str().map(str::to_owned)).collect()
}

fn decompressed(compressed: &[u8]) -> Option<Value> {
    let mut plan = Vec::new();
    GzDecoder::new(compressed).read_to_end(&mut plan).ok()?;
    serde_json::from_slice(&plan).ok()
}
