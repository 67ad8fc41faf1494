//! Text of a plan.

use pulumi_controller::api::pulumi::StackPlan;
use pulumi_controller::text::printable_line;

/// Returns the numbers of resources by operation, such as `1 create, 12 same`.
pub fn changes(plan: &StackPlan) -> String {
    let changes: Vec<String> = plan.changes.iter().map(|(operation, count)| format!("{count} {operation}")).collect();
    printable_line(&changes.join(", "))
}

/// Returns one line for each of the plan's first resource changes, and one line with the number of remaining changes.
pub fn resources(plan: &StackPlan, limit: usize) -> Vec<String> {
    let resources = plan.resources.iter().take(limit).map(|resource| {
        // The Pulumi program chooses the resource name, so the name could contain line breaks and text that imitates
        // other resources.
        printable_line(&format!("{:<8} {} {}", resource.operation, resource.kind(), resource.name()))
    });
    let mut lines: Vec<String> = resources.collect();
    let more = plan.resource_count.saturating_sub(i64::try_from(lines.len()).unwrap_or(i64::MAX));
    if more > 0 {
        lines.push(format!("and {more} more in the log of run {}", plan.update_name));
    }
    lines
}
