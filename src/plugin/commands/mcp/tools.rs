//! Defines the tools and their schemas, and converts tool calls to command lines.

use pulumi_controller::api::names;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use crate::plugin::args::GlobalFlags;

/// Maximum length of an argument, in characters.
const MAX_TEXT: usize = 1024;
/// Maximum number of log lines that a call can request.
const MAX_LINES: u64 = 10_000;

/// Type of a tool argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Positional argument of the command: an object name.
    Name,
    /// Positional argument of the command: a string.
    Text,
    /// Value of a flag: a text.
    TextFlag(&'static str),
    /// Flag whose value is a number of lines. Contains the flag and the default.
    LinesFlag(&'static str, u64),
    /// Flag without a value.
    Switch(&'static str),
}

/// Argument of a tool.
#[derive(Debug)]
struct Argument {
    name: &'static str,
    kind: Kind,
    is_required: bool,
    description: &'static str,
}

const fn optional(name: &'static str, kind: Kind, description: &'static str) -> Argument {
    Argument { name, kind, is_required: false, description }
}

/// Argument of all tools.
const NAMESPACE: Argument =
    optional("namespace", Kind::TextFlag("--namespace"), "Namespace. Default: the namespace of the context.");
const ALL_NAMESPACES: Argument = optional("all_namespaces", Kind::Switch("--all-namespaces"), "Use all namespaces.");
const STACK: Argument =
    Argument { name: "stack", kind: Kind::Name, is_required: true, description: "Name of the Stack." };

/// A tool, which runs a command of the plugin.
#[derive(Debug)]
pub struct Definition {
    /// Name of the tool and the command.
    pub name: &'static str,
    description: &'static str,
    arguments: &'static [Argument],
    /// The command prints JSON.
    is_json: bool,
    /// The command changes the Stack.
    is_change: bool,
}

const fn reading(name: &'static str, description: &'static str, arguments: &'static [Argument]) -> Definition {
    Definition { name, description, arguments, is_json: true, is_change: false }
}

const fn changing(name: &'static str, description: &'static str, arguments: &'static [Argument]) -> Definition {
    Definition { name, description, arguments, is_json: false, is_change: true }
}

const OF_STACK: &[Argument] = &[STACK, NAMESPACE];
const OF_GET: &[Argument] = &[
    optional("stack", Kind::Name, "Name of a Stack. Default: all Stacks."),
    NAMESPACE,
    ALL_NAMESPACES,
    optional("selector", Kind::TextFlag("--selector"), "Label selector of the Stacks."),
];
const OF_EVENTS: &[Argument] =
    &[optional("stack", Kind::Name, "Name of a Stack. Default: all objects of the namespace."), NAMESPACE];
const OF_LOGS: &[Argument] = &[
    STACK,
    optional("run", Kind::Name, "Name of the Update of the run. Default: the open run or the last run."),
    NAMESPACE,
    optional("tail", Kind::LinesFlag("--tail", 200), "Number of lines from the end. Default: 200."),
];
const OF_OUTPUTS: &[Argument] = &[STACK, optional("output", Kind::Text, "Name of a single output."), NAMESPACE];
const OF_DOCTOR: &[Argument] = &[NAMESPACE, ALL_NAMESPACES];
const OF_RECONCILE: &[Argument] = &[
    STACK,
    NAMESPACE,
    optional("with_source", Kind::Switch("--with-source"), "First reconcile the Flux source."),
    optional("refresh", Kind::Switch("--refresh"), "Refresh the state in the run."),
    optional("no_wait", Kind::Switch("--no-wait"), "Do not wait for the result."),
];
const OF_RESUME: &[Argument] =
    &[STACK, NAMESPACE, optional("wait", Kind::Switch("--wait"), "Wait until the Stack is Ready.")];

static TOOLS: [Definition; 11] = [
    reading("get", "List Stacks with their phase, revision, drift, policy violations, and what they wait for.", OF_GET),
    reading("explain", "Explain the state of a Stack, and show the next step.", OF_STACK),
    reading(
        "tree",
        "Show the objects of a Stack: its source, its dependencies, its Workspace and pod, and its Updates.",
        OF_STACK,
    ),
    reading("events", "List the events of a Stack and of its Workspace, pod and Updates.", OF_EVENTS),
    Definition { is_json: false, ..reading("logs", "Print the log of a run of a Stack.", OF_LOGS) },
    reading("history", "List the last runs of a Stack.", OF_STACK),
    reading("outputs", "Print the outputs of a Stack. The values of secret outputs are masked.", OF_OUTPUTS),
    reading("doctor", "Check the cluster, the controller, the permissions of the user and the Stacks.", OF_DOCTOR),
    changing(
        "reconcile",
        "Request a run of a Stack, and wait for its result. A run can create, change and delete cloud resources.",
        OF_RECONCILE,
    ),
    changing("suspend", "Suspend a Stack. An open run continues.", OF_STACK),
    changing("resume", "Resume a suspended Stack.", OF_RESUME),
];

/// Returns all tools that the server offers.
pub fn all(allow_changes: bool) -> impl Iterator<Item = &'static Definition> {
    TOOLS.iter().filter(move |tool| allow_changes || !tool.is_change)
}

/// Returns the tool with this name, if the server offers the tool.
pub fn find(name: &str, allow_changes: bool) -> Option<&'static Definition> {
    all(allow_changes).find(|tool| tool.name == name)
}

