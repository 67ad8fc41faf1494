//! Small parts of pages.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use maud::{Markup, html};

use crate::text::printable;
use crate::ui::row::Key;
use crate::view::links;
use crate::view::phase::Phase;
use crate::view::time::age;

/// Returns a phase as a colored label. The label also contains the phase name, because users can be color-blind.
pub(super) fn phase(phase: Phase) -> Markup {
    let tone = match phase {
        Phase::Ready => "good",
        Phase::Stalled => "bad",
        Phase::Retrying | Phase::Waiting => "warn",
        Phase::Running | Phase::Preparing | Phase::Deleting => "busy",
        Phase::Pending | Phase::Suspended => "idle",
    };
    html! { span class={ "badge " (tone) } { (phase.as_str()) } }
}

/// Returns a run state as a colored label.
pub(super) fn run_state(state: &str) -> Markup {
    let tone = match state.to_ascii_lowercase().as_str() {
        "succeeded" => "good",
        "failed" | "outcomeunknown" => "bad",
        "running" | "starting" | "canceling" => "busy",
        _ => "idle",
    };
    html! { span class={ "badge " (tone) } { (state) } }
}

/// Returns the age of a time.
pub(super) fn ago(time: Option<&Time>, now: Timestamp) -> Markup {
    html! {
        @if let Some(found) = time {
            time datetime=(found.0) title=(found.0) { (age(time, now)) }
        }
    }
}

/// Returns the path of a Stack's page. Object names contain no characters that a path must escape.
pub(super) fn path((namespace, name): &Key) -> String {
    format!("/stacks/{namespace}/{name}")
}

/// Returns a string from the cluster without characters that can mislead a reader. The template escapes the text.
pub(super) fn text(text: &str) -> Markup {
    html! { (printable(text)) }
}

/// Returns the list entry with the link to an update in Pulumi Cloud, or nothing without a URL that a browser can open.
pub(super) fn permalink(url: Option<&str>) -> Markup {
    html! {
        @if let Some(url) = url.and_then(links::permalink) {
            dt { "Pulumi Cloud" }
            dd { a href=(url) rel="noopener noreferrer" target="_blank" { "Open in Pulumi Cloud" } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_safe_url_becomes_a_link() {
        let link = permalink(Some("https://app.pulumi.com/acme/web/dev/updates/1")).into_string();
        let expected = "<dt>Pulumi Cloud</dt><dd><a href=\"https://app.pulumi.com/acme/web/dev/updates/1\"";
        assert!(link.starts_with(expected), "{link}");
        for url in [Some("javascript:alert(1)"), Some("file:///state/web.json"), None] {
            assert_eq!(permalink(url).into_string(), "", "{url:?}");
        }
        assert_eq!(text("a\u{202e}<b>").into_string(), "a\u{fffd}&lt;b&gt;");
    }
}
