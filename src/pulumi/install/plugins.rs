//! Selects the installed CLI plugins that a project uses. The name of a plugin's directory consists of its kind, its name
//! and its version, such as `resource-random-v4.16.7`.

use std::collections::BTreeSet;

use serde::Deserialize;

/// Element of the JSON list that `pulumi plugin ls --json` prints.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Plugin {
    name: String,
    kind: String,
    version: String,
}

/// Parses the output of `pulumi plugin ls --project --json`. Returns the directory names of the plugins. Omits plugins
/// without a version, because these plugins are not in the directory of the CLI plugins.
pub fn parse(json: &[u8]) -> Result<BTreeSet<String>, serde_json::Error> {
    let plugins: Vec<Plugin> = serde_json::from_slice(json)?;
    let versioned = plugins.into_iter().filter(|plugin| !plugin.version.is_empty());
    Ok(versioned.map(|Plugin { name, kind, version }| format!("{kind}-{name}-v{version}")).collect())
}

/// Returns whether several versions of a plugin are installed. `names` contains the directory names of the plugins.
pub fn has_several_versions(names: &[String]) -> bool {
    names.iter().map(|name| without_version(name)).collect::<BTreeSet<_>>().len() < names.len()
}

/// Removes the plugins of which the project uses only other versions, and moves the plugins in `used` to the start.
///
/// The result contains a plugin if `used` contains no version of it. The CLI does not list the plugins that other
/// plugins use.
pub fn select(installed: Vec<String>, used: &BTreeSet<String>) -> Vec<String> {
    let (mut selected, others): (Vec<_>, Vec<_>) = installed.into_iter().partition(|name| used.contains(name));
    let plugins: BTreeSet<String> = selected.iter().map(|name| without_version(name).to_owned()).collect();
    selected.extend(others.into_iter().filter(|name| !plugins.contains(without_version(name))));
    selected
}

fn without_version(name: &str) -> &str {
    name.rsplit_once("-v").map_or(name, |(plugin, _)| plugin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_plugins_of_a_project_are_parsed() {
        let json = br#"[
            {"name": "random", "kind": "resource", "version": "4.16.7", "size": 1, "lastUsedTime": "now"},
            {"name": "nodejs", "kind": "language", "version": ""}
        ]"#;
        assert_eq!(parse(json).unwrap(), ["resource-random-v4.16.7".to_owned()].into());
        assert!(parse(b"[]").unwrap().is_empty());
        assert!(parse(b"").is_err() && parse(b"{}").is_err());
    }

    #[test]
    fn only_unused_versions_of_used_plugins_are_removed() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
        for (installed, used, expected) in [
            (&["resource-a-v1.0.0", "resource-b-v1.0.0"][..], &[][..], &["resource-a-v1.0.0", "resource-b-v1.0.0"][..]),
            (
                &["resource-a-v1.0.0", "resource-b-v1.0.0"],
                &["resource-b-v1.0.0"],
                &["resource-b-v1.0.0", "resource-a-v1.0.0"],
            ),
            (&["resource-a-v1.0.0", "resource-a-v1.1.0"], &["resource-a-v1.1.0"], &["resource-a-v1.1.0"]),
            (&["resource-a-v1.0.0", "resource-a-v2.0.0-alpha.1"], &["resource-a-v1.0.0"], &["resource-a-v1.0.0"]),
            (
                &["resource-a-v1.0.0", "resource-a-v2.0.0"],
                &["resource-a-v1.0.0", "resource-a-v2.0.0"],
                &["resource-a-v1.0.0", "resource-a-v2.0.0"],
            ),
            (
                &["resource-a-v1.0.0", "resource-a-v2.0.0"],
                &["resource-a-v3.0.0"],
                &["resource-a-v1.0.0", "resource-a-v2.0.0"],
            ),
            (
                &["resource-a-v1.0.0", "resource-a-v2-v1.0.0", "tool-a-v1.0.0"],
                &["resource-a-v1.0.0"],
                &["resource-a-v1.0.0", "resource-a-v2-v1.0.0", "tool-a-v1.0.0"],
            ),
        ] {
            let used = names(used).into_iter().collect();
            assert_eq!(select(names(installed), &used), names(expected), "{installed:?} {used:?}");
        }
    }

    #[test]
    fn several_versions_of_a_plugin_are_detected() {
        for (names, expected) in [
            (&["resource-a-v1.0.0", "resource-b-v1.0.0"][..], false),
            (&["resource-a-v1.0.0", "tool-a-v1.0.0", "resource-a-native-v1.0.0"], false),
            (&["resource-a-v1.0.0", "resource-b-v1.0.0", "resource-a-v1.1.0"], true),
            (&[], false),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(has_several_versions(&names), expected, "{names:?}");
        }
    }
}
