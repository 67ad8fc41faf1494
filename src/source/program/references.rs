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
            let (root, after) = access(reference).map_err(|what| format!("the reference {} {what}", quoted(rest)))?;
            found.roots.push(root);
            rest = after;
        } else {
            found.has_more = true;
            let mut signs = rest.chars();
            signs.next();
            rest = signs.as_str();
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
        let mut signs = rest.chars();
        match signs.next() {
            None => return Err("is not closed by a brace"),
            Some('}') => return root.map(|root| (root, signs.as_str())).ok_or("is empty"),
            Some('.') => rest = signs.as_str(),
            Some('[') => {
                let (key, after) = subscript(signs.as_str(), root.is_none())?;
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
        let after = after.strip_prefix(']').ok_or("has a key that is not closed by a bracket")?;
        return Ok((key, after));
    }
    let (index, after) = text.split_once(']').ok_or("has an index that is not closed by a bracket")?;
    if index.parse::<i64>().is_err() {
        return Err("has an index that is no whole number (a key is written in quotes)");
    }
    if is_first {
        return Err("begins with an index, not with a name");
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
        let mut signs = rest.chars();
        match signs.next() {
            None => return Err("has a key that is not closed by a quote"),
            Some('"') => return Ok((key, signs.as_str())),
            Some(sign) => key.push(sign),
        }
        rest = signs.as_str();
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
            ("${", "is not closed by a brace"),
            ("a ${name", "\"${name\" is not closed by a brace"),
            ("${}", "is empty"),
            ("${.}", "is empty"),
            ("${[0]}", "begins with an index"),
            ("${a[b]}", "no whole number"),
            ("${a[0}", "not closed by a bracket"),
            ("${a[\"b}", "not closed by a quote"),
            ("${a[\"b\"}", "not closed by a bracket"),
        ];
        for (text, wanted) in rows {
            let error = read(text).expect_err(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
