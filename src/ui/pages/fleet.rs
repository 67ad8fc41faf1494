//! Fleet page: the number of Stacks in each phase and namespace, and the Stacks that need attention.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::http::StatusCode;
use jiff::Timestamp;
use maud::{Markup, html};

use super::frame::{self, Place};
use super::parts;
use crate::ui::query::{Query, STATES, has_state};
use crate::ui::response;
use crate::ui::row::Row;
use crate::ui::state::{Answer, Ui, Visitor};
use crate::view::phase::{PHASES, Phase};

/// Maximum number of rows in a table of Stacks or namespaces.
const MAX_ROWS: usize = 100;

/// Returns the fleet page.
pub(in crate::ui) async fn answer(ui: &Ui, visitor: &Visitor) -> Answer {
    let rows = ui.directory.rows()?;
    let visible = ui.permissions.visible(&visitor.user, ui.directory.namespaces()).await?;
    let rows: Vec<Arc<Row>> = rows.into_iter().filter(|row| visible.contains(&row.namespace)).collect();
    let content = content(&rows, visible.unchecked(), Timestamp::now());
    Ok(response::html(StatusCode::OK, frame::page(&ui.cluster_name, visitor, Place::Fleet, "Fleet", &content)))
}

/// Number of Stacks by phase.
type Counts = BTreeMap<Phase, usize>;

fn content(rows: &[Arc<Row>], unchecked: usize, now: Timestamp) -> Markup {
    let (mut total, mut namespaces) = (Counts::new(), BTreeMap::<&str, Counts>::new());
    for row in rows {
        *total.entry(row.phase).or_default() += 1;
        *namespaces.entry(&row.namespace).or_default().entry(row.phase).or_default() += 1;
    }
    html! {
        h1 { "Fleet" }
        @if unchecked > 0 {
            p.notice.warn { "The page omits " (unchecked) " namespaces, because your permissions for them were not checked." }
        }
        (tiles(rows, &total, now))
        (attention(rows, now))
        (table(&namespaces))
    }
}

fn tiles(rows: &[Arc<Row>], total: &Counts, now: Timestamp) -> Markup {
    let count = |state: &str| rows.iter().filter(|row| has_state(row, state, now)).count();
    let tile = |number: usize, state: &str, label: &str| {
        let query = Query { state: state.to_owned(), page: 1, ..Query::default() };
        html! {
            li { a.tile href={ "/?" (query.with_page(1)) } { strong { (number) } " " span { (label) } } }
        }
    };
    html! {
        ul.tiles {
            (tile(rows.len(), "", "All Stacks"))
            @for (state, label) in STATES { (tile(count(state), state, label)) }
            @for phase in PHASES {
                (tile(total.get(&phase).copied().unwrap_or_default(), phase.as_str(), phase.as_str()))
            }
        }
    }
}

fn attention(rows: &[Arc<Row>], now: Timestamp) -> Markup {
    let found: Vec<&Arc<Row>> = rows.iter().filter(|row| has_state(row, "attention", now)).collect();
    html! {
        h2 { "Needs attention" }
        @if found.is_empty() {
            p.empty { "No Stack needs attention." }
        } @else {
            ul.items {
                @for row in found.iter().take(MAX_ROWS) {
                    li {
                        a href=(parts::path(&row.key())) { (row.namespace) "/" (row.name) } " " (parts::phase(row.phase))
                        @if let Some(cause) = &row.waiting_for { " " span.cause { (cause) } }
                    }
                }
            }
            @if found.len() > MAX_ROWS { p { a href="/?state=attention" { "Show all " (found.len()) " Stacks" } } }
        }
    }
}

fn table(namespaces: &BTreeMap<&str, Counts>) -> Markup {
    let count = |counts: &Counts, phase: Phase| counts.get(&phase).copied().unwrap_or_default();
    html! {
        h2 { "Namespaces" }
        div.scroll tabindex="0" role="region" aria-label="Namespaces" {
            table {
                thead {
                    tr {
                        th scope="col" { "Namespace" }
                        @for phase in PHASES { th.number scope="col" { (phase.as_str()) } }
                        th.number scope="col" { "All" }
                    }
                }
                tbody {
                    @for (namespace, counts) in namespaces.iter().take(MAX_ROWS) {
                        tr {
                            th scope="row" { a href={ "/?namespace=" (namespace) } { (namespace) } }
                            @for phase in PHASES { td.number { (count(counts, phase)) } }
                            td.number { (counts.values().sum::<usize>()) }
                        }
                    }
                }
            }
        }
        @if namespaces.len() > MAX_ROWS { p { "The table omits " (namespaces.len() - MAX_ROWS) " namespaces." } }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::fixtures::{condition, now, stack};

    #[test]
    fn the_fleet_counts_phases_and_lists_stacks_that_need_attention() {
        let of = |name: &str, conditions: serde_json::Value| {
            Arc::new(Row::of(&stack(name, &json!({}), &json!({ "conditions": conditions }))))
        };
        let rows = [
            of("a", json!([condition("Ready", "True", "ProcessingCompleted", "")])),
            of("b", json!([condition("Stalled", "True", "SpecInvalid", "bad & wrong")])),
        ];
        let text = content(&rows, 0, now()).into_string();
        assert!(
            text.contains("<a class=\"tile\" href=\"/?state=Stalled\"><strong>1</strong> <span>Stalled</span></a>"),
            "{text}"
        );
        assert!(text.contains("<a href=\"/stacks/apps/b\">apps/b</a>") && text.contains("bad &amp; wrong"), "{text}");
        assert!(!text.contains("/stacks/apps/a"), "{text}");
        assert!(content(&[], 3, now()).into_string().contains("omits 3 namespaces"));
    }
}
