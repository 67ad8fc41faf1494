//! YAML documents as trees. The parsed trees preserve the text of plain scalars, so that a rewritten document has the
//! same meaning for the CLI.
//!
//! The CLI parses YAML with the Go YAML library. For example, `yes` is a string, `007` is 7, and `2020-01-01` is a
//! time. Converting scalars to Rust types and back would change some values.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;
use serde_saphyr::granit_parser::{Event, Options, Parser, ScalarStyle, Span, Tag};

/// Maximum length of a document, in bytes.
const MAXIMUM_LENGTH: usize = 1024 * 1024;
/// Maximum number of nodes in a document after alias expansion.
const MAXIMUM_NODES: usize = 100_000;
/// Maximum nesting depth of a document.
const MAXIMUM_DEPTH: usize = 100;
/// Maximum length of a key without a preceding `?`, in bytes. YAML permits 1024 characters.
const MAX_SIMPLE_KEY: usize = 500;

/// A scalar: a quoted string, or plain text whose type depends on the parser.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar {
    pub text: String,
    pub plain: bool,
}

/// Value in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    Scalar(Scalar),
    Sequence(Vec<Node>),
    Mapping(Mapping),
}

/// Keys and values in document order.
pub type Mapping = Vec<(Scalar, Node)>;

impl Scalar {
    pub fn string(text: impl Into<String>) -> Self {
        Scalar { text: text.into(), plain: false }
    }

    pub fn plain(text: impl Into<String>) -> Self {
        Scalar { text: text.into(), plain: true }
    }

    /// Returns whether the scalar is null.
    pub fn is_null(&self) -> bool {
        self.plain && matches!(self.text.as_str(), "" | "~" | "null" | "Null" | "NULL")
    }
}

impl From<&Value> for Node {
    fn from(value: &Value) -> Self {
        match value {
            Value::Null => Node::Scalar(Scalar::plain("null")),
            Value::Bool(value) => Node::Scalar(Scalar::plain(value.to_string())),
            Value::Number(value) => Node::Scalar(Scalar::plain(value.to_string())),
            Value::String(value) => Node::Scalar(Scalar::string(value)),
            Value::Array(values) => Node::Sequence(values.iter().map(Node::from).collect()),
            Value::Object(values) => {
                Node::Mapping(values.iter().map(|(key, value)| (Scalar::string(key), Node::from(value))).collect())
            }
        }
    }
}

/// A mapping or sequence that the parser has not completely read yet.
enum Open {
    Sequence(Vec<Node>),
    Mapping(Mapping, Option<Scalar>),
}

#[derive(Default)]
struct Reader {
    open: Vec<(Open, usize)>,
    anchors: HashMap<usize, Node>,
    nodes: usize,
    root: Option<Node>,
}

/// Parses the first document in a string. Returns `None` for an empty string. The error is a message for users and
/// contains the line number.
pub fn parse(text: &str) -> Result<Option<Node>, String> {
    if text.len() > MAXIMUM_LENGTH {
        return Err(format!("exceeds the maximum length of {MAXIMUM_LENGTH} bytes"));
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut reader = Reader::default();
    let mut parser = Parser::new_from_str_with_options(text, options);
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| format!("line {}: {}", error.marker().line(), error.info()))?;
        if matches!(event, Event::DocumentEnd) {
            break;
        }
        reader.read(event).map_err(|reason| at(&span, &reason))?;
    }
    Ok(reader.root)
}

fn at(span: &Span, reason: &str) -> String {
    format!("line {}: {reason}", span.start.line())
}

