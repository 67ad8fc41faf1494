//! Keys of the outputs of a Stack in a Secret, in the format of the Pulumi Kubernetes Operator.

use std::collections::HashSet;

use crate::artifact::Digest;

/// Maximum length of a key in a Secret.
const MAX_KEY: usize = 253;
/// Length of the hash in a key, in characters.
const HASH_LENGTH: usize = 10;

/// Returns the key of the output with the given name in a Secret. `contains` returns whether the Secret has a key.
pub fn stored_key(name: &str, contains: impl Fn(&str) -> bool) -> String {
    let key = key(name);
    let distinct = distinct_key(&key, name);
    if key != name && contains(&distinct) { distinct } else { key }
}

/// Returns the key under which the Secret contains the output with the given name, unless another output already has this
/// key. Each key is valid in a Secret, because one invalid key would prevent the controller from storing all outputs.
fn key(name: &str) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let key: String = name.chars().map(valid).collect();
    let key = match key.strip_prefix('.') {
        Some(rest) if rest.is_empty() || rest.starts_with('.') => format!("_{rest}"),
        _ if key.is_empty() => "_".to_owned(),
        _ => key,
    };
    if key.len() > MAX_KEY { distinct_key(&key, name) } else { key }
}

/// Returns a different key for each output. If the names of several outputs have the same key, one of these outputs has
/// this key, and the keys of the others end with a hash.
pub fn keys<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let mut used: HashSet<String> = names.clone().filter(|name| key(name) == *name).map(str::to_owned).collect();
    let unused = |name: &str| {
        let key = key(name);
        if key == name || used.insert(key.clone()) { key } else { distinct_key(&key, name) }
    };
    names.map(unused).collect()
}

/// Returns the key with a hash of the name.
fn distinct_key(key: &str, name: &str) -> String {
    let digest = Digest::of(name.as_bytes()).to_string();
    let hash = digest.rsplit(':').next().unwrap_or_default();
    let start = |text: &str, length: usize| text.chars().take(length).collect::<String>();
    format!("{}-{}", start(key, MAX_KEY - HASH_LENGTH - 1), start(hash, HASH_LENGTH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_output_has_a_valid_key_of_its_own() {
        let rows = [
            ("url", "url"),
            ("my token!", "my_token_"),
            (".", "_"),
            ("..", "_."),
            ("..x", "_.x"),
            (".x", ".x"),
            ("", "_"),
            ("../../x", "_._.._x"),
        ];
        for (name, expected) in rows {
            assert_eq!(key(name), expected, "{name}");
        }
        let long = key(&"a".repeat(300));
        assert_eq!(long.len(), MAX_KEY);
        assert_ne!(long, key(&"a".repeat(301)));
        let names = ["a/b", "a b", "a_b"];
        let found = keys(names.into_iter());
        assert_eq!(found[2], "a_b", "the output with exactly this name");
        assert!(found[..2].iter().all(|key| key.starts_with("a_b-")), "{found:?}");
        for (name, key) in names.iter().zip(&found) {
            assert_eq!(&stored_key(name, |stored| found.iter().any(|key| key == stored)), key, "{name}");
        }
        assert_eq!(HashSet::<String>::from_iter(found).len(), 3);
    }
}