/// Returns the global flags that the MCP server passes to each command.
pub fn global_flags(global: &GlobalFlags) -> Vec<String> {
    let kubeconfig = global.kubeconfig.as_ref().map(|path| format!("--kubeconfig={}", path.display()));
    let context = global.context.as_ref().map(|name| format!("--context={name}"));
    let namespace = global.namespace.as_ref().map(|name| format!("--namespace={name}"));
    let timeout = Some(format!("--timeout={}s", global.timeout.as_secs()));
    [kubeconfig, context, namespace, timeout].into_iter().flatten().collect()
}

impl Definition {
    /// Returns the tool in the protocol format.
    pub fn tool(&self) -> Tool {
        let annotations = match self.is_change {
            false => ToolAnnotations::default().read_only(true),
            // `reconcile` and `resume` can start a run, which can delete resources.
            true => ToolAnnotations::default().read_only(false).destructive(self.name != "suspend"),
        };
        Tool::new(self.name, self.description, self.schema()).with_annotations(annotations)
    }

    /// Returns the JSON schema of the arguments.
    fn schema(&self) -> JsonObject {
        let properties = self.arguments.iter().map(|argument| (argument.name.to_owned(), argument.schema()));
        let properties: JsonObject = properties.collect();
        let required = self.arguments.iter().filter(|argument| argument.is_required);
        let required: Vec<Value> = required.map(|argument| argument.name.into()).collect();
        let mut schema = JsonObject::new();
        schema.insert("type".to_owned(), "object".into());
        schema.insert("properties".to_owned(), Value::Object(properties));
        schema.insert("required".to_owned(), Value::Array(required));
        schema.insert("additionalProperties".to_owned(), false.into());
        schema
    }

    /// Returns the command line for a tool call, without the server's global flags. Positional arguments follow `--`,
    /// so the plugin does not parse them as flags.
    ///
    /// # Errors
    ///
    /// Returns a message if an argument is unknown, missing or invalid.
    pub fn words(&self, given: &JsonObject) -> Result<Vec<String>, String> {
        if let Some(name) = given.keys().find(|name| self.arguments.iter().all(|argument| argument.name != **name)) {
            return Err(format!("unknown argument {name:?} of the tool {}", self.name));
        }
        let mut words = vec![self.name.to_owned()];
        if self.is_json {
            words.push("--output=json".to_owned());
        }
        let mut positional = Vec::new();
        for argument in self.arguments {
            let value = given.get(argument.name).filter(|value| !value.is_null());
            let invalid = |what: &str| format!("invalid argument {}: must be {what}", argument.name);
            match (argument.kind, value) {
                (_, None) if argument.is_required => return Err(format!("missing argument {}", argument.name)),
                (Kind::LinesFlag(flag, default), None) => words.push(format!("{flag}={default}")),
                (_, None) => {}
                (Kind::Name, Some(value)) => {
                    let name = value.as_str().filter(|name| names::is_object_name(name));
                    positional.push(name.ok_or_else(|| invalid("the name of an object"))?.to_owned());
                }
                (Kind::Text, Some(value)) => {
                    positional.push(text(value).ok_or_else(|| invalid("a short text"))?.to_owned());
                }
                (Kind::TextFlag(flag), Some(value)) => {
                    words.push(format!("{flag}={}", text(value).ok_or_else(|| invalid("a short text"))?));
                }
                (Kind::LinesFlag(flag, _), Some(value)) => {
                    let lines = value.as_u64().filter(|lines| *lines <= MAX_LINES);
                    words.push(format!("{flag}={}", lines.ok_or_else(|| invalid("a number from 0 to 10000"))?));
                }
                (Kind::Switch(flag), Some(value)) => {
                    let is_set = value.as_bool().ok_or_else(|| invalid("true or false"))?;
                    words.extend(is_set.then(|| flag.to_owned()));
                }
            }
        }
        words.push("--".to_owned());
        words.extend(positional);
        Ok(words)
    }
}

