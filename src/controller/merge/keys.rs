//! What merges how: the merge keys of Kubernetes' pod template and of our Workspace, as data.

/// How the fields of one kind of object merge. A field that is not named here merges if it is a map and is replaced
/// if it is anything else.
#[derive(Debug)]
pub struct KeyTable(pub &'static [(&'static str, Rule)]);

/// How one field merges.
#[derive(Debug)]
pub enum Rule {
    /// A map: field by field.
    Map(&'static KeyTable),
    /// A list of maps: items with the same value under the key merge.
    List { key: &'static str, items: &'static KeyTable },
    /// A list of scalars: the union.
    Set,
    /// Replaced as a whole, a map too.
    Whole,
}

impl KeyTable {
    /// The rule for a field; `None` for a field that the table does not name.
    pub fn rule(&self, field: &str) -> Option<&'static Rule> {
        self.0.iter().find(|(name, _)| *name == field).map(|(_, rule)| rule)
    }
}

/// Maps merge, lists are replaced.
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

/// core/v1 PodTemplateSpec, with the `patchMergeKey`s of Kubernetes.
pub static POD_TEMPLATE: KeyTable = KeyTable(&[("metadata", Rule::Map(&METADATA)), ("spec", Rule::Map(&POD_SPEC))]);

/// core/v1 Service, as far as `serviceTemplate` reaches.
pub static SERVICE_TEMPLATE: KeyTable = KeyTable(&[("metadata", Rule::Map(&METADATA))]);

static CONFIG_ITEM: KeyTable = KeyTable(&[("value", Rule::Whole)]);

static STACK: KeyTable = KeyTable(&[("config", Rule::List { key: "key", items: &CONFIG_ITEM })]);

static WORKSPACE_SPEC: KeyTable = KeyTable(&[
    ("env", Rule::List { key: "name", items: &PLAIN }),
    ("podTemplate", Rule::Map(&POD_TEMPLATE)),
    ("stacks", Rule::List { key: "name", items: &STACK }),
]);

/// Our Update.
pub static UPDATE: KeyTable = KeyTable(&[("metadata", Rule::Map(&METADATA))]);

/// Our Workspace.
pub static WORKSPACE: KeyTable = KeyTable(&[("metadata", Rule::Map(&METADATA)), ("spec", Rule::Map(&WORKSPACE_SPEC))]);
