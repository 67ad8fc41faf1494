//! Formats command output: text for users, and JSON or YAML for programs.

use std::io::{ErrorKind, Write as _};

use pulumi_controller::text::{is_unprintable, printable};
use serde::Serialize;

use crate::plugin::args::Format;
use crate::plugin::error::PluginError;

/// Spaces between two table columns.
const GAP: usize = 3;
/// Text of an empty cell.
const EMPTY: &str = "-";

/// Result of a command.
pub trait Screen: Serialize {
    /// Returns the text for users. Each line ends with a line break.
    fn text(&self) -> String;
}

/// Returns the result of a command in a format.
///
/// # Errors
///
/// Returns an error if the result cannot be serialized.
pub fn render(screen: &impl Screen, format: Format) -> Result<String, PluginError> {
    let failed = |cause: String| PluginError::Failed(format!("failed to serialize the output: {cause}"));
    let json = || serde_json::to_string_pretty(screen).map_err(|error| failed(error.to_string()));
    match format {
        Format::Text => Ok(printable(&screen.text())),
        Format::Json => Ok(escaped_json(&json()?) + "\n"),
        Format::Yaml => {
            let yaml = serde_saphyr::to_string(screen).map_err(|error| failed(error.to_string()))?;
            // The serializer does not escape all format characters. In this case, the output uses the JSON syntax,
            // which is part of YAML.
            let yaml = if yaml.contains(is_unprintable) { escaped(&json()?, yaml_escape) } else { yaml };
            Ok(if yaml.ends_with('\n') { yaml } else { yaml + "\n" })
        }
    }
}

/// Prints the result of a command.
///
/// # Errors
///
/// Returns an error if the result cannot be serialized or written.
pub fn print(screen: &impl Screen, format: Format) -> Result<(), PluginError> {
    write(render(screen, format)?.as_bytes())
}

/// Writes to the standard output. A closed pipe is not an error: `head`, for example, closes its pipe early.
///
/// # Errors
///
/// Returns an error if the bytes cannot be written.
pub fn write(bytes: &[u8]) -> Result<(), PluginError> {
    let mut out = std::io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(PluginError::Failed(format!("failed to write the output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Returns a table. An empty cell contains `-`. Replaces line breaks in cells with spaces.
pub fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let cell = |text: &str| match text.split_whitespace().collect::<Vec<_>>().join(" ") {
        text if text.is_empty() => EMPTY.to_owned(),
        text => text,
    };
    let header: Vec<String> = header.iter().map(|title| (*title).to_owned()).collect();
    let rows = rows.iter().map(|row| row.iter().map(|text| cell(text)).collect());
    let lines: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let columns = lines.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        let lengths = lines.iter().filter_map(|line| line.get(column)).map(|text| text.chars().count());
        lengths.max().unwrap_or_default()
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        // Pads the cell manually, because the formatter panics for a width above 65,535.
        let mut padding = 0;
        for (text, width) in line.iter().zip(&widths) {
            out.push_str(&" ".repeat(padding));
            out.push_str(text);
            padding = width.saturating_sub(text.chars().count()) + GAP;
        }
        out.push('\n');
    }
    out
}

/// Escapes the characters in JSON output that [`printable`] would replace. These characters occur only in strings, so
/// the JSON value does not change.
pub fn escaped_json(json: &str) -> String {
    escaped(json, |character| character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")).collect())
}

/// Returns the escape sequence for a character in YAML, which does not support pairs of UTF-16 units.
fn yaml_escape(character: char) -> String {
    format!("\\U{:08x}", u32::from(character))
}

fn escaped(json: &str, escape: fn(char) -> String) -> String {
    let mut out = String::with_capacity(json.len());
    for character in json.chars() {
        if is_unprintable(character) {
            out.push_str(&escape(character));
        } else {
            out.push(character);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Example {
        name: &'static str,
    }

    impl Screen for Example {
        fn text(&self) -> String {
            format!("{}\n", self.name)
        }
    }

    #[test]
    fn a_screen_has_three_formats() {
        let example = Example { name: "w\u{1b}[2Jeb" };
        assert_eq!(render(&example, Format::Text).unwrap(), "w\u{fffd}[2Jeb\n");
        let example = Example { name: "web" };
        assert_eq!(render(&example, Format::Json).unwrap(), "{\n  \"name\": \"web\"\n}\n");
        assert_eq!(render(&example, Format::Yaml).unwrap(), "name: web\n");
    }

    #[test]
    fn json_and_yaml_cannot_control_the_terminal() {
        let name = "a\u{1b}[2J\u{7f}\u{9b}\u{202e}\u{feff}b\nc";
        let json = render(&Example { name }, Format::Json).unwrap();
        assert_eq!(json, "{\n  \"name\": \"a\\u001b[2J\\u007f\\u009b\\u202e\\ufeffb\\nc\"\n}\n");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["name"], name, "the value does not change");
        let yaml = render(&Example { name }, Format::Yaml).unwrap();
        assert!(!yaml.contains(is_unprintable), "{yaml:?}");
        let value: serde_json::Value = serde_saphyr::from_str(&yaml).unwrap();
        assert_eq!(value["name"], name, "the value does not change");
        let tag = render(&Example { name: "a\u{200d}\u{e0067}" }, Format::Yaml).unwrap();
        assert_eq!(tag, "{\n  \"name\": \"a\\U0000200d\\U000e0067\"\n}\n");
    }

    #[test]
    fn a_table_has_aligned_columns_and_no_empty_cells() {
        let rows = [vec!["web".to_owned(), String::new()], vec!["database".to_owned(), "two\nlines".to_owned()]];
        assert_eq!(table(&["NAME", "STATE"], &rows), "NAME       STATE\nweb        -\ndatabase   two lines\n");
        assert_eq!(table(&["NAME"], &[]), "NAME\n");
    }

    #[test]
    fn a_long_cell_does_not_panic() {
        let long = "x".repeat(70_000);
        let last = table(&["NAME", "VALUE"], &[vec!["web".to_owned(), long.clone()]]);
        assert_eq!(last, format!("NAME   VALUE\nweb    {long}\n"), "the last column is not padded");
        let first = table(&["NAME", "VALUE"], &[vec![long.clone(), "web".to_owned()]]);
        assert_eq!(first, format!("NAME{}VALUE\n{long}   web\n", " ".repeat(70_000 - 4 + GAP)));
    }
}
