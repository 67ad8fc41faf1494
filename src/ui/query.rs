//! Search, filters and pagination for the Stack list. All functions are pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use url::form_urlencoded;

use super::row::Row;
use crate::view::phase::{PHASES, Phase};

/// Number of Stacks per page.
pub(super) const PAGE: usize = 100;
/// Maximum length of a value in the query, in bytes.
const MAX_VALUE: usize = 253;
/// Delay before a Stack with an unschedulable pod needs attention.
const MAX_SCHEDULING: SignedDuration = SignedDuration::from_mins(5);

/// Query for the Stack list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Words that a Stack must contain.
    pub(super) search: String,
    pub(super) namespace: String,
    /// Phase, or one of the states in [`STATES`]. An empty value selects all Stacks.
    pub(super) state: String,
    /// Page, starting with 1.
    pub(super) page: usize,
}

/// States that are not phases, with their labels.
pub(super) const STATES: [(&str, &str); 3] =
    [("attention", "Needs attention"), ("approval", "Waits for approval"), ("drift", "Has drifted")];

/// A page of the list.
pub(super) struct Page {
    pub(super) rows: Vec<Arc<Row>>,
    /// Number of Stacks that match the query.
    pub(super) found: usize,
    /// Page number, starting with 1.
    pub(super) number: usize,
    /// Total number of pages.
    pub(super) pages: usize,
}

impl Query {
    /// Parses the query of a URL. Ignores unknown or invalid values.
    pub(super) fn parse(query: &str) -> Self {
        let mut parsed = Query { page: 1, ..Query::default() };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let value = value.trim();
            if value.len() > MAX_VALUE {
                continue;
            }
            match name.as_ref() {
                "q" => parsed.search = value.to_lowercase(),
                "namespace" => parsed.namespace = value.to_owned(),
                "state" if is_state(value) => parsed.state = value.to_owned(),
                "page" => parsed.page = value.parse::<usize>().unwrap_or(1).max(1),
                _ => {}
            }
        }
        parsed
    }

    /// Returns the URL query that selects a page.
    pub(super) fn with_page(&self, page: usize) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        let pairs = [("q", &self.search), ("namespace", &self.namespace), ("state", &self.state)];
        for (name, value) in pairs.into_iter().filter(|(_, value)| !value.is_empty()) {
            query.append_pair(name, value);
        }
        if page > 1 {
            query.append_pair("page", &page.to_string());
        }
        query.finish()
    }

    /// Returns a page of the rows that match the query. If the page does not exist, returns the last page.
    pub(super) fn page(&self, rows: impl Iterator<Item = Arc<Row>>, now: Timestamp) -> Page {
        let mut found: Vec<Arc<Row>> = rows.filter(|row| self.matches(row, now)).collect();
        let (count, pages) = (found.len(), found.len().div_ceil(PAGE).max(1));
        let number = self.page.clamp(1, pages);
        let rows = found.drain(..).skip((number - 1) * PAGE).take(PAGE).collect();
        Page { rows, found: count, number, pages }
    }

    fn matches(&self, row: &Row, now: Timestamp) -> bool {
        let is_in_namespace = self.namespace.is_empty() || row.namespace == self.namespace;
        is_in_namespace && has_state(row, &self.state, now) && contains_all(row, &self.search)
    }
}

fn is_state(value: &str) -> bool {
    STATES.iter().any(|(state, _)| *state == value) || PHASES.iter().any(|phase| phase.as_str() == value)
}

/// Returns whether a row has a phase or state. The empty state matches every row.
pub(super) fn has_state(row: &Row, state: &str, now: Timestamp) -> bool {
    match state {
        "" => true,
        "attention" => {
            matches!(row.phase, Phase::Stalled | Phase::Retrying)
                || row.awaits_approval
                || row.violations.is_some()
                || is_unschedulable(row, now)
        }
        "approval" => row.awaits_approval,
        "drift" => row.has_drifted,
        phase => row.phase.as_str() == phase,
    }
}

/// Returns whether a Stack's pod has been unschedulable for several minutes. Within this time, an autoscaler can add a
/// node.
fn is_unschedulable(row: &Row, now: Timestamp) -> bool {
    row.unschedulable_since.as_ref().is_some_and(|since| now.duration_since(since.0) >= MAX_SCHEDULING)
}