impl Reader {
    fn read(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let string = has_string_tag(tag.as_deref())?;
                let plain = style == ScalarStyle::Plain && !string;
                self.place(Node::Scalar(Scalar { text: text.into_owned(), plain }), anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                reject_tag(tag.as_deref(), "seq")?;
                self.descend(Open::Sequence(Vec::new()), anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                reject_tag(tag.as_deref(), "map")?;
                self.descend(Open::Mapping(Vec::new(), None), anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => self.ascend(),
            Event::Alias(anchor) => {
                let node =
                    self.anchors.get(&anchor).cloned().ok_or("an alias refers to a node that contains the alias")?;
                self.nodes = self.nodes.saturating_add(count(&node));
                self.place(node, 0)
            }
            _ => Ok(()),
        }
    }

    fn descend(&mut self, open: Open, anchor: usize) -> Result<(), String> {
        if self.open.len() >= MAXIMUM_DEPTH {
            return Err(format!("exceeds the maximum nesting depth of {MAXIMUM_DEPTH}"));
        }
        self.open.push((open, anchor));
        Ok(())
    }

    fn ascend(&mut self) -> Result<(), String> {
        match self.open.pop() {
            Some((Open::Sequence(nodes), anchor)) => self.place(Node::Sequence(nodes), anchor),
            Some((Open::Mapping(entries, _), anchor)) => self.place(Node::Mapping(entries), anchor),
            None => Err("unexpected end of a collection".to_owned()),
        }
    }

    /// Adds a node at the current position. The node becomes the root, the next item, a key, or the last key's value.
    fn place(&mut self, node: Node, anchor: usize) -> Result<(), String> {
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > MAXIMUM_NODES {
            return Err(format!("exceeds the maximum of {MAXIMUM_NODES} values"));
        }
        if depth(&node) + self.open.len() > MAXIMUM_DEPTH {
            return Err(format!("exceeds the maximum nesting depth of {MAXIMUM_DEPTH}"));
        }
        if anchor != 0 {
            self.nodes = self.nodes.saturating_add(count(&node));
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some((Open::Sequence(nodes), _)) => nodes.push(node),
            Some((Open::Mapping(entries, key), _)) => match key.take() {
                Some(key) => entries.push((key, node)),
                None => *key = Some(as_key(node, entries)?),
            },
        }
        Ok(())
    }
}

fn as_key(node: Node, entries: &Mapping) -> Result<Scalar, String> {
    let Node::Scalar(key) = node else {
        return Err("mapping key is not a string".to_owned());
    };
    if entries.iter().any(|(known, _)| known.text == key.text) {
        return Err(format!("duplicate mapping key {:?}", key.text));
    }
    Ok(key)
}

fn has_string_tag(tag: Option<&Tag>) -> Result<bool, String> {
    match tag.map(|tag| (tag, tag.core_suffix())) {
        None => Ok(false),
        Some((_, Some("str"))) => Ok(true),
        Some((tag, _)) => Err(format!("unsupported YAML tag {}", tag.original())),
    }
}

fn reject_tag(tag: Option<&Tag>, allowed: &str) -> Result<(), String> {
    match tag {
        Some(tag) if tag.core_suffix() != Some(allowed) => Err(format!("unsupported YAML tag {}", tag.original())),
        _ => Ok(()),
    }
}

fn count(node: &Node) -> usize {
    match node {
        Node::Scalar(_) => 1,
        Node::Sequence(nodes) => nodes.iter().map(count).sum::<usize>() + 1,
        Node::Mapping(entries) => entries.iter().map(|(_, node)| count(node)).sum::<usize>() + 1,
    }
}

fn depth(node: &Node) -> usize {
    match node {
        Node::Scalar(_) => 0,
        Node::Sequence(nodes) => nodes.iter().map(depth).max().unwrap_or(0) + 1,
        Node::Mapping(entries) => entries.iter().map(|(_, node)| depth(node)).max().unwrap_or(0) + 1,
    }
}

/// Writes a document in YAML block style.
pub fn to_yaml(mapping: &Mapping) -> String {
    let mut out = String::new();
    write_document(&mut out, mapping, usize::MAX);
    out
}

/// Writes a document in YAML block style. Returns `None` if the text exceeds `limit` bytes. The text can be a hundred
/// times longer than the same document in JSON, because each line of a nested list is indented.
pub fn to_yaml_within(limit: usize, mapping: &Mapping) -> Option<String> {
    let mut out = String::new();
    write_document(&mut out, mapping, limit);
    (out.len() <= limit).then_some(out)
}

/// Writes a document. Stops after the value with which the text exceeds `limit` bytes.
fn write_document(out: &mut String, mapping: &Mapping, limit: usize) {
    if mapping.is_empty() {
        out.push_str("{}\n");
    }
    write_mapping(out, mapping, 0, limit);
}

fn write_mapping(out: &mut String, mapping: &Mapping, indent: usize, limit: usize) {
    for (key, value) in mapping {
        if out.len() > limit {
            return;
        }
        let key = yaml_scalar(key);
        if key.len() > MAX_SIMPLE_KEY {
            let _ = write!(out, "{:indent$}? {key}\n{:indent$}:", "", "");
        } else {
            let _ = write!(out, "{:indent$}{key}:", "");
        }
        write_value(out, value, indent, limit);
    }
}

fn write_value(out: &mut String, value: &Node, indent: usize, limit: usize) {
    match value {
        Node::Scalar(scalar) => {
            let _ = writeln!(out, " {}", yaml_scalar(scalar));
        }
        Node::Sequence(nodes) if nodes.is_empty() => out.push_str(" []\n"),
        Node::Mapping(mapping) if mapping.is_empty() => out.push_str(" {}\n"),
        Node::Mapping(mapping) => {
            out.push('\n');
            write_mapping(out, mapping, indent + 2, limit);
        }
        Node::Sequence(nodes) => {
            out.push('\n');
            for node in nodes {
                if out.len() > limit {
                    return;
                }
                let _ = write!(out, "{:1$}-", "", indent + 2);
                write_value(out, node, indent + 2, limit);
            }
        }
    }
}

fn yaml_scalar(scalar: &Scalar) -> String {
    if scalar.plain && may_have_a_type(&scalar.text) {
        return scalar.text.clone();
    }
    quoted(&scalar.text)
}

/// Returns whether a YAML parser could read this text as a type other than string if the text is a plain scalar. Plain
/// scalars that are not strings consist only of ASCII letters, digits, spaces and some punctuation characters.
fn may_have_a_type(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|character| character.is_ascii_alphanumeric() || "+-._:~< ".contains(character))
}

/// Returns a double-quoted string. Escapes characters that YAML parsers reject or fold.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            ' '..='~' | '\u{a0}'..='\u{2027}' | '\u{202a}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}' => {
                out.push(character)
            }
            _ => {
                let _ = write!(out, "\\U{:08x}", u32::from(character));
            }
        }
    }
    out.push('"');
    out
}

