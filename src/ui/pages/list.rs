//! List of Stacks with search, filters and pagination.

use std::collections::BTreeSet;

use axum::http::StatusCode;
use jiff::Timestamp;
use maud::{Markup, html};

use super::frame::{self, Place};
use super::parts;
use crate::ui::error::UiError;
use crate::ui::permissions::Visible;
use crate::ui::query::{Page, Query, STATES};
use crate::ui::response;
use crate::ui::row::Row;
use crate::ui::state::{Answer, Ui, Visitor};
use crate::view::phase::PHASES;

/// Returns the list page.
pub(in crate::ui) async fn answer(ui: &Ui, visitor: &Visitor, query: &str) -> Answer {
    let query = Query::parse(query);
    let rows = ui.directory.rows()?;
    let visible = visible(ui, visitor, &query).await?;
    let now = Timestamp::now();
    let page = query.page(rows.into_iter().filter(|row| visible.contains(&row.namespace)), now);
    let content = content(&query, &page, visible.unchecked(), now);
    Ok(response::html(StatusCode::OK, frame::page(&ui.cluster_name, visitor, Place::Stacks, "Stacks", &content)))
}

/// Returns the namespaces that the user may see. If the query filters by namespace, checks only this namespace.
async fn visible(ui: &Ui, visitor: &Visitor, query: &Query) -> Result<Visible, UiError> {
    let all: BTreeSet<String> = match query.namespace.as_str() {
        "" => ui.directory.namespaces(),
        namespace => BTreeSet::from([namespace.to_owned()]),
    };
    ui.permissions.visible(&visitor.user, all).await
}

fn content(query: &Query, page: &Page, unchecked: usize, now: Timestamp) -> Markup {
    html! {
        h1 { "Stacks" }
        (filters(query))
        @if unchecked > 0 {
            p.notice.warn {
                "Your permissions for " (unchecked) " namespaces were not checked, because there are too many. Enter a namespace."
            }
        }
        p role="status" { (page.found) @if page.found == 1 { " Stack" } @else { " Stacks" } }
        @if page.rows.is_empty() {
            p.empty { "No Stack matches the query, or you lack the permission to list Stacks." }
        } @else {
            (table(page, now))
            (pages(query, page))
        }
    }
}

fn filters(query: &Query) -> Markup {
    let option = |value: &str, label: &str| {
        html! { option value=(value) selected[query.state == value] { (label) } }
    };
    html! {
        form.filters method="get" action="/" role="search" {
            label { "Search"
                input type="search" name="q" value=(query.search) maxlength="253";
            }
            label { "Namespace"
                input type="text" name="namespace" value=(query.namespace) maxlength="63" autocapitalize="off"
                    spellcheck="false";
            }
            label { "State"
                select name="state" {
                    (option("", "All"))
                    @for (value, label) in STATES { (option(value, label)) }
                    @for phase in PHASES { (option(phase.as_str(), phase.as_str())) }
                }
            }
            button type="submit" { "Filter" }
            a href="/" { "Clear" }
        }
    }
}

fn table(page: &Page, now: Timestamp) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Stacks" {
            table.cards {
                thead {
                    tr {
                        @for title in ["Name", "Namespace", "Phase", "Age", "Revision", "Drift", "Waiting for"] {
                            th scope="col" { (title) }
                        }
                    }
                }
                tbody { @for found in &page.rows { (row(found, now)) } }
            }
        }
    }
}

fn row(row: &Row, now: Timestamp) -> Markup {
    html! {
        tr {
            th scope="row" { a href=(parts::path(&row.key())) { (row.name) } }
            td data-label="Namespace" { (row.namespace) }
            td data-label="Phase" {
                (parts::phase(row.phase))
                @if let Some(violations) = &row.violations { " " span.badge.warn { (violations) } }
            }
            td data-label="Age" { (parts::ago(row.created.as_ref(), now)) }
            td data-label="Revision" { @if let Some(revision) = &row.revision { code { (revision) } } }
            td data-label="Drift" { @if let Some(drift) = &row.drift { (drift) } }
            td.wide data-label="Waiting for" { @if let Some(cause) = &row.waiting_for { (cause) } }
        }
    }
}

fn pages(query: &Query, page: &Page) -> Markup {
    let link = |number: usize| format!("/?{}", query.with_page(number));
    html! {
        @if page.pages > 1 {
            nav.pages aria-label="Pages" {
                @if page.number > 1 {
                    a rel="prev" href=(link(page.number - 1)) { "Previous" }
                }
                span { "Page " (page.number) " of " (page.pages) }
                @if page.number < page.pages {
                    a rel="next" href=(link(page.number + 1)) { "Next" }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use serde_json::json;

    use super::*;
    use crate::view::fixtures::{condition, now, stack};

    fn rows(count: usize) -> Vec<Arc<Row>> {
        let status = json!({ "conditions": [condition("Ready", "False", "UpdateFailed", "<b>broken</b>")] });
        (0..count).map(|number| Arc::new(Row::of(&stack(&format!("web-{number:05}"), &json!({}), &status)))).collect()
    }

    fn page(query: &str, count: usize) -> String {
        let query = Query::parse(query);
        content(&query, &query.page(rows(count).into_iter(), now()), 0, now()).into_string()
    }

    #[test]
    fn the_list_contains_links_states_and_escaped_causes() {
        let text = page("q=web&state=Waiting", 2);
        assert!(text.contains("<a href=\"/stacks/apps/web-00001\">web-00001</a>"), "{text}");
        assert!(text.contains("&lt;b&gt;broken&lt;/b&gt;") && !text.contains("<b>"), "{text}");
        assert!(text.contains("<option value=\"Waiting\" selected>Waiting</option>"), "{text}");
        assert!(text.contains("<p role=\"status\">2 Stacks</p>") && !text.contains("Previous"), "{text}");
        assert!(page("q=none", 2).contains("No Stack matches"));
    }

    #[test]
    fn a_list_of_ten_thousand_stacks_has_pages_and_is_fast() {
        let all = rows(10_000);
        let begin = Instant::now();
        let query = Query::parse("page=2&state=Waiting");
        let text = content(&query, &query.page(all.into_iter(), now()), 0, now()).into_string();
        assert!(begin.elapsed() < Duration::from_millis(300), "{:?}", begin.elapsed());
        assert!(text.contains("Page 2 of 100") && text.contains("href=\"/?state=Waiting&amp;page=3\""), "{text}");
        assert!(text.len() < 100 * 1024, "{} bytes", text.len());
    }
}
