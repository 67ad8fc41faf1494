//! Label selector parser, so that the controller can match labels without a request to the API server.

use std::collections::BTreeSet;

use kube::core::{Expression, Selector};

/// Parses a selector such as `a=b,c!=d,e in (f,g),!h`. An empty selector matches all labels. The error contains the
/// invalid part.
pub fn parse(text: &str) -> Result<Selector, String> {
    let parts = parts(text).into_iter().filter(|part| !part.is_empty());
    parts.map(|part| expression(part).ok_or_else(|| part.to_owned())).collect::<Result<Vec<_>, _>>().map(|all| {
        let mut selector = Selector::default();
        selector.extend(all);
        selector
    })
}

/// Splits a selector at commas outside parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let is_border = |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(is_border).map(str::trim).collect()
}

fn expression(part: &str) -> Option<Expression> {
    if let Some(absent) = part.strip_prefix('!') {
        return Some(Expression::DoesNotExist(key(absent)?));
    }
    if let Some((name, other)) = part.split_once("!=") {
        return Some(Expression::NotEqual(key(name)?, value(other)?));
    }
    if let Some((name, same)) = part.split_once('=') {
        return Some(Expression::Equal(key(name)?, value(same.strip_prefix('=').unwrap_or(same))?));
    }
    let Some((name, rest)) = part.split_once(char::is_whitespace) else { return Some(Expression::Exists(key(part)?)) };
    let (name, rest) = (key(name)?, rest.trim_start());
    match rest.strip_prefix("notin") {
        Some(set) => Some(Expression::NotIn(name, values(set)?)),
        None => Some(Expression::In(name, values(rest.strip_prefix("in")?)?)),
    }
}

fn values(set: &str) -> Option<BTreeSet<String>> {
    set.trim().strip_prefix('(')?.strip_suffix(')')?.split(',').map(value).collect()
}

fn key(text: &str) -> Option<String> {
    let text = text.trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    (!text.is_empty() && text.chars().all(is_plain)).then(|| text.to_owned())
}

fn value(text: &str) -> Option<String> {
    let text = text.trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.chars().all(is_plain).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::SelectorExt;

    use super::*;

    #[test]
    fn label_selectors_match_as_in_kubernetes() {
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let watched = labels(&[("reconcile.fluxcd.io/watch", "Enabled"), ("team", "a")]);
        let plain = labels(&[("team", "b")]);
        // Columns: the selector, whether it matches the labels `watched`, and whether it matches the labels `plain`.
        let rows = [
            ("", true, true),
            ("reconcile.fluxcd.io/watch=Enabled", true, false),
            ("reconcile.fluxcd.io/watch == Enabled", true, false),
            ("reconcile.fluxcd.io/watch=Disabled", false, false),
            ("reconcile.fluxcd.io/watch", true, false),
            ("!reconcile.fluxcd.io/watch", false, true),
            ("team != a", false, true),
            ("team in (b, c)", false, true),
            ("team notin (b,c)", true, false),
            ("team in (a,b),reconcile.fluxcd.io/watch=Enabled", true, false),
            ("team=a, team=b", false, false),
        ];
        for (text, first, second) in rows {
            let selector = parse(text).unwrap_or_else(|part| panic!("{text:?}: {part:?} is rejected"));
            assert_eq!((selector.matches(&watched), selector.matches(&plain)), (first, second), "{text:?}");
        }
        for text in ["a b", "a in b", "a in (b", "=b", "a=b=c", "a,,b c", "a~b"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