pub fn to_json(mapping: &Mapping) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(&mapping_value(mapping))?;
    text.push('\n');
    Ok(text)
}

fn mapping_value(mapping: &Mapping) -> Value {
    Value::Object(mapping.iter().map(|(key, value)| (key.text.clone(), json_value(value))).collect())
}

fn json_value(node: &Node) -> Value {
    match node {
        Node::Scalar(scalar) if scalar.plain => {
            serde_json::from_str(&scalar.text).unwrap_or_else(|_| Value::String(scalar.text.clone()))
        }
        Node::Scalar(scalar) => Value::String(scalar.text.clone()),
        Node::Sequence(nodes) => Value::Array(nodes.iter().map(json_value).collect()),
        Node::Mapping(mapping) => mapping_value(mapping),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn mapping(text: &str) -> Mapping {
        match parse(text).expect("valid YAML") {
            Some(Node::Mapping(mapping)) => mapping,
            other => panic!("expected a mapping, got {other:?}"),
        }
    }

    #[test]
    fn a_plain_scalar_keeps_its_text_and_a_string_is_quoted() {
        let table = [
            ("a: 007", "a: 007\n"),
            ("a: yes", "a: yes\n"),
            ("a: 2020-01-01 10:00:00", "a: 2020-01-01 10:00:00\n"),
            ("a: '007'", "a: \"007\"\n"),
            ("a: !!str 5", "a: \"5\"\n"),
            ("a:", "a: ~\n"),
            ("a: ''", "a: \"\"\n"),
            ("a: x, y # comment", "a: \"x, y\"\n"),
            ("a: |\n  one\n  two\n", "a: \"one\\ntwo\\n\"\n"),
            ("a: >-\n  one\n  two\n", "a: \"one two\"\n"),
            ("{a: [1, [], {b: {}}]}", "a:\n  - 1\n  - []\n  -\n    b: {}\n"),
            ("a: &x {b: 1}\nc: *x", "a:\n  b: 1\nc:\n  b: 1\n"),
            ("a: &x {b: 1}\nc: {<<: *x, d: 2}", "a:\n  b: 1\nc:\n  <<:\n    b: 1\n  d: 2\n"),
            ("{\"a\": 1.50, \"b\": true}", "\"a\": 1.50\n\"b\": true\n"),
        ];
        for (text, expected) in table {
            assert_eq!(to_yaml(&mapping(text)), expected, "{text}");
        }
    }

    #[test]
    fn the_error_for_unsupported_yaml_contains_its_line_number() {
        let table = [
            ("a: 1\nb: [", "line "),
            ("a: 1\na: 2", "line 2: duplicate mapping key \"a\""),
            ("a: 1\n? [b]\n: c", "line 2: mapping key is not a string"),
            ("a: !custom 5", "line 1: unsupported YAML tag !custom"),
            ("a: *x", "line 1: "),
        ];
        for (text, expected) in table {
            let error = parse(text).expect_err(text);
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_document_with_exploding_aliases_is_rejected() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            let _ = writeln!(text, "a{level}: &a{level} [{}]", vec![format!("*a{}", level - 1); 10].join(", "));
        }
        let error = parse(&text).expect_err("should reject a large file");
        assert!(error.ends_with("exceeds the maximum of 100000 values"), "{error}");
    }

    #[test]
    fn a_document_that_is_nested_too_deeply_is_rejected() {
        let error =
            parse(&format!("a: {}{}", "[".repeat(200), "]".repeat(200))).expect_err("should reject deep nesting");
        assert!(error.contains("maximum nesting depth of 100"), "{error}");
    }

    #[test]
    fn a_file_with_many_comments_is_parsed() {
        let text = format!("{}a: 1\n", "# comment\n".repeat(5000));
        assert_eq!(to_yaml(&mapping(&text)), "a: 1\n");
    }

    #[test]
    fn no_text_longer_than_the_limit_is_written() {
        let document = mapping("{a: [1, 2], b: {c: d}}");
        let whole = to_yaml(&document);
        assert_eq!(to_yaml_within(whole.len(), &document), Some(whole.clone()));
        (0..whole.len()).for_each(|limit| assert_eq!(to_yaml_within(limit, &document), None, "{limit}"));
        let nested = (0..90).fold(json!(vec![1; 100_000]), |list, _| Value::Array(vec![list]));
        let mut out = String::new();
        write_document(&mut out, &vec![(Scalar::plain("a"), Node::from(&nested))], 10_000);
        assert!(out.len() < 20_000, "{}", out.len());
    }

    #[test]
    fn json_output_preserves_numbers_and_strings() {
        let document = mapping("{\"a\": \"5\", \"b\": 5, \"c\": [true, null, \"null\"]}");
        let value: Value = serde_json::from_str(&to_json(&document).expect("JSON document")).expect("valid JSON");
        assert_eq!(value, json!({"a": "5", "b": 5, "c": [true, null, "null"]}));
    }

    proptest! {
        #[test]
        fn any_parsed_document_is_unchanged_after_a_round_trip(text in "[a-c:\\-\\[\\]{},&*!<#'\"|> \\n\\t?0-9~]{0,80}") {
            if let Ok(Some(Node::Mapping(document))) = parse(&text) {
                let again = mapping(&to_yaml(&document));
                prop_assert_eq!(to_yaml(&again), to_yaml(&document));
            }
        }

        #[test]
        fn every_string_survives_a_yaml_round_trip(text in any::<String>()) {
            let document = vec![(Scalar::string(&text), Node::Scalar(Scalar::string(&text)))];
            prop_assert_eq!(mapping(&to_yaml(&document)), document);
        }
    }
}
