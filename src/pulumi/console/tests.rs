use proptest::prelude::*;

use super::*;

#[test]
fn the_permalink_of_the_update_is_found() {
    let table = [
        (
            "Updating (dev)\n\nView Live: https://app.pulumi.com/o/p/dev/updates/1\n\n + x\n",
            Some("https://app.pulumi.com/o/p/dev/updates/1"),
        ),
        (
            "View in Browser (Ctrl+O): https://app.pulumi.com/o/p/dev/updates/2\r\n",
            Some("https://app.pulumi.com/o/p/dev/updates/2"),
        ),
        (
            "View Live: https://app.pulumi.com/o/p/dev/previews/0b6c\n",
            Some("https://app.pulumi.com/o/p/dev/previews/0b6c"),
        ),
        ("Permalink: file:///state/.pulumi/stacks/p/dev.json", None),
        ("Permalink: https://evil.example.com/login?next=phish", None),
        ("View Live: https://app.pulumi.com/o/p/other/updates/1", None),
        ("    View Live: https://app.pulumi.com/o/p/dev/updates/1", None),
        ("View Live: \n", None),
        ("it says View Live: x\n", None),
        ("", None),
    ];
    for (stdout, expected) in table {
        assert_eq!(permalink(stdout, "o/dev").as_deref(), expected, "{stdout}");
    }
}

#[test]
fn only_color_codes_are_removed() {
    let table = [
        ("<{%fg 1%}>error:<{%reset%}> no", "error: no"),
        ("\u{1b}[31mError\u{1b}[0m: \u{1b}[1;4m\"${x}\u{1b}[0m\"", "Error: \"${x}\""),
        ("a < b <{ %}> \u{1b} \u{1b}[", "a < b <{ %}> \u{1b} \u{1b}["),
        ("<{%never closed", "<{%never closed"),
        ("", ""),
    ];
    for (text, expected) in table {
        assert_eq!(without_colors(text), expected);
    }
}

#[test]
fn a_text_for_display_contains_no_control_and_format_characters() {
    assert_eq!(for_display("a\u{1b}[31m\u{7}b\u{202e}c\u{2028}d\u{2066}e\nf"), "abcde\nf");
}

#[test]
fn shortened_text_keeps_its_beginning_and_end() {
    let table =
        [("short", 5, "short"), ("0123456789abcdef", 11, "012 ... def"), ("ééééé", 9, "é ... é"), ("abc", 2, "")];
    for (text, limit, expected) in table {
        assert_eq!(shorten(text, limit), expected);
    }
}

proptest! {
    #[test]
    fn shortened_text_is_never_longer_than_its_limit(text in ".{0,40}", limit in 0_usize..60) {
        prop_assert!(shorten(&text, limit).len() <= limit);
    }

    #[test]
    fn arbitrary_text_never_causes_a_panic(text in "(<\\{%|%\\}>|\u{1b}|\\[|[0-9;m]|é|.){0,60}") {
        let _ = without_colors(&text);
        let _ = permalink(&text, "dev");
    }
}

#[test]
fn request_ids_are_removed_from_errors() {
    let rows = [
        (
            "operation error S3: PutObject, https response error StatusCode: 403, RequestID: 4J5V, HostID: a+b/c==, api error \
             AccessDenied: Access Denied",
            "operation error S3: PutObject, https response error StatusCode: 403, api error AccessDenied: Access Denied",
        ),
        (
            "StatusCode: 301, RequestID: 4J5V, HostID: , api error PermanentRedirect",
            "StatusCode: 301, api error PermanentRedirect",
        ),
        (
            "AccessDenied: Access Denied\n\tstatus code: 403, request id: 4J5V, host id: a+b/c=",
            "AccessDenied: Access Denied\n\tstatus code: 403",
        ),
        ("failed (RequestID: 12-34)", "failed ()"),
        ("no identifier", "no identifier"),
        ("", ""),
    ];
    for (text, expected) in rows {
        assert_eq!(remove_request_ids(text), expected);
    }
}

proptest! {
    #[test]
    fn no_request_id_remains_after_the_removal(text in "(RequestID: |host id: |, |é|[a-z]|\\n){0,20}") {
        prop_assert!(find_request_id(&remove_request_ids(&text)).is_none());
    }
}
