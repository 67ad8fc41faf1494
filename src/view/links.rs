//! URLs in the status of objects, as far as users can open them.

/// Beginnings of the URLs of web pages.
const WEB: [&str; 2] = ["https://", "http://"];
/// Beginnings of the URLs of a history in object storage.
const OBJECT_STORAGE: [&str; 3] = ["s3://", "gs://", "az://"];

/// Returns the URL of an update if a browser can open it. The program of a tenant can influence the URL, so the URL can
/// have any scheme, such as `javascript:`, or `file:` for a directory in the workspace pod.
pub fn permalink(url: &str) -> Option<&str> {
    begins_with(url, &WEB)
}

/// Returns the URL of a stored run if the tools of the storage provider can read it. Otherwise, the URL refers to a
/// directory in the controller's container, which users cannot read.
pub fn stored_run(url: &str) -> Option<&str> {
    begins_with(url, &OBJECT_STORAGE)
}

fn begins_with<'a>(url: &'a str, beginnings: &[&str]) -> Option<&'a str> {
    beginnings.iter().any(|beginning| url.starts_with(beginning)).then_some(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_urls_that_users_can_open_are_links() {
        let rows = [
            ("https://app.pulumi.com/acme/web/dev/updates/1", true, false),
            ("http://pulumi.internal:9000/acme/web/dev/updates/1", true, false),
            ("s3://runs/apps/web/1", false, true),
            ("gs://runs/apps/web/1", false, true),
            ("az://runs/apps/web/1", false, true),
            ("file:///state/.pulumi/stacks/web/dev.json", false, false),
            ("file:///data/history/apps/web/1", false, false),
            ("javascript:alert('https://a')", false, false),
            ("https:app", false, false),
            ("", false, false),
        ];
        for (url, is_permalink, is_stored_run) in rows {
            assert_eq!(permalink(url), is_permalink.then_some(url), "{url}");
            assert_eq!(stored_run(url), is_stored_run.then_some(url), "{url}");
        }
    }
}
