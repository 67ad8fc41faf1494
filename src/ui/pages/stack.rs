//! Page of a Stack.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use axum::http::StatusCode;
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use maud::{Markup, html};
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::form_urlencoded;

use super::frame::{self, Place};
use super::parts;
use super::plan_review::{Decided, Review};
use super::resources;
use super::stack_forms::Forms;
use crate::api::auto::{PlannedResource, Update, Workspace};
use crate::api::columns;
use crate::api::pulumi::{Stack, StackPlan, StackStatus};
use crate::runtime::reads::Reader;
use crate::ui::error::UiError;
use crate::ui::graph::{Graph, Node};
use crate::ui::permissions::Visible;
use crate::ui::response;
use crate::ui::row::{self, Key, Row};
use crate::ui::state::{Answer, Ui, Visitor};
use crate::view::dependencies::dependencies_of;
use crate::view::steps::{Related, State};
use crate::view::{phase, runs};

/// Maximum number of outputs that the page shows.
const MAX_OUTPUTS: usize = 200;
/// Maximum length of an output, in characters.
const MAX_OUTPUT: usize = 2000;
/// Placeholder for a secret output value in the status.
const SECRET: &str = "[secret]";

/// Objects of the page.
struct Facts {
    stack: Stack,
    /// The open run or, if no run is open, the last run. `None` if the user may not read the Update.
    update: Option<Update>,
    /// The preview that has saved the plan. `None` if the user may not read the Update.
    preview: Option<Update>,
    /// The Workspace. `None` if a run is open, or if the user may not read the Workspace.
    workspace: Option<Workspace>,
    graph: Graph,
    /// Action that the user has performed.
    done: Option<&'static str>,
    /// Decision about a plan that the user has just recorded.
    decided: Option<Decided>,
}

/// Returns the page of a Stack.
pub(in crate::ui) async fn answer(ui: &Ui, visitor: &Visitor, key: Key, query: &str) -> Answer {
    let reader = &visitor.user.reader;
    let stack: Option<Stack> = reader.get_opt(&key.0, &key.1).await?;
    let missing = || UiError::NoObject { kind: "Stack", namespace: key.0.clone(), name: key.1.clone() };
    let stack = stack.ok_or_else(missing)?;
    let update: Option<Update> = read(reader, &key.0, runs::current_or_last(&stack)).await?;
    let plan = stack.status.as_ref().and_then(|status| status.plan.as_ref());
    let preview: Option<Update> = read(reader, &key.0, plan.map(|plan| plan.update_name.as_str())).await?;
    let graph = graph(ui, visitor, &key, &stack).await?;
    let decided = Decided::parse(query);
    let awaits_decision = Review::of(&stack, decided.as_ref()) == Review::Awaited;
    let permitted = ui.permissions.actions(&visitor.user, &key, awaits_decision).await?;
    // A Workspace with an open run does not sleep, so the page needs no information from the Workspace.
    let has_open_run = stack.status.as_ref().is_some_and(|status| status.current_update.is_some());
    let workspace: Option<Workspace> = read(reader, &key.0, (!has_open_run).then_some(key.1.as_str())).await?;
    let facts = Facts { stack, update, preview, workspace, graph, done: done(query), decided };
    let content = content(&facts, &Forms { key: &key, token: &visitor.form_token, permitted }, Timestamp::now());
    let title = format!("{}/{}", key.0, key.1);
    Ok(response::html(StatusCode::OK, frame::page(&ui.cluster_name, visitor, Place::Other, &title, &content)))
}

/// Returns an object, or `None` if the object does not exist or the user may not read the object.
async fn read<K>(reader: &Reader, namespace: &str, name: Option<&str>) -> Result<Option<K>, UiError>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let Some(name) = name else { return Ok(None) };
    match reader.get_opt(namespace, name).await {
        Err(error) if error.is_forbidden() => Ok(None),
        other => other.map_err(UiError::from),
    }
}

/// Returns the dependency graph with the Stacks that the user may see.
async fn graph(ui: &Ui, visitor: &Visitor, key: &Key, stack: &Stack) -> Result<Graph, UiError> {
    let (rows, own) = (ui.directory.rows()?, dependencies_of(stack));
    let all = Graph::of(&rows, key, &own);
    let mut namespaces = namespaces(&all);
    if namespaces.is_empty() {
        return Ok(all);
    }
    // Stacks in other namespaces can exceed the graph's limit, and must not hide the Stacks in this namespace.
    namespaces.insert(key.0.clone());
    let visible = match ui.permissions.visible(&visitor.user, namespaces.clone()).await {
        // The user may not check permissions. The graph then contains only the names in the spec of the Stack.
        Err(error) if error.is_forbidden() => Visible::Only { namespaces: BTreeSet::new(), unchecked: 0 },
        other => other?,
    };
    if namespaces.iter().all(|namespace| visible.contains(namespace)) {
        return Ok(all);
    }
    let rows: Vec<Arc<Row>> = rows.into_iter().filter(|row| visible.contains(&row.namespace)).collect();
    let graph = Graph::of(&rows, key, &own);
    Ok(Graph { is_cut: graph.is_cut || all.is_cut, ..graph })
}

