//! Frame for all pages, and the pages that show no cluster objects: sign-in, errors and reload.

use maud::{DOCTYPE, Markup, html};
use url::form_urlencoded;

use crate::ui::state::Visitor;

/// Version in the stylesheet and script URLs, so that a browser does not use cached files from another version.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Page of the navigation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::ui) enum Place {
    Stacks,
    Fleet,
    Other,
}

/// Returns a page.
pub(in crate::ui) fn page(cluster: &str, visitor: &Visitor, place: Place, title: &str, content: &Markup) -> Markup {
    let current = |own: Place| (place == own).then_some("page");
    let header = html! {
        nav aria-label="Main" {
            a href="/" aria-current=[current(Place::Stacks)] { "Stacks" }
            a href="/fleet" aria-current=[current(Place::Fleet)] { "Fleet" }
        }
        form.user method="post" action="/sign-out" {
            input type="hidden" name="form-token" value=(visitor.form_token);
            span title="Signed-in user" { (visitor.session.user) }
            button.link type="submit" { "Sign out" }
        }
    };
    document(cluster, title, &header, content)
}

/// Returns the page with the sign-in form. `next` is the path to open after the sign-in. `has_issuer` is true if users
/// can also sign in through an OIDC issuer.
pub(in crate::ui) fn sign_in(cluster: &str, next: &str, has_issuer: bool, error: Option<&str>) -> Markup {
    let return_to: String = form_urlencoded::byte_serialize(next.as_bytes()).collect();
    let content = html! {
        h1 { "Sign in" }
        @if let Some(error) = error {
            p.notice.bad role="alert" { (error) }
        }
        @if has_issuer {
            p { a.button href={ "/sign-in/oidc?next=" (return_to) } { "Sign in with single sign-on" } }
            h2 { "Or use a token" }
        }
        form.panel method="post" action="/sign-in" autocomplete="off" {
            input type="hidden" name="next" value=(next);
            label for="token" { "Token of the Kubernetes API" }
            textarea id="token" name="token" rows="5" required spellcheck="false" autocapitalize="off" autocomplete="off"
                aria-describedby="token-help" {}
            p.hint id="token-help" {
                "This token determines what you can read and change. To create a token that expires after eight hours, run: "
                code { "kubectl create token SERVICE_ACCOUNT --namespace NAMESPACE --duration 8h" }
            }
            button.primary type="submit" { "Sign in" }
        }
    };
    document(cluster, "Sign in", &html! {}, &content)
}

/// Returns the page with an error. `stack` is the path to the page of the Stack whose action has failed.
pub(in crate::ui) fn error(cluster: &str, visitor: Option<&Visitor>, message: &str, stack: Option<&str>) -> Markup {
    let content = html! {
        h1 { "The request failed" }
        p.notice.bad role="alert" { (message) }
        @if let Some(stack) = stack { p { a href=(stack) { "Return to the Stack" } } }
        p { a href="/" { "Show all Stacks" } }
    };
    match visitor {
        Some(visitor) => page(cluster, visitor, Place::Other, "Error", &content),
        None => document(cluster, "Error", &html! {}, &content),
    }
}

/// Returns a page that loads a path on this server. The browser sends the session cookie only if a page from this
/// server opens the path, and not if a link on another site opens the path.
pub(in crate::ui) fn reload(path: &str) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content={ "0; url=" (path) };
                title { "pulumi-controller" }
                // Without this link, the browser can request an icon from the server.
                link rel="icon" href="data:,";
            }
            body { p { a href=(path) { "Continue" } } }
        }
    }
}

fn document(cluster: &str, title: &str, header: &Markup, content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title {
                    (title) " – "
                    @if !cluster.is_empty() { (cluster) " – " }
                    "pulumi-controller"
                }
                link rel="icon" href="data:,";
                link rel="stylesheet" href={ "/style.css?v=" (VERSION) };
                script src={ "/script.js?v=" (VERSION) } defer {}
            }
            body {
                a.skip href="#content" { "Skip to content" }
                header {
                    a.brand href="/" { "pulumi-controller" }
                    @if !cluster.is_empty() { span.cluster { (cluster) } }
                    (header)
                }
                main id="content" tabindex="-1" { (content) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped() {
        let text = sign_in("<b>", "/\"><script>", true, Some("<script>alert(1)</script>")).into_string();
        assert!(!text.contains("<b>") && !text.contains("<script>") && text.contains("&lt;script&gt;alert"), "{text}");
        assert!(text.starts_with("<!DOCTYPE html>") && text.contains("value=\"/&quot;&gt;&lt;script&gt;\""), "{text}");
        let failed = error("", None, "broken", Some("/stacks/apps/web")).into_string();
        assert!(failed.contains("<a href=\"/stacks/apps/web\">Return to the Stack</a>"), "{failed}");
        assert!(!failed.contains("Sign out"), "{failed}");
    }

    #[test]
    fn pages_load_nothing_from_other_servers_and_contain_no_inline_code() {
        let text = sign_in("production", "/", false, None).into_string();
        for forbidden in ["http://", "https://", " style=", "<style", " onclick", "javascript:"] {
            assert!(!text.contains(forbidden), "{forbidden}: {text}");
        }
        assert!(reload("/stacks/apps/web?a=1&b=2").into_string().contains("0; url=/stacks/apps/web?a=1&amp;b=2"));
    }
}
