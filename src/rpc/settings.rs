//! Digest of a stack's settings, by which controller and agent identify the settings in force.

use sha2::{Digest, Sha256};

use crate::rpc::proto::{ConfigItem, Settings};

/// Returns the digest of the settings as `sha256:hex`. The order of the configuration items makes no difference.
pub fn settings_digest(settings: &Settings) -> String {
    let mut config: Vec<&ConfigItem> = settings.config.iter().collect();
    config
        .sort_unstable_by(|one, other| (&one.key, &one.value, &one.file).cmp(&(&other.key, &other.value, &other.file)));
    let mut hasher = Sha256::new();
    add(&mut hasher, &settings.stack);
    for item in config {
        add(&mut hasher, &item.key);
        add(&mut hasher, &item.value);
        // An item with only a key and a value has the same digest as before the other fields existed.
        if *item != (ConfigItem { key: item.key.clone(), value: item.value.clone(), ..ConfigItem::default() }) {
            add(&mut hasher, &format!("{:?}", (&item.file, &item.variable, item.json, item.path, item.secret)));
        }
    }
    for environment in &settings.environments {
        add(&mut hasher, &format!("environment {environment}"));
    }
    format!("sha256:{}", hex::encode(hasher.finalize()))
}

/// Adds a text, preceded by its length, so that different lists of texts have different digests.
fn add(hasher: &mut Sha256, text: &str) {
    hasher.update((text.len() as u64).to_be_bytes());
    hasher.update(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    fn settings(stack: &str, config: &[(&str, &str)]) -> Settings {
        let config = config.iter().map(|(key, value)| ConfigItem {
            key: (*key).into(),
            value: (*value).into(),
            ..ConfigItem::default()
        });
        Settings { stack: stack.into(), config: config.collect(), environments: Vec::new() }
    }

    #[test]
    fn the_order_of_config_items_does_not_change_the_digest() {
        let one = settings("dev", &[("a:x", "1"), ("a:y", "2")]);
        let other = settings("dev", &[("a:y", "2"), ("a:x", "1")]);
        assert_eq!(settings_digest(&one), settings_digest(&other));
    }

    #[test]
    fn every_difference_in_content_changes_the_digest() {
        let all = [
            settings("dev", &[]),
            settings("prod", &[]),
            settings("dev", &[("a:x", "1")]),
            settings("dev", &[("a:x", "2")]),
            settings("dev", &[("a:x1", "")]),
            settings("deva:x1", &[]),
            settings("dev", &[("a:x", "1"), ("a:y", "1")]),
        ];
        let with = |change: fn(&mut ConfigItem)| {
            let mut settings = settings("dev", &[("a:x", "1")]);
            change(&mut settings.config[0]);
            settings
        };
        let others: [fn(&mut ConfigItem); 5] = [
            |item| item.file = "f".to_owned(),
            |item| item.variable = "f".to_owned(),
            |item| item.json = true,
            |item| item.path = true,
            |item| item.secret = true,
        ];
        let imports = |names: &[&str]| {
            let environments = names.iter().map(|name| (*name).to_owned()).collect();
            Settings { environments, ..settings("dev", &[]) }
        };
        let imports = [imports(&["a"]), imports(&["b"]), imports(&["a", "b"]), imports(&["b", "a"])];
        let all: Vec<Settings> = all.into_iter().chain(others.map(with)).chain(imports).collect();
        let digests: std::collections::BTreeSet<String> = all.iter().map(settings_digest).collect();
        assert_eq!(digests.len(), all.len());
    }

    #[test]
    fn the_digest_stays_the_same_across_versions() {
        assert_eq!(
            settings_digest(&settings("dev", &[("a:x", "\"1\"")])),
            "sha256:3a77114f00ff4fd6c3fc577124f42a7660770a5e40337dc30fa106cf0e24ac54"
        );
    }
}
