//! Parses and cleans the console output of the CLI.

/// Labels that the CLI prints before the URL of an update.
const LABELS: [&str; 4] = ["View Live: ", "View in Browser: ", "View in Browser (Ctrl+O): ", "Permalink: "];
/// Maximum length of the URL in bytes.
const MAX_ADDRESS: usize = 2048;

/// Returns the URL of the update that the CLI printed on stdout, if any.
pub fn permalink(stdout: &str) -> Option<String> {
    stdout.lines().find_map(|line| {
        let line = line.trim();
        let address = LABELS.iter().find_map(|label| line.strip_prefix(label))?.trim();
        (!address.is_empty() && address.len() <= MAX_ADDRESS).then(|| address.to_owned())
    })
}

/// Removes the color tags of the engine (`<{%reset%}>`) and of terminals (`ESC [31m`).
pub fn without_colors(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(['<', '\u{1b}']) {
        let (before, from) = rest.split_at(start);
        out.push_str(before);
        let length = color_length(from);
        // Without a color tag at this position, keep one character and continue the search after it.
        let (color, after) = from.split_at(if length == 0 { 1 } else { length });
        if length == 0 {
            out.push_str(color);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Removes colors and control characters from a text for display.
pub fn for_display(text: &str) -> String {
    without_colors(text).chars().filter(|character| !character.is_control() || "\n\t".contains(*character)).collect()
}

/// Returns the length of the color tag at the start of a text, or 0.
fn color_length(text: &str) -> usize {
    if text.starts_with("<{%") {
        return text.find("%}>").map_or(0, |end| end + 3);
    }
    let Some(parameters) = text.strip_prefix("\u{1b}[") else {
        return 0;
    };
    let length = parameters.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b';').count();
    match parameters.as_bytes().get(length) {
        Some(last) if last.is_ascii_alphabetic() => length + 3,
        _ => 0,
    }
}

/// Shortens a text to at most `limit` bytes and keeps its beginning and its end.
pub fn shorten(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let gap = " ... ";
    let half = limit.saturating_sub(gap.len()) / 2;
    let (beginning, _) = text.split_at(text.floor_char_boundary(half));
    let (_, end) = text.split_at(text.ceil_char_boundary(text.len().saturating_sub(half)));
    if half == 0 { String::new() } else { format!("{beginning}{gap}{end}") }
}

#[cfg(test)]
mod tests {
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
}
