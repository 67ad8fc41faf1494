//! The digest of a stack's settings: how controller and agent agree on which settings are in force.

use sha2::{Digest, Sha256};

use crate::rpc::proto::Settings;

/// Digest of the settings as `sha256:hex`. The order of the configuration items makes no difference.
pub fn settings_digest(settings: &Settings) -> String {
    let mut config: Vec<(&str, &str)> =
        settings.config.iter().map(|item| (item.key.as_str(), item.value.as_str())).collect();
    config.sort_unstable();
    let mut hasher = Sha256::new();
    add(&mut hasher, &settings.stack);
    for (key, value) in config {
        add(&mut hasher, key);
        add(&mut hasher, value);
    }
    format!("sha256:{}", hex::encode(hasher.finalize()))
}

/// Each text goes in with its length first, so that no two lists of texts look the same.
fn add(hasher: &mut Sha256, text: &str) {
    hasher.update((text.len() as u64).to_be_bytes());
    hasher.update(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::proto::ConfigItem;

    fn settings(stack: &str, config: &[(&str, &str)]) -> Settings {
        let config = config.iter().map(|(key, value)| ConfigItem { key: (*key).into(), value: (*value).into() });
        Settings { stack: stack.into(), config: config.collect() }
    }

    #[test]
    fn the_order_of_the_configuration_makes_no_difference() {
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
