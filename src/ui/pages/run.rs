//! Page of a run: its result, its changes and its output.

use axum::http::StatusCode;
use jiff::Timestamp;
use kube::ResourceExt as _;
use maud::{Markup, html};

use super::frame::{self, Place};
use super::parts;
use super::resources;
use crate::api::auto::Update;
use crate::api::names::LABEL_STACK_NAME;
use crate::api::pulumi::Stack;
use crate::ui::error::UiError;
use crate::ui::response;
use crate::ui::row::Key;
use crate::ui::state::{Answer, Ui, Visitor};
use crate::ui::stored_runs::Stored;
use crate::view::runs;

/// Returns the page of a run.
pub(in crate::ui) async fn answer(ui: &Ui, visitor: &Visitor, key: Key, name: &str) -> Answer {
    let reader = &visitor.user.reader;
    let stack: Option<Stack> = reader.get_opt(&key.0, &key.1).await?;
    let missing = |kind, name: &str| UiError::NoObject { kind, namespace: key.0.clone(), name: name.to_owned() };
    let stack = stack.ok_or_else(|| missing("Stack", &key.1))?;
    let update: Result<Option<Update>, UiError> = reader.get_opt(&key.0, name).await.map_err(UiError::from);
    let update = match update {
        Err(error) if error.is_forbidden() => None,
        other => other?,
    };
    let update = update.filter(|update| update.labels().get(LABEL_STACK_NAME) == Some(&key.1));
    let run = runs::Run::of(stack.status.as_ref(), update.as_ref(), name);
    if run.record.is_none() && run.update.is_none() {
        return Err(missing("run", name));
    }
    let stored = match run.record {
        Some(record) => ui.stored_runs.read(&visitor.user, &key, record).await,
        None => Ok(Stored::Missing),
    };
    // If the UI cannot read the storage, the page still shows the result of the run.
    let (stored, failure) = match stored {
        Ok(stored) => (stored, None),
        Err(UiError::SignedOut) => return Err(UiError::SignedOut),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "failed to read a stored run for the web UI");
            (Stored::Missing, Some(error.to_string()))
        }
    };
    let content = content(&Facts { run, stored, failure }, &key, Timestamp::now());
    Ok(response::html(StatusCode::OK, frame::page(&ui.cluster_name, visitor, Place::Other, name, &content)))
}

/// Data of the page.
struct Facts<'a> {
    run: runs::Run<'a>,
    stored: Stored,
    /// Reason why the stored data is not available.
    failure: Option<String>,
}

fn content(facts: &Facts<'_>, key: &Key, now: Timestamp) -> Markup {
    let run = &facts.run;
    let text = |name: &str, value: Option<&str>| {
        html! { @if let Some(value) = value { dt { (name) } dd { (parts::text(value)) } } }
    };
    let approved = Some(run.approved_by().join(", ")).filter(|users| !users.is_empty());
    let started = run.started();
    html! {
        p.path { a href=(parts::path(key)) { (key.0) "/" (key.1) } " /" }
        h1 { (run.name) " " (parts::run_state(run.phase())) }
        dl.facts {
            (text("Type", Some(run.kind())))
            (text("Reason", run.reason()))
            (text("Cause", run.cause()))
            (text("Revision", run.revision()))
            (text("Approved by", approved.as_deref()))
            (text("Duration", run.duration().as_deref()))
            @if started.is_some() { dt { "Started" } dd { (parts::ago(started, now)) " ago" } }
            (parts::permalink(run.permalink()))
        }
        @if let Some(message) = run.message() { pre.cause { (parts::text(message)) } }
        (changes(facts))
        (output(facts))
    }
}

fn changes(facts: &Facts<'_>) -> Markup {
    let stored = facts.stored.run().map(|stored| stored.changes.as_slice()).unwrap_or_default();
    let planned = facts.run.update.and_then(|update| update.status.as_ref()?.plan.as_ref());
    html! {
        @if !stored.is_empty() {
            section aria-labelledby="changes" {
                h2 id="changes" { "Changes" }
                (resources::tree(stored.iter().map(resources::Resource::from)))
            }
        } @else if let Some(plan) = planned {
            section aria-labelledby="changes" {
                h2 id="changes" { "Planned changes" }
                (resources::tree(plan.resources.iter().map(resources::Resource::from)))
            }
        }
    }
}

