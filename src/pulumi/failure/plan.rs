//! Detects in the engine errors how an `up` deviated from its plan.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use serde::Deserialize;

use super::super::events::Diagnostic;
use super::super::run_summary::RunSummary;
use super::cause::{is_unseen, is_verdict, resource, type_and_name};
use super::cli_error::error_text;

/// Part of an engine error that precedes the deviating properties. The engine also prints the property values,
/// including secret values.
const PROPERTIES: &str = "violates plan: properties changed: ";
/// Part of the engine error for a resource definition that deviates.
const VIOLATION: &str = "violates plan: ";
/// Part of the engine error for an operation that the plan does not allow.
const FORBIDDEN: &str = " is not allowed by the plan: ";
/// Part of the engine error for an operation that differs from the planned operation.
const CONSTRAINED: &str = "this resource is constrained to ";
/// Prefix of the CLI error for a plan whose secret values are encrypted with another key.
const OTHER_KEY: &str = "decrypting secret value: ";
/// Maximum number of candidate resources that a message lists if the error contains no URN.
const MAX_CANDIDATES: usize = 5;
/// Beginning of the message that reports a deviation.
const DEVIATION: &str = "the run deviated from its plan";
/// End of each message that reports a deviation.
const NEXT: &str = "the controller makes a new plan";

/// Returns the message for users if a failed `up` has deviated from its plan. `stderr_tail` is the last part of what
/// the CLI wrote to stderr. `unnamed` describes the resources whose URN the engine omits from its errors.
pub fn violation(stderr_tail: &str, run: &RunSummary, unnamed: Option<&str>) -> Option<String> {
    let stderr = error_text(stderr_tail);
    if !run.began() {
        let is_other_key = stderr.lines().any(|line| line.starts_with(OTHER_KEY));
        return is_other_key.then(|| {
            format!("the secrets in the plan cannot be decrypted with the passphrase or key of the stack; {NEXT}")
        });
    }
    let errors: Vec<Diagnostic> = run.errors().into_iter().filter(|error| !is_verdict(error)).collect();
    // After an operation has failed, the engine also reports an error for each planned operation that depends on the
    // failed operation: see `is_unseen`. These errors matter only if there are no others.
    let (unseen, others): (Vec<_>, Vec<_>) = errors.iter().partition(|error| is_unseen(error));
    let deviations: Vec<String> = match others.is_empty() {
        true => unseen.into_iter().filter_map(|error| deviation(error, unnamed)).collect(),
        false => others.into_iter().filter_map(|error| deviation(error, unnamed)).collect(),
    };
    if !deviations.is_empty() {
        return Some(format!("{DEVIATION}: {}\n({NEXT})", deviations.join("\n")));
    }
    let is_silent = errors.is_empty() && stderr.is_empty() && run.result() == Some("failed");
    // If a stack output deviates, version 3.259 of the engine fails without an error. A failed program is not the cause
    // of such a failure, because the language host reports an error for each failed program.
    (is_silent && !reports_error(run)).then(|| {
        format!("{DEVIATION}: the outputs of the stack differ from the outputs in the plan (the CLI does not report which outputs)\n({NEXT})")
    })
}

/// Describes the resources to which an error without a URN can refer. `urns` contains the candidates' URNs.
pub fn describe_candidates(urns: &[String]) -> Option<String> {
    let named = urns.iter().take(MAX_CANDIDATES).filter_map(|urn| type_and_name(urn));
    let named = named.map(|(resource_type, name)| format!("{resource_type} {name}")).collect::<Vec<_>>().join(", ");
    match urns.len() {
        0 => None,
        1 => Some(named),
        count if count > MAX_CANDIDATES => Some(format!("one of {named} and {} more", count - MAX_CANDIDATES)),
        _ => Some(format!("one of {named}")),
    }
}

