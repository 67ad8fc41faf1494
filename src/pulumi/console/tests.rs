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
        ("Permalink: file:///state/.pulumi/stacks/p/s.json", Some("file:///state/.pulumi/stacks/p/s.json")),
        ("View Live: \n", None),
        ("it says View Live: x\n", None),
        ("", None),
    ];
    for (stdout, expected) in table {
        assert_eq!(permalink(stdout).as_deref(), expected, "{stdout}");
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
    fn arbitrary_text_does_not_panic(text in "(<\\{%|%\\}>|\u{1b}|\\[|[0-9;m]|é|.){0,60}") {
        let _ = without_colors(&text);
        let _ = permalink(&text);
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
    fn removed_request_ids_are_not_found_again(text in "(RequestID: |host id: |, |é|[a-z]|\\n){0,20}") {
        prop_assert!(find_request_id(&remove_request_ids(&text)).is_none());
    }
}

#[test]
fn the_program_location_is_found_in_errors_of_each_language() {
    let node = "Running program '/share/source/index.ts' failed with an unhandled exception:\n<ref *1> Error: no such zone\n    \
                at find (/share/source/node_modules/zones/index.js:3:9)\n    at Object.<anonymous> \
                (/share/source/lib/dns.ts:12:5)\n    at Module._compile (node:internal/modules/cjs/loader:1554:14)";
    let module =
        "Running program failed with an unhandled exception:\nError: boom\n    at file:///share/source/index.mjs:5:7";
    let python = "Program failed with an unhandled exception:\nTraceback (most recent call last):\n  File \
                  \"/usr/lib/python3.12/runpy.py\", line 88, in _run_code\n  File \"/share/source/__main__.py\", line 3, in \
                  <module>\n    names.make()\n  File \"/share/source/names.py\", line 21, in make\n  File \
                  \"/share/source/venv/lib/python3.12/site-packages/pulumi/output.py\", line 9, in apply\nValueError: no name";
    let table = [
        (node, Some("lib/dns.ts line 12")),
        (module, Some("index.mjs line 5")),
        ("index.ts(5,7): error TS2322: Type 'string' is not assignable to type 'number'.", Some("index.ts line 5")),
        (python, Some("names.py line 21")),
        ("# example\n./main.go:12:3: undefined: nothing", Some("main.go line 12")),
        (
            "panic: runtime error: index out of range\n\ngoroutine 1 [running]:\nmain.main.func1()\n\t/share/source/main.go:14 \
             +0x1d",
            Some("main.go line 14"),
        ),
        (
            "panic: boom\n\ngoroutine 1 [running]:\n\truntime/debug/stack.go:26 +0x5e\n\t\
             github.com/pulumi/pulumi/sdk/v3@v3.259.0/go/pulumi/run.go:120 +0x1\nmain.main()\n\tweb/main.go:14 +0x1d",
            Some("web/main.go line 14"),
        ),
        ("/share/source/Program.cs(9,13): error CS0103: The name 'x' does not exist", Some("Program.cs line 9")),
        ("   at Program.Main() in /share/source/Program.cs:line 7", Some("Program.cs line 7")),
        (
            "[ERROR] /share/source/src/main/java/App.java:[14,5] cannot find symbol",
            Some("src/main/java/App.java line 14"),
        ),
        ("    at example.App.main(App.java:31)", Some("App.java line 31")),
        ("the file index.ts is missing", None),
        ("visit https://example.org/index.js for more", None),
        ("version 3.go: 5", None),
        ("    at x (/usr/lib/node.js:3:4)", None),
        ("", None),
    ];
    for (error, place) in table {
        assert_eq!(program_location(error).as_deref(), place, "{error}");
    }
}

proptest! {
    #[test]
    fn arbitrary_error_output_does_not_panic(text in "(\\.ts|\\.py|:|\\(|\", line |:line |[0-9]{1,12}|/share/source/|é|.|\\n){0,20}") {
        let _ = program_location(&text);
    }
}