/// Returns the namespaces of all Stacks in a graph.
fn namespaces(graph: &Graph) -> BTreeSet<String> {
    let mut namespaces = BTreeSet::new();
    let mut open: Vec<&Node> = graph.requires.iter().chain(&graph.required_by).collect();
    while let Some(node) = open.pop() {
        namespaces.insert(node.key.0.clone());
        open.extend(&node.next);
    }
    namespaces
}

/// Returns the message that confirms an action.
fn done(query: &str) -> Option<&'static str> {
    let action = form_urlencoded::parse(query.as_bytes()).find(|(name, _)| name == "done").map(|(_, value)| value)?;
    match action.as_ref() {
        "reconcile" | "refresh" => Some("A run is requested."),
        "suspend" => Some("The Stack is suspended. An open run continues."),
        "resume" => Some("The Stack is resumed."),
        "cancel" => Some("The cancellation is requested. Pulumi completes the resource operations in progress."),
        "resolve" => Some("The decision about the run is recorded."),
        _ => None,
    }
}

fn content(facts: &Facts, forms: &Forms<'_>, now: Timestamp) -> Markup {
    let stack = &facts.stack;
    let status = stack.status.clone().unwrap_or_default();
    let open = status.current_update.as_ref().map(|open| open.name.as_str());
    let run = open.map(|run| format!("&run={run}")).unwrap_or_default();
    let version = stack.resource_version().unwrap_or_default();
    let live = format!("{}/live?version={version}{run}", parts::path(forms.key));
    let review = Review::of(stack, facts.decided.as_ref());
    html! {
        div data-live=(live) {
            (heading(stack, forms.key))
            // The script writes a notice into this element while the stream is interrupted.
            div id="live-state" role="status" {}
            @if let Some(done) = facts.done { p.notice.good role="status" { (done) } }
            @if let Some(notice) = review.notice() { p.notice.good role="status" { (notice) } }
            @if !review.is_ahead_of_status() { (explanation(stack, facts.workspace.as_ref())) }
            (forms.actions(stack, review))
            (forms.resolutions(stack))
            @if let Some(plan) = &status.plan { (plan_section(plan, facts.preview.as_ref(), review, forms)) }
            @if let Some(run) = open { (live_run(run, facts.update.as_ref(), forms.key)) }
            (details(stack, &status, facts.workspace.as_ref(), now))
            (conditions(&status, now))
            (outputs(&status, forms.key))
            (history(stack, forms.key, now))
            (dependencies(&facts.graph))
        }
    }
}

fn heading(stack: &Stack, (namespace, name): &Key) -> Markup {
    let state = State::of(stack);
    html! {
        p.path { a href={ "/?namespace=" (namespace) } { (namespace) } " /" }
        h1 { (name) " " (parts::phase(state.phase)) }
    }
}

/// Returns the summary of the state, its cause and the next steps.
fn explanation(stack: &Stack, workspace: Option<&Workspace>) -> Markup {
    let state = State::of(stack).with(Related { workspace, ..Related::default() });
    let steps = state.next_steps();
    html! {
        section aria-label="State" {
            p.summary {
                (state.summary())
                @if let Some(reason) = state.reason { " " span.reason { "(" (reason) ")" } }
            }
            @if let Some(cause) = phase::cause(stack) { pre.cause { (parts::text(cause)) } }
            @if !steps.is_empty() {
                details {
                    summary { "Next steps on the command line" }
                    @for step in &steps { (command(step)) }
                }
            }
        }
    }
}

/// Returns a step, which consists of a sentence and a command on the next line.
fn command(step: &str) -> Markup {
    let (sentence, command) = step.split_once('\n').unwrap_or((step, ""));
    html! { p { (parts::text(sentence)) } pre { code { (parts::text(command.trim())) } } }
}

