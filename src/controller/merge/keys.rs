//! Merge rules for the Kubernetes pod template and for the objects of `auto.pulumi.com`.

/// Merge rules for the fields of an object. If a field has no rule, a map in the patch is merged into the field, and
/// any other value replaces the field.
#[derive(Debug)]
pub struct KeyTable(pub &'static [(&'static str, Rule)]);

/// Merge rule of one field.
#[derive(Debug)]
pub enum Rule {
    /// Map that is merged field by field.
    Map(&'static KeyTable),
    /// List of maps. Items in the base and in the patch are merged if they have the same value for `key`.
    List { key: &'static str, items: &'static KeyTable },
    /// List of scalars. The result is the union of both lists.
    Set,
    /// Value that the patch always replaces, even if the value is a map.
    Whole,
}

impl KeyTable {
    /// Returns the merge rule for a field, or `None` if the field has no rule.
    pub fn rule(&self, field: &str) -> Option<&'static Rule> {
        self.0.iter().find(|(name, _)| *name == field).map(|(_, rule)| rule)
    }
}

/// Rules for an object without merge keys: maps are merged, and lists are replaced.
pub static PLAIN: KeyTable = KeyTable(&[]);

static METADATA: KeyTable =
    KeyTable(&[("finalizers", Rule::Set), ("ownerReferences", Rule::List { key: "uid", items: &PLAIN })]);

static CONTAINER: KeyTable = KeyTable(&[
    ("env", Rule::List { key: "name", items: &PLAIN }),
    ("ports", Rule::List { key: "containerPort", items: &PLAIN }),
    ("volumeDevices", Rule::List { key: "devicePath", items: &PLAIN }),
    ("volumeMounts", Rule::List { key: "mountPath", items: &PLAIN }),
]);

static POD_SPEC: KeyTable = KeyTable(&[
    ("containers", Rule::List { key: "name", items: &CONTAINER }),
    ("ephemeralContainers", Rule::List { key: "name", items: &CONTAINER }),
    ("hostAliases", Rule::List { key: "ip", items: &PLAIN }),
    ("imagePullSecrets", Rule::List { key: "name", items: &PLAIN }),
    ("initContainers", Rule::List { key: "name", items: &CONTAINER }),
    ("resourceClaims", Rule::List { key: "name", items: &PLAIN }),
    ("schedulingGates", Rule::List { key: "name", items: &PLAIN }),
    ("topologySpreadConstraints", Rule::List { key: "topologyKey", items: &PLAIN }),
    ("volumes", Rule::List { key: "name", items: &PLAIN }),
]);

/// Rules for `PodTemplateSpec` (core/v1). Each list has the `patchMergeKey` that Kubernetes defines.
pub static POD_TEMPLATE: KeyTable = KeyTable(&[("metadata", Rule::Map(&METADATA)), ("spec", Rule::Map(&POD_SPEC))]);

/// Rules for `Service` (core/v1), limited to the fields of `serviceTemplate`.
pub static SERVICE_TEMPLATE: KeyTable = KeyTable(&[("metadata", Rule::Map(&METADATA))]);

static CONFIG_ITEM: KeyTable = KeyTable(&[("value", Rule::Whole)]);

static STACK: KeyTable = KeyTable(&[("config", Rule::List { key: "key", items: &CONFIG_ITEM })]);

static WORKSPACE_SPEC: KeyTable = KeyTable(&[
    ("env", Rule::List { key: "name", items: &PLAIN }),
    ("podTemplate", Rule::Map(&POD_TEMPLATE)),
    ("stacks", Rule::List { key: "name", items: &STACK }),
]);

/// Rules for `Update` (`auto.pulumi.com`).
pub static UPDATE: KeyTable = KeyTable(&[("metadata", Rule::Map(&METADATA))]);

/// Rules for `Workspace` (`auto.pulumi.com`).
pub static WORKSPACE: KeyTable = KeyTable(&[("metadata", Rule::Map(&METADATA)), ("spec", Rule::Map(&WORKSPACE_SPEC))]);