/// Returns the URNs of the resources that a plan deletes. `plan` reads a plan file that the CLI wrote.
pub fn deletions(plan: impl Read) -> Result<BTreeSet<String>, serde_json::Error> {
    let plan: Plan = serde_json::from_reader(plan)?;
    let is_deletion = |resource: &ResourcePlan| resource.steps.iter().any(|step| step == "delete");
    Ok(plan.resource_plans.into_iter().filter(|(_, resource)| is_deletion(resource)).map(|(urn, _)| urn).collect())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Plan {
    #[serde(default)]
    resource_plans: BTreeMap<String, ResourcePlan>,
}

#[derive(Deserialize)]
struct ResourcePlan {
    #[serde(default)]
    steps: Vec<String>,
}

/// Returns whether an engine error reports a deletion that deviates from the plan. The engine omits the resource's URN
/// from this error.
pub fn has_unnamed_deletion(run: &RunSummary) -> bool {
    run.errors().iter().any(|error| error.urn.is_empty() && error.message.contains(FORBIDDEN))
}

/// Returns whether the language host has printed an error.
fn reports_error(run: &RunSummary) -> bool {
    run.program_stderr().iter().any(|text| text.to_lowercase().contains("error"))
}

/// Describes the deviation that an engine error reports.
fn deviation(error: &Diagnostic, unnamed: Option<&str>) -> Option<String> {
    let message = error.message.trim();
    let what = if let Some((_, names)) = without_values(message).0.split_once(PROPERTIES) {
        let mut properties: Vec<String> = names.split(", ").filter_map(property).collect();
        properties.dedup();
        if properties.is_empty() { "properties changed".to_owned() } else { properties.join(", ") }
    } else if let Some((_, what)) = message.split_once(VIOLATION) {
        match what {
            "resource unexpectedly not deleted" => "the plan deletes this resource, but the run keeps it".to_owned(),
            other => other.trim_end_matches(':').to_owned(),
        }
    } else if let Some((operation, limit)) = message.split_once(FORBIDDEN) {
        let planned = match limit.strip_prefix(CONSTRAINED) {
            Some("same") => "the plan keeps this resource unchanged".to_owned(),
            Some(planned) => format!("the planned operation is {planned}"),
            None => "the plan contains no such operation".to_owned(),
        };
        format!("operation {operation}, but {planned}")
    } else if is_unseen(error) {
        "the planned operation did not take place".to_owned()
    } else {
        return None;
    };
    Some(match (resource(error), unnamed) {
        (Some((resource_type, name)), _) => format!("{resource_type} {name}: {what}"),
        (None, Some(unnamed)) if error.urn.is_empty() => format!("{unnamed}: {what}"),
        (None, _) if error.urn.is_empty() => format!("unknown resource: {what}"),
        (None, _) => format!("stack: {what}"),
    })
}

/// Describes a property that deviates. `text` starts with two characters: the planned change and the actual change.
fn property(text: &str) -> Option<String> {
    let mut characters = text.chars();
    let (planned, actual) = (characters.next()?, characters.next()?);
    let name = characters.as_str();
    let verb = |change: char| match change {
        '+' => Some("add"),
        '~' => Some("change"),
        '-' => Some("remove"),
        '=' => Some("keep"),
        _ => None,
    };
    let (expected, found) = (verb(planned)?, verb(actual)?);
    Some(match planned == actual {
        true => format!("property {name} differs from its planned value"),
        false => format!("property {name} (planned: {expected}, found: {found})"),
    })
}

/// Removes the deviating properties' values from an engine error, because a value can be secret. Also returns whether
/// the error contains every value completely.
pub fn without_values(text: &str) -> (String, bool) {
    let Some((before, list)) = text.split_once(PROPERTIES) else { return (text.to_owned(), true) };
    let mut names = Vec::new();
    let mut rest = list;
    let is_complete = loop {
        let end = rest.find(['[', ',', '\n']).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        if !is_change(name) {
            break false;
        }
        names.push(name.trim_end());
        let Some(after) = skip_value(after) else { break false };
        match after.strip_prefix(", ") {
            Some(next) => rest = next,
            None => break after.trim().is_empty(),
        }
    };
    (format!("{before}{PROPERTIES}{}", names.join(", ")), is_complete)
}

/// Returns whether a string consists of two changes and a property name.
fn is_change(text: &str) -> bool {
    let changes = text.chars().take(2).filter(|change| "+~-=".contains(*change)).count();
    changes == 2 && text.chars().count() > 2
}

/// Skips a value in brackets at the start of a string, if any, and returns the rest of the string. Returns `None` if
/// the string ends within the value.
fn skip_value(text: &str) -> Option<&str> {
    if !text.starts_with('[') {
        return Some(text);
    }
    let mut open = Vec::new();
    for (position, character) in text.char_indices() {
        match character {
            '[' | '{' => open.push(character),
            ']' | '}' => {
                let opening = open.pop()?;
                if (opening == '[') != (character == ']') {
                    return None;
                }
                if open.is_empty() {
                    return text.get(position + 1..);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests;