/// Returns the resources of a plan. The preview adds the paths of the changed properties, which the plan in the status
/// does not contain.
fn planned_resources(plan: &StackPlan, preview: Option<&Update>) -> Vec<PlannedResource> {
    let previewed = preview.and_then(|preview| preview.status.as_ref()?.plan.as_ref());
    let previewed = previewed.filter(|previewed| previewed.file_digest.as_ref() == Some(&plan.file_digest));
    let resources = previewed.map(|previewed| previewed.resources.as_slice()).unwrap_or_default();
    let key = |resource: &PlannedResource| (resource.urn.clone(), resource.operation.clone());
    let properties: HashMap<_, _> = resources.iter().map(|resource| (key(resource), &resource.properties)).collect();
    let complete = |resource: &PlannedResource| {
        let properties = properties.get(&key(resource)).map(|found| (*found).clone()).unwrap_or_default();
        PlannedResource { properties, ..resource.clone() }
    };
    plan.resources.iter().map(complete).collect()
}

fn plan_section(plan: &StackPlan, preview: Option<&Update>, review: Review, forms: &Forms<'_>) -> Markup {
    let resources = planned_resources(plan, preview);
    let changes: Vec<String> = plan.changes.iter().map(|(operation, count)| format!("{count} {operation}")).collect();
    let shown = i64::try_from(plan.resources.len()).unwrap_or(i64::MAX);
    html! {
        section aria-labelledby="plan" {
            h2 id="plan" { (review.title()) }
            dl.facts {
                dt { "Digest" } dd { code { (plan.digest) } }
                dt { "Operation" }
                dd { (plan.operation.as_str()) @if plan.refresh.unwrap_or_default() { " with a refresh of the state" } }
                @if let Some(revision) = &plan.revision { dt { "Revision" } dd { code { (parts::text(revision)) } } }
                dt { "Changes" } dd { (parts::text(&changes.join(", "))) }
            }
            (resources::tree(resources.iter().map(resources::Resource::from)))
            @if plan.resource_count > shown {
                p { "The plan contains " (plan.resource_count - shown) " more resources. The output of run "
                    a href={ (parts::path(forms.key)) "/runs/" (plan.update_name) } { (plan.update_name) } " lists them." }
            }
            @if review == Review::Awaited { (forms.decisions(plan)) }
        }
    }
}

/// Returns the section for the open run, which the script updates.
fn live_run(run: &str, update: Option<&Update>, key: &Key) -> Markup {
    let summary = update.and_then(|update| update.status.as_ref()?.progress.as_ref()).map(|found| &found.summary);
    html! {
        section aria-labelledby="live" {
            h2 id="live" { "Run " a href={ (parts::path(key)) "/runs/" (run) } { (run) } }
            p role="status" {
                span id="run-phase" { @if let Some(update) = update { (runs::phase(update)) } @else { "Waiting" } }
                " "
                span id="run-summary" { @if let Some(summary) = summary { (parts::text(summary)) } }
            }
            progress id="run-progress" aria-label="Resources" max="1" hidden {}
            p.notice id="run-note" hidden {}
            div.scroll tabindex="0" role="region" aria-label="Resources of the run" hidden id="run-resources" {
                table {
                    thead { tr { @for title in ["Operation", "Type", "Name", "State"] { th scope="col" { (title) } } } }
                    tbody {}
                }
            }
            pre.log id="run-log" tabindex="0" role="log" aria-label="Output of the run" hidden {}
            noscript { p { "Enable JavaScript to follow the run, or reload the page." } }
        }
    }
}

fn details(stack: &Stack, status: &StackStatus, workspace: Option<&Workspace>, now: Timestamp) -> Markup {
    let permalink = status.last_update.as_ref().and_then(|last| last.permalink.as_deref());
    let text = |name: &str, value: Option<&str>| {
        html! { @if let Some(value) = value { dt { (name) } dd { (parts::text(value)) } } }
    };
    html! {
        section aria-labelledby="details" {
            h2 id="details" { "Details" }
            dl.facts {
                (text("Pulumi stack", Some(&stack.spec.stack)))
                (text("Source", row::source(stack).as_deref()))
                (text("Applied revision", status.last_applied_revision.as_deref()))
                (text("Attempted revision", status.last_attempted_revision.as_deref()))
                (text("Drift", phase::drift(stack).as_deref()))
                (text("Policy violations", phase::violations_and_exemptions(status.policy_violations.as_ref()).as_deref()))
                (sleep(workspace))
                dt { "Age" } dd { (parts::ago(stack.metadata.creation_timestamp.as_ref(), now)) }
                (parts::permalink(permalink))
            }
        }
    }
}