fn output(facts: &Facts<'_>) -> Markup {
    let stored = facts.stored.run().and_then(|stored| stored.output.as_deref());
    let last = facts.run.update.and_then(|update| update.status.as_ref()?.last_output.as_deref());
    html! {
        section aria-labelledby="output" {
            h2 id="output" { "Output" }
            @if let Some(failure) = &facts.failure { p.notice.warn { (parts::text(failure)) } }
            @if let Some(text) = stored {
                pre.log tabindex="0" role="region" aria-label="Output" { (text) }
            } @else if let Some(text) = last {
                p.hint { "These are the last lines. " (missing_output(facts)) }
                pre.log tabindex="0" role="region" aria-label="Output" { (parts::text(text)) }
            } @else if facts.failure.is_none() {
                p.empty { (missing_output(facts)) }
            }
        }
    }
}

/// Returns the reason why the page does not contain the complete output. Returns an empty string if the UI could not
/// read the storage, because this failure has its own message.
fn missing_output(facts: &Facts<'_>) -> &'static str {
    match facts.stored {
        _ if facts.failure.is_some() => "",
        _ if facts.run.record.is_none() => {
            "The page shows the stored output of the last ten completed runs, except drift checks."
        }
        Stored::Forbidden => {
            "You have no permission to read the complete output (get of stacks/history in the group pulumi.com)."
        }
        Stored::Found(_) | Stored::Missing => {
            "The history contains no output of this run. If the history is on the volume of the controller, a new pod of \
             the controller starts with an empty history."
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::ui::stored_runs::{ChangedResource, StoredRun};
    use crate::view::fixtures::{now, stack, update};

    /// Returns a Stack whose status contains a record of the run `web-1`. `fields` extends the record.
    fn stack_with_record(fields: &Value) -> Stack {
        let mut record = json!({ "name": "web-1", "type": "up", "state": "succeeded" });
        for (name, value) in fields.as_object().into_iter().flatten() {
            record[name] = value.clone();
        }
        stack("web", &json!({}), &json!({ "runs": [record] }))
    }

    #[test]
    fn the_page_shows_the_stored_output_or_the_last_lines() {
        let key = ("apps".to_owned(), "web".to_owned());
        let recorded = stack_with_record(&json!({ "approvedBy": ["alice"], "startTime": "2026-11-02T11:00:00Z",
            "endTime": "2026-11-02T11:01:04Z" }));
        let changed = ChangedResource {
            operation: "update".to_owned(),
            urn: "urn:pulumi:dev::web::aws:s3:Bucket::logs".to_owned(),
            ..ChangedResource::default()
        };
        let stored = StoredRun { output: Some("Updating <dev>".to_owned()), changes: vec![changed] };
        let run = runs::Run::of(recorded.status.as_ref(), None, "web-1");
        let ended = Facts { run, stored: Stored::Found(stored), failure: None };
        let text = content(&ended, &key, now()).into_string();
        assert!(text.contains("Updating &lt;dev&gt;") && text.contains("<strong>logs</strong>"), "{text}");
        assert!(text.contains("<dt>Approved by</dt><dd>alice</dd>"), "{text}");
        assert!(text.contains("<dt>Duration</dt><dd>1m4s</dd>") && text.contains(">Succeeded</span>"), "{text}");
        let failed =
            update("web-2", "up", &json!({ "phase": "Failed", "lastOutput": "error: x", "message": "broken" }));
        let run = runs::Run::of(recorded.status.as_ref(), Some(&failed), "web-2");
        let lost = Facts { run, stored: Stored::Missing, failure: Some("too <busy>".to_owned()) };
        let text = content(&lost, &key, now()).into_string();
        assert!(
            text.contains("too &lt;busy&gt;")
                && text.contains("error: x")
                && text.contains("These are the last lines.")
                && text.contains("broken"),
            "{text}"
        );
    }

    #[test]
    fn the_page_tells_why_there_is_no_output() {
        let stack = stack_with_record(&json!({}));
        let of = |stored, failure: Option<&str>| {
            let run = runs::Run::of(stack.status.as_ref(), None, "web-1");
            output(&Facts { run, stored, failure: failure.map(str::to_owned) }).into_string()
        };
        let forbidden = of(Stored::Forbidden, None);
        assert!(
            forbidden.contains("get of stacks/history") && !forbidden.contains("contains no output"),
            "{forbidden}"
        );
        let lost = of(Stored::Missing, None);
        assert!(lost.contains("contains no output of this run") && !lost.contains("permission"), "{lost}");
        let failed = of(Stored::Missing, Some("busy"));
        assert!(failed.contains("busy") && !failed.contains("contains no output"), "{failed}");
    }
}
