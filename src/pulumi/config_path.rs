//! Paths into the stack configuration in the syntax of `pulumi config set --path`, for example `names[0]` or
//! `web.ports["http"]`.

use super::document::{Mapping, Node, Scalar};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Segment {
    Key(String),
    Index(usize),
}

/// Parses a path, whose first segment is the name of a config key. The error is a message for users.
pub fn parse(text: &str) -> Result<Vec<Segment>, String> {
    let mut segments = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (segment, after) = match rest.strip_prefix('[') {
            Some(bracket) => in_brackets(bracket)?,
            None => plain(rest.strip_prefix('.').filter(|_| !segments.is_empty()).unwrap_or(rest))?,
        };
        segments.push(segment);
        rest = after;
    }
    match segments.first() {
        Some(Segment::Key(_)) => Ok(segments),
        Some(Segment::Index(_)) => Err("must begin with a name, not with an index".to_owned()),
        None => Err("must not be empty".to_owned()),
    }
}

fn plain(text: &str) -> Result<(Segment, &str), String> {
    let end = text.find(['.', '[']).unwrap_or(text.len());
    let (name, rest) = text.split_at(end);
    if name.is_empty() {
        return Err("empty name".to_owned());
    }
    Ok((Segment::Key(name.to_owned()), rest))
}

fn in_brackets(text: &str) -> Result<(Segment, &str), String> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (index, rest) = text.split_once(']').ok_or("unclosed bracket")?;
        let index = index.parse().map_err(|_| format!("[{index}] must be a number or a quoted name"))?;
        return Ok((Segment::Index(index), rest));
    };
    let mut name = String::new();
    let mut characters = quoted.char_indices();
    while let Some((position, character)) = characters.next() {
        match character {
            '"' => {
                let rest = quoted.get(position + 1..).and_then(|rest| rest.strip_prefix(']'));
                return rest
                    .map(|rest| (Segment::Key(name), rest))
                    .ok_or_else(|| "missing bracket after a quoted name".to_owned());
            }
            '\\' => name.extend(characters.next().map(|(_, escaped)| escaped)),
            other => name.push(other),
        }
    }
    Err("unclosed quote".to_owned())
}

/// Sets the value at `path` below the entry `root` of a mapping, and creates missing parents. The error is a message
/// for users.
pub fn set(within: &mut Mapping, root: &str, path: &[Segment], value: Node) -> Result<(), String> {
    set_in(entry(within, root), path, value)
}

/// Returns the value at `path` below the entry `root` of a mapping.
pub fn get<'a>(within: &'a Mapping, root: &str, path: &[Segment]) -> Option<&'a Node> {
    let mut node = within.iter().find(|(key, _)| key.text == root).map(|(_, node)| node)?;
    for segment in path {
        node = match (node, segment) {
            (Node::Mapping(mapping), Segment::Key(key)) => {
                mapping.iter().find(|(k, _)| k.text == *key).map(|(_, n)| n)?
            }
            (Node::Sequence(list), Segment::Index(index)) => list.get(*index)?,
            _ => return None,
        };
    }
    Some(node)
}

fn entry<'a>(within: &'a mut Mapping, name: &str) -> &'a mut Node {
    let position = within.iter().position(|(key, _)| key.text == name).unwrap_or_else(|| {
        within.push((Scalar { text: name.to_owned(), plain: true }, null()));
        within.len() - 1
    });
    #[expect(clippy::indexing_slicing, reason = "the index comes from `position` or belongs to the pushed entry")]
    &mut within[position].1
}

