//! Protocol versions of agents. An agent silently ignores fields that it does not know, so the controller sends a
//! request only to an agent whose protocol version supports it.

use crate::rpc::proto::{ConfigItem, OperationKind, RunOptions, RunRequest};

/// Protocol version of the current agent. A new field of a run request that changes the behavior of a run requires a
/// new version, and [`needed`] returns that version for the requests that set the field.
///
/// 2: a destroy of a stack that is not in the backend fails.
///
/// 3: a run waits until the directories that it requires are mounted.
///
/// 4: a destroy of a stack other than the applied one fails.
pub const PROTOCOL_VERSION: u32 = 4;
/// Minimum protocol version of an agent that waits until Secrets and ConfigMaps are mounted.
pub const REQUIRED_DIRECTORIES: u32 = 3;

/// Returns the minimum protocol version of an agent for this run.
pub fn needed(request: &RunRequest) -> u32 {
    if request.kind() == OperationKind::Destroy {
        return if request.applied_stack.is_some() { 4 } else { 2 };
    }
    let is_first = matches!(request.kind(), OperationKind::Up | OperationKind::Unspecified)
        && request.options.as_ref().is_none_or(|options| *options == RunOptions::default())
        && request.pending_creates == 0
        && request.timeout_seconds == 0
        && request.idle_timeout_seconds == 0
        && request
            .settings
            .as_ref()
            .is_none_or(|settings| settings.environments.is_empty() && settings.config.iter().all(is_plain));
    if is_first { 0 } else { 1 }
}

fn is_plain(item: &ConfigItem) -> bool {
    *item == ConfigItem { key: item.key.clone(), value: item.value.clone(), ..ConfigItem::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::proto::{PulumiStack, Settings};

    #[test]
    fn requests_with_newer_features_need_a_newer_agent() {
        let plain = RunRequest {
            kind: OperationKind::Up.into(),
            settings: Some(Settings {
                config: vec![ConfigItem { key: "a".to_owned(), value: "1".to_owned(), ..ConfigItem::default() }],
                ..Settings::default()
            }),
            options: Some(RunOptions::default()),
            lock_recovery: true,
            ..RunRequest::default()
        };
        assert_eq!(needed(&plain), 0);
        let config = |item| Some(Settings { config: vec![item], ..Settings::default() });
        let rows = [
            ("a preview", RunRequest { kind: OperationKind::Preview.into(), ..plain.clone() }),
            (
                "targets",
                RunRequest {
                    options: Some(RunOptions { targets: vec!["urn".to_owned()], ..RunOptions::default() }),
                    ..plain.clone()
                },
            ),
            ("a time limit", RunRequest { timeout_seconds: 1, ..plain.clone() }),
            ("creations in doubt", RunRequest { pending_creates: 1, ..plain.clone() }),
            (
                "config in a file",
                RunRequest {
                    settings: config(ConfigItem { file: "/f".to_owned(), ..ConfigItem::default() }),
                    ..plain.clone()
                },
            ),
            (
                "secret config",
                RunRequest { settings: config(ConfigItem { secret: true, ..ConfigItem::default() }), ..plain.clone() },
            ),
            (
                "an environment of ESC",
                RunRequest {
                    settings: Some(Settings { environments: vec!["e".to_owned()], ..Settings::default() }),
                    ..plain.clone()
                },
            ),
        ];
        for (name, request) in rows {
            assert_eq!(needed(&request), 1, "{name}");
        }
        let destroy = RunRequest { kind: OperationKind::Destroy.into(), ..plain };
        assert_eq!(needed(&destroy), 2, "agents before report a stack that is not found as destroyed");
        let applied = RunRequest { applied_stack: Some(PulumiStack::default()), ..destroy };
        assert_eq!(needed(&applied), 4, "agents before destroy another stack than the applied one");
    }
}