/// Returns whether a row contains all words in a search. The search must be in lower case. The function converts the
/// row's strings to lower case only once, because a search can have many words.
fn contains_all(row: &Row, search: &str) -> bool {
    if search.is_empty() {
        return true;
    }
    let options = [&row.source, &row.revision, &row.waiting_for];
    let texts = [&row.namespace, &row.name, &row.stack].into_iter().chain(options.into_iter().flatten());
    let texts: Vec<String> = texts.map(|text| text.to_lowercase()).collect();
    let phase = row.phase.as_str().to_lowercase();
    search.split_whitespace().all(|word| word == phase || texts.iter().any(|text| text.contains(word)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::fixtures::{condition, now, stack};

    fn rows(count: usize) -> Vec<Arc<Row>> {
        let of = |number: usize| {
            let (status, reason) =
                if number.is_multiple_of(10) { ("False", "UpdateFailed") } else { ("True", "Succeeded") };
            let mut conditions = vec![condition("Ready", status, reason, "broken")];
            if number.is_multiple_of(10) {
                conditions.push(condition("Stalled", "True", reason, "Broken by hand"));
            }
            Arc::new(Row::of(&stack(&format!("web-{number:05}"), &json!({}), &json!({ "conditions": conditions }))))
        };
        (0..count).map(of).collect()
    }

    #[test]
    fn a_query_survives_its_link() {
        let query = Query::parse("q=Web+a%26b&namespace=apps&state=drift&page=3&other=1");
        assert_eq!((query.search.as_str(), query.state.as_str(), query.page), ("web a&b", "drift", 3));
        assert_eq!(Query::parse(&query.with_page(3)), query);
        assert_eq!(Query::parse(&query.with_page(1)).page, 1);
        let invalid = Query::parse(&format!("state=none&page=-1&q={}", "x".repeat(300)));
        assert_eq!(invalid, Query { page: 1, ..Query::default() });
    }

    #[test]
    fn the_search_finds_all_words_and_the_filters_restrict_the_state() {
        let found = |query: &str| Query::parse(query).page(rows(100).into_iter(), now()).found;
        let cases = [
            ("", 100),
            ("q=web-0001", 10),
            ("q=web+hand", 10),
            ("q=BROKEN", 10),
            ("q=stalled", 10),
            ("q=nothing", 0),
            ("state=Stalled", 10),
            ("state=attention", 10),
            ("state=Ready", 90),
            ("namespace=apps", 100),
            ("namespace=other", 0),
        ];
        for (query, expected) in cases {
            assert_eq!(found(query), expected, "{query}");
        }
    }

    #[test]
    fn a_pod_that_cannot_be_scheduled_for_minutes_needs_attention() {
        let message = "cannot be scheduled; pod web-workspace-0 failed to start (Unschedulable); waiting";
        let of = |message| {
            let conditions = json!({ "conditions": [condition("Reconciling", "True", "StackProcessing", message)] });
            Row::of(&stack("web", &json!({}), &conditions))
        };
        let since: Timestamp = "2026-11-02T11:00:00Z".parse().unwrap();
        let minutes = |count| since + SignedDuration::from_mins(count);
        for (message, after, expected) in [(message, 4, false), (message, 5, true), ("starting", 60, false)] {
            assert_eq!(has_state(&of(message), "attention", minutes(after)), expected, "{message} {after}");
        }
    }

    #[test]
    fn a_page_has_at_most_a_hundred_stacks() {
        let page = |number: usize| Query { page: number, ..Query::default() }.page(rows(250).into_iter(), now());
        assert_eq!((page(1).rows.len(), page(1).pages, page(1).found), (PAGE, 3, 250));
        let last = page(99);
        assert_eq!((last.rows.len(), last.number), (50, 3));
        assert_eq!(last.rows[0].name, "web-00200");
        let none = Query { page: 1, ..Query::default() }.page(std::iter::empty(), now());
        assert_eq!((none.rows.len(), none.number, none.pages), (0, 1, 1));
    }
}
