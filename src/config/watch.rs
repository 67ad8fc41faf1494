//! Settings for the objects that the controller watches.

use kube::core::Selector;

use super::selector;
use super::values::{ConfigError, invalid};
use crate::api::names;
use crate::cli::ManagerFlags;

/// Returns the namespace to watch, or `None` for all namespaces.
pub(super) fn watch_namespace(flags: &ManagerFlags) -> Result<Option<String>, ConfigError> {
    let namespace = flags.watch_namespace.trim();
    match (flags.watch_all_namespaces, namespace.is_empty()) {
        (true, true) => Ok(None),
        (true, false) => {
            Err(ConfigError(format!("--watch-namespace={namespace} requires --watch-all-namespaces=false")))
        }
        (false, true) => Ok(Some(flags.runtime_namespace.clone())),
        (false, false) if names::is_object_name(namespace) => Ok(Some(namespace.to_owned())),
        (false, false) => Err(invalid("watch-namespace", namespace, "the name of one namespace")),
    }
}

/// Returns the label selector for the controller's kinds, or `None` for all objects. The API server would reject each
/// list with an invalid selector, so that the controller would be ready but would reconcile nothing.
pub(super) fn label_selector(value: &str) -> Result<Option<String>, ConfigError> {
    let value = value.trim();
    // Only the API server evaluates this selector, which can therefore also compare numbers.
    if !value.contains(['<', '>']) {
        parse("watch-label-selector", value)?;
    }
    Ok(Some(value.to_owned()).filter(|value| !value.is_empty()))
}

fn parse(flag: &str, value: &str) -> Result<Selector, ConfigError> {
    selector::parse(value).map_err(|part| {
        let valid = "must be a label requirement such as reconcile.fluxcd.io/watch=Enabled";
        ConfigError(format!("invalid requirement {part:?} in --{flag}: {valid}"))
    })
}

/// Returns the label selector for the Secrets and ConfigMaps to watch, or `None` if the feature gate disables the
/// watch.
pub(super) fn watched_inputs(flags: &ManagerFlags) -> Result<Option<Selector>, ConfigError> {
    let selector = parse("watch-configs-label-selector", &flags.watch_configs_label_selector)?;
    let mut is_disabled = false;
    for gate in flags.feature_gates.iter().map(|gate| gate.trim()).filter(|gate| !gate.is_empty()) {
        is_disabled = match gate.split_once('=') {
            Some(("DisableConfigWatchers", value)) => value.parse().ok(),
            _ => None,
        }
        .ok_or_else(|| {
            let valid = "must be DisableConfigWatchers=true or DisableConfigWatchers=false";
            ConfigError(format!("invalid feature gate {gate:?} in --feature-gates: {valid}"))
        })?;
    }
    Ok(Some(selector).filter(|_| !is_disabled))
}