/// Returns the state of a sleeping Workspace, or nothing if the Workspace is awake.
fn sleep(workspace: Option<&Workspace>) -> Markup {
    let sleeping = workspace.and_then(|workspace| workspace.status.as_ref()).filter(|status| status.is_asleep());
    let since = sleeping.and_then(|status| status.sleep.as_ref()?.since.as_ref());
    html! {
        @if sleeping.is_some() {
            dt { "Workspace" }
            dd {
                "sleeping"
                @if let Some(since) = since { " since " time datetime=(since.0) { (since.0) } }
                "; the next run creates its pod"
            }
        }
    }
}

fn conditions(status: &StackStatus, now: Timestamp) -> Markup {
    html! {
        section aria-labelledby="conditions" {
            h2 id="conditions" { "Conditions" }
            div.scroll tabindex="0" role="group" aria-label="Conditions" {
                table.cards {
                    thead {
                        tr { @for title in ["Type", "Status", "Reason", "Age", "Message"] { th scope="col" { (title) } } }
                    }
                    tbody {
                        @for condition in &status.conditions {
                            tr {
                                th scope="row" { (condition.type_) }
                                td data-label="Status" { (condition.status) }
                                td data-label="Reason" { (condition.reason) }
                                td data-label="Age" { (parts::ago(Some(&condition.last_transition_time), now)) }
                                td.wide data-label="Message" { (parts::text(&condition.message)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn outputs(status: &StackStatus, (namespace, name): &Key) -> Markup {
    let has_secret = status.outputs.values().any(|value| value == SECRET);
    html! {
        section aria-labelledby="outputs" {
            h2 id="outputs" { "Outputs" }
            @if status.outputs.is_empty() { p.empty { "The Stack has no outputs." } }
            dl.facts {
                @for (name, value) in status.outputs.iter().take(MAX_OUTPUTS) {
                    dt { (parts::text(name)) } dd { pre { (parts::text(&output(value))) } }
                }
            }
            @if status.outputs.len() > MAX_OUTPUTS {
                p { "The page omits " (status.outputs.len() - MAX_OUTPUTS) " outputs." }
            }
            @if has_secret {
                p.hint { "Secret outputs are hidden. To show them, run: "
                    code { "kubectl pulumi outputs -n " (namespace) " " (name) " --show-secrets" } }
            }
        }
    }
}

/// Returns an output as text. Strings have no quotation marks.
fn output(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    };
    match text.char_indices().nth(MAX_OUTPUT) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

fn history(stack: &Stack, key: &Key, now: Timestamp) -> Markup {
    let runs = runs::all(stack, &[]);
    html! {
        section aria-labelledby="history" {
            h2 id="history" { "History" }
            @if runs.is_empty() { p.empty { "No run has ended yet." } } @else {
                div.scroll tabindex="0" role="group" aria-label="History" {
                    table.cards {
                        thead {
                            tr {
                                @for title in ["Run", "Type", "State", "Started", "Cause", "Changes", "Revision"] {
                                    th scope="col" { (title) }
                                }
                            }
                        }
                        tbody {
                            @for run in &runs {
                                tr {
                                    th scope="row" { a href={ (parts::path(key)) "/runs/" (run.name) } { (run.name) } }
                                    td data-label="Type" { (run.kind()) }
                                    td data-label="State" { (parts::run_state(run.phase())) }
                                    td data-label="Started" { (parts::ago(run.started(), now)) }
                                    td.cause data-label="Cause" { (parts::text(run.cause().unwrap_or_default())) }
                                    td data-label="Changes" { (parts::text(&run.changes().unwrap_or_default())) }
                                    td data-label="Revision" {
                                        @let revision = run.revision().and_then(columns::revision);
                                        @if let Some(revision) = revision { code { (parts::text(&revision)) } }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn dependencies(graph: &Graph) -> Markup {
    html! {
        section aria-labelledby="dependencies" {
            h2 id="dependencies" { "Dependencies" }
            @if graph.is_empty() { p.empty { "The Stack has no dependencies." } }
            @if !graph.requires.is_empty() { h3 { "Requires" } div.tree { (nodes(&graph.requires)) } }
            @if !graph.required_by.is_empty() { h3 { "Required by" } div.tree { (nodes(&graph.required_by)) } }
            @if graph.is_cut { p.hint { "The graph omits distant Stacks." } }
        }
    }
}

fn nodes(found: &[Node]) -> Markup {
    html! {
        ul {
            @for node in found {
                li {
                    @if let Some(row) = &node.row {
                        a href=(parts::path(&node.key)) { (node.key.0) "/" (node.key.1) } " " (parts::phase(row.phase))
                    } @else {
                        (parts::text(&node.key.0)) "/" (parts::text(&node.key.1)) " " span.hint { "not found, or no permission" }
                    }
                    @if !node.next.is_empty() { (nodes(&node.next)) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
