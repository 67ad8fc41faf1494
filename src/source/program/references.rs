//! Parses references in the texts of a Program: `${name}`, `${name.property}`, `${name["key"][0]}`. `$$` is an escaped dollar sign.

/// The references of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text {
    /// First name of each reference.
    pub roots: Vec<String>,
    /// Whether the text contains anything except references.
    has_more: bool,
}

impl Text {
    /// Returns the name if the text is exactly one reference.
    pub fn only_root(&self) -> Option<&str> {
        match self.roots.as_slice() {
            [root] if !self.has_more => Some(root),
            _ => None,
        }
    }
}

/// Parses a text. The error contains the invalid reference and the reason.
pub fn read(text: &str) -> Result<Text, String> {
    let mut found = Text::default();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("$$") {
            found.has_more = true;
            rest = after;
        } else if let Some(reference) = rest.strip_prefix("${") {
            let (root, after) =
                access(reference).map_err(|what| format!("invalid reference {}: {what}", quoted(rest)))?;
            found.roots.push(root);
            rest = after;
        } else {
            found.has_more = true;
            let mut characters = rest.chars();
            characters.next();
            rest = characters.as_str();
        }
    }
    Ok(found)
}

/// Maximum number of characters of a reference in a message.
const SHOWN: usize = 60;

fn quoted(reference: &str) -> String {
    let shown: String = reference.chars().take(SHOWN).collect();
    format!("{shown:?}")
}

/// Returns the first name of a reference and the text after its closing brace.
fn access(reference: &str) -> Result<(String, &str), &'static str> {
    let mut root = None;
    let mut rest = reference;
    loop {
        let mut characters = rest.chars();
        match characters.next() {
            None => return Err("missing closing brace"),
            Some('}') => return root.map(|root| (root, characters.as_str())).ok_or("empty name"),
            Some('.') => rest = characters.as_str(),
            Some('[') => {
                let (key, after) = subscript(characters.as_str(), root.is_none())?;
                root.get_or_insert(key);
                rest = after;
            }
            Some(_) => {
                let (name, after) = rest.split_at(rest.find(['.', '[', '}']).unwrap_or(rest.len()));
                root.get_or_insert_with(|| name.to_owned());
                rest = after;
            }
        }
    }
}

/// Returns a key or an index and the text after its closing bracket.
fn subscript(text: &str, is_first: bool) -> Result<(String, &str), &'static str> {
    if let Some(quoted) = text.strip_prefix('"') {
        let (key, after) = quoted_key(quoted)?;
        let after = after.strip_prefix(']').ok_or("missing closing bracket after the key")?;
        return Ok((key, after));
    }
    let (index, after) = text.split_once(']').ok_or("missing closing bracket after the index")?;
    if index.parse::<i64>().is_err() {
        return Err("index must be an integer (put a key in quotes)");
    }
    if is_first {
        return Err("must start with a name, not with an index");
    }
    Ok((index.to_owned(), after))
}

/// Returns a key up to its closing quote and the text after the quote.
fn quoted_key(text: &str) -> Result<(String, &str), &'static str> {
    let mut key = String::new();
    let mut rest = text;
    loop {
        if let Some(after) = rest.strip_prefix("\\\"") {
            key.push('"');
            rest = after;
            continue;
        }
        let mut characters = rest.chars();
        match characters.next() {
            None => return Err("missing closing quote"),
            Some('"') => return Ok((key, characters.as_str())),
            Some(character) => key.push(character),
        }
        rest = characters.as_str();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_parsed_in_every_form() {
        let rows: [(&str, &[&str], Option<&str>); 12] = [
            ("", &[], None),
            ("plain, $ and { and }", &[], None),
            ("$${name}", &[], None),
            ("${name}", &["name"], Some("name")),
            ("${name.property[0].deep}", &["name"], Some("name")),
            ("${name[\"a.b\\\"}\"].c}", &["name"], Some("name")),
            ("${[\"a name\"].c}", &["a name"], Some("a name")),
            ("${.name}", &["name"], Some("name")),
            ("${aws:region}", &["aws:region"], Some("aws:region")),
            ("a ${name}", &["name"], None),
            ("${one}${two}", &["one", "two"], None),
            ("$$${name}ä", &["name"], None),
        ];
        for (text, roots, only) in rows {
            let read = read(text).expect(text);
            assert!(read.roots.iter().eq(roots), "{text}: {read:?}");
            assert_eq!(read.only_root(), only, "{text}");
        }
    }

    #[test]
    fn an_invalid_reference_is_rejected_with_a_reason() {
        let rows = [
            ("${", "missing closing brace"),
            ("a ${name", "\"${name\": missing closing brace"),
            ("${}", "empty name"),
            ("${.}", "empty name"),
            ("${[0]}", "must start with a name"),
            ("${a[b]}", "index must be an integer"),
            ("${a[0}", "missing closing bracket"),
            ("${a[\"b}", "missing closing quote"),
            ("${a[\"b\"}", "missing closing bracket"),
        ];
        for (text, expected) in rows {
            let error = read(text).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