impl Argument {
    fn schema(&self) -> Value {
        let mut schema = match self.kind {
            Kind::Name => json!({ "type": "string", "maxLength": 253 }),
            Kind::Text | Kind::TextFlag(_) => json!({ "type": "string", "maxLength": MAX_TEXT }),
            Kind::LinesFlag(..) => json!({ "type": "integer", "minimum": 0, "maximum": MAX_LINES }),
            Kind::Switch(_) => json!({ "type": "boolean" }),
        };
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("description".to_owned(), self.description.into());
        }
        schema
    }
}

/// Returns the string in a value, or `None` if the value is not a string, is too long or contains control characters.
fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| text.chars().count() <= MAX_TEXT && !text.chars().any(char::is_control))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::plugin::args::CommandLine;
    use crate::plugin::reference_tests::assert_text;

    fn words(tool: &str, arguments: &Value) -> Result<Vec<String>, String> {
        find(tool, true).unwrap().words(arguments.as_object().unwrap())
    }

    #[test]
    fn a_call_is_a_valid_command_line() {
        let rows = [
            ("get", json!({}), "get --output=json --"),
            (
                "get",
                json!({ "all_namespaces": true, "selector": "team=blue" }),
                "get --output=json --all-namespaces --selector=team=blue --",
            ),
            (
                "explain",
                json!({ "stack": "web", "namespace": "apps" }),
                "explain --output=json --namespace=apps -- web",
            ),
            ("logs", json!({ "stack": "web" }), "logs --tail=200 -- web"),
            ("logs", json!({ "stack": "web", "run": "web-1", "tail": 5 }), "logs --tail=5 -- web web-1"),
            ("outputs", json!({ "stack": "web", "output": "--all" }), "outputs --output=json -- web --all"),
            ("doctor", json!({ "all_namespaces": false }), "doctor --output=json --"),
            ("reconcile", json!({ "stack": "web", "refresh": true }), "reconcile --refresh -- web"),
            ("resume", json!({ "stack": "web", "wait": null }), "resume -- web"),
        ];
        for (tool, arguments, expected) in rows {
            let words = words(tool, &arguments).unwrap();
            assert_eq!(words.join(" "), expected);
            let line = ["kubectl-pulumi".to_owned(), "--timeout=30s".to_owned()].into_iter().chain(words);
            CommandLine::try_parse_from(line).unwrap();
        }
    }

    #[test]
    fn an_invalid_argument_is_rejected() {
        let rows = [
            ("explain", json!({}), "missing argument stack"),
            ("explain", json!({ "stack": "--all" }), "must be the name of an object"),
            ("explain", json!({ "stack": "web", "show_secrets": true }), "unknown argument"),
            ("outputs", json!({ "stack": "web", "output": "a\u{1b}b" }), "must be a short text"),
            ("logs", json!({ "stack": "web", "tail": -1 }), "must be a number"),
            ("get", json!({ "all_namespaces": "yes" }), "must be true or false"),
        ];
        for (tool, arguments, expected) in rows {
            let message = words(tool, &arguments).unwrap_err();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn changes_require_permission_and_the_reference_lists_all_tools() {
        let names = |allow_changes: bool| all(allow_changes).map(|tool| tool.name).collect::<Vec<_>>();
        assert_eq!(names(true).len(), TOOLS.len());
        assert!(["reconcile", "suspend", "resume"].iter().all(|name| !names(false).contains(name)));
        for tool in &TOOLS {
            let arguments = tool.arguments.iter().map(|argument| format!("`{}`", argument.name));
            assert_text(&format!("| `{}` | {} |", tool.name, arguments.collect::<Vec<_>>().join(", ")));
        }
        let schema = find("logs", false).unwrap().schema();
        assert_eq!(schema["required"], json!(["stack"]));
        assert_eq!(schema["properties"]["tail"]["type"], "integer");
        let annotations = |name: &str| find(name, true).unwrap().tool().annotations.unwrap();
        assert_eq!(annotations("get").read_only_hint, Some(true));
        let hints = ["reconcile", "suspend", "resume"].map(|name| annotations(name).destructive_hint);
        assert_eq!(hints, [Some(true), Some(false), Some(true)]);
    }
}