fn set_in(node: &mut Node, path: &[Segment], value: Node) -> Result<(), String> {
    let Some((segment, rest)) = path.split_first() else {
        *node = value;
        return Ok(());
    };
    if is_null_node(node) {
        *node = match segment {
            Segment::Key(_) => Node::Mapping(Mapping::new()),
            Segment::Index(_) => Node::Sequence(Vec::new()),
        };
    }
    match (node, segment) {
        (Node::Mapping(mapping), Segment::Key(key)) => set_in(entry(mapping, key), rest, value),
        (Node::Sequence(list), Segment::Index(index)) => {
            if *index == list.len() {
                list.push(null());
            }
            let length = list.len();
            let next = list
                .get_mut(*index)
                .ok_or_else(|| format!("index {index} is out of range: the length of the list is {length}"))?;
            set_in(next, rest, value)
        }
        (_, Segment::Key(key)) => Err(format!("cannot set {key:?} in a value that is not an object")),
        (_, Segment::Index(index)) => Err(format!("cannot set [{index}] in a value that is not a list")),
    }
}

fn null() -> Node {
    Node::Scalar(Scalar { text: "null".to_owned(), plain: true })
}

fn is_null_node(node: &Node) -> bool {
    matches!(node, Node::Scalar(scalar) if scalar.is_null())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::pulumi::document;

    #[test]
    fn config_paths_are_parsed_as_in_the_cli() {
        let key = |name: &str| Segment::Key(name.to_owned());
        let rows = [
            ("root", vec![key("root")]),
            ("root.nested", vec![key("root"), key("nested")]),
            ("root[\"nested\"]", vec![key("root"), key("nested")]),
            ("root.list[0].name", vec![key("root"), key("list"), Segment::Index(0), key("name")]),
            ("root[100]", vec![key("root"), Segment::Index(100)]),
            ("root[\"a.b\"].c", vec![key("root"), key("a.b"), key("c")]),
            (r#"root["with \"quotes\" [and] \\"]"#, vec![key("root"), key("with \"quotes\" [and] \\")]),
            ("[\"root key\"].x", vec![key("root key"), key("x")]),
        ];
        for (text, expected) in rows {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
        for (text, why) in [
            ("", "empty"),
            ("[0]", "must begin with a name"),
            ("a..b", "empty name"),
            ("a[", "unclosed bracket"),
            ("a[x]", "must be a number"),
            ("a[\"b]", "unclosed quote"),
            ("a[\"b\"", "missing bracket"),
            ("a[-1]", "must be a number"),
        ] {
            assert!(parse(text).unwrap_err().contains(why), "{text}: {:?}", parse(text));
        }
    }

    fn after(before: &str, path: &str, value: Value) -> Result<String, String> {
        let Some(Node::Mapping(mut mapping)) = document::parse(before).unwrap() else { panic!("a mapping") };
        let path = parse(path).unwrap();
        set(&mut mapping, "root", &path[1..], Node::from(&value))?;
        assert_eq!(get(&mapping, "root", &path[1..]), Some(&Node::from(&value)));
        Ok(document::to_yaml(&mapping))
    }

    #[test]
    fn a_value_is_set_at_its_path_and_other_values_are_kept() {
        let rows = [
            ("{}", "root.a.b", json!(1), "root:\n  a:\n    b: 1\n"),
            ("root: {a: {b: 1, c: 2}}", "root.a.b", json!("x"), "root:\n  a:\n    b: \"x\"\n    c: 2\n"),
            ("root: [1, 2]", "root[1]", json!(3), "root:\n  - 1\n  - 3\n"),
            ("root: [1, 2]", "root[2].a", json!(true), "root:\n  - 1\n  - 2\n  -\n    a: true\n"),
            ("other: 1", "root[0]", json!("x"), "other: 1\nroot:\n  - \"x\"\n"),
        ];
        for (before, path, value, expected) in rows {
            assert_eq!(after(before, path, value), Ok(expected.to_owned()), "{path} in {before}");
        }
        for (before, path, why) in [
            ("root: text", "root.a", "not an object"),
            ("root: {a: 1}", "root[0]", "not a list"),
            ("root: [1]", "root[2]", "index 2 is out of range: the length of the list is 1"),
        ] {
            assert!(after(before, path, json!(1)).unwrap_err().contains(why), "{path} in {before}");
        }
    }
}
