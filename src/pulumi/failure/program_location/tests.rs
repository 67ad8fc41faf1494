use proptest::prelude::*;

use super::*;

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
    for (error, location) in table {
        assert_eq!(program_location(error).as_deref(), location, "{error}");
    }
}

proptest! {
    #[test]
    fn arbitrary_error_output_never_causes_a_panic(text in "(\\.ts|\\.py|:|\\(|\", line |:line |[0-9]{1,12}|/share/source/|é|.|\\n){0,20}") {
        let _ = program_location(&text);
    }
}
