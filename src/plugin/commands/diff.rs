//! `diff`: previews the current source or a local directory in the workspace pod of a Stack.
//!
//! The preview is an interactive session in the pod. During the session, the agent starts no run and does not replace
//! the source. The command does not create an Update. A preview Update would require an artifact for the local
//! directory, and would change the Stack status.

mod archive;
mod configuration;
mod project;
mod settings;

use std::path::Path;

use pulumi_controller::api::pulumi::Stack;
use serde_json::Value;
use uuid::Uuid;

use crate::plugin::args::DiffFlags;
use crate::plugin::cluster::Cluster;
use crate::plugin::error::PluginError;
use crate::plugin::exec::{self, Process, printable_output};
use crate::plugin::pod_cli::PodCommand;
use crate::plugin::progress::{Progress, write_error};
use crate::plugin::screen;
use crate::plugin::select::full_name;
use crate::plugin::workspace_pod::{self, Effect};

use archive::Archive;
use project::LocalProject;

/// Maximum number of bytes that one command reads from the pod.
const MAX_SETTINGS: usize = 1024 * 1024;
/// Operations that do not change a resource.
const UNCHANGED: [&str; 3] = ["same", "read", "refresh"];

/// Previews the current source or a local directory.
///
/// # Errors
///
/// Returns an error if the preview finds changes, if the Stack's state does not permit the preview, if the preview
/// fails, or if a request fails.
pub async fn run(cluster: &Cluster, flags: &DiffFlags) -> Result<(), PluginError> {
    let found = workspace_pod::find(cluster, &flags.stack, "preview the changes", Effect::Preview);
    let (stack, pod) = Box::pin(found).await?;
    Box::pin(check_configuration(cluster, &stack, &pod)).await?;
    let mut progress = Progress::new();
    let mut local = None;
    if let Some(path) = &flags.path {
        progress.action(&format!("packing {}", path.display()));
        let packed = Box::pin(pack(cluster, &stack, &pod, path)).await?;
        progress.success(&format!("packed {}", packed.archive.describe()));
        local = Some(packed);
    }
    progress.action(&format!("previewing Stack {}", full_name(&stack)));
    let options = options(&stack, flags.refresh);
    let changes = Box::pin(preview(cluster, &pod, local.as_ref(), &options)).await?;
    result(&stack, changes).map(|text| progress.success(&text))
}

/// Local directory to preview.
struct Local {
    project: LocalProject,
    archive: Archive,
}

/// Packs a local directory.
async fn pack(cluster: &Cluster, stack: &Stack, pod: &str, path: &Path) -> Result<Local, PluginError> {
    let project = LocalProject::find(path, project::directory_of(stack).as_deref())?;
    let file = project.settings_path(&stack.spec.stack);
    let in_pod = read(cluster, pod, &PodCommand::read(&file), &file).await?;
    let local = project.read_settings(path, &file)?;
    let merged = settings::merge(stack, &project.name, local.as_deref(), &in_pod)?;
    let archive = archive::pack(path, &project.in_directory(&file)?, merged.as_bytes())?;
    Ok(Local { project, archive })
}

/// Checks that the preview uses the Stack configuration.
async fn check_configuration(cluster: &Cluster, stack: &Stack, pod: &str) -> Result<(), PluginError> {
    let records = read(cluster, pod, &PodCommand::records(), "the records of the agent").await?;
    match configuration::refusal(stack, pod, &records) {
        None => Ok(()),
        Some(cause) => {
            Err(PluginError::NotReady(format!("failed to preview the changes of Stack {}: {cause}", full_name(stack))))
        }
    }
}

/// Runs a command that prints files in the pod, and returns the output. The output omits missing files.
async fn read(cluster: &Cluster, pod: &str, command: &PodCommand, file: &str) -> Result<String, PluginError> {
    let command = command.command_line(cluster, 0);
    let process = Process { namespace: cluster.namespace(), pod, name: "cat", command, input: None };
    let too_large = || PluginError::Failed(format!("failed to read {file} in Pod {pod}: more than 1 MiB"));
    let mut content = Vec::new();
    let collect = |line: &[u8]| {
        content.extend_from_slice(line);
        if content.len() > MAX_SETTINGS { Err(too_large()) } else { Ok(()) }
    };
    let code = exec::run(cluster, &process, collect, print_error).await?;
    if code != 0 {
        return Err(PluginError::Failed(format!(
            "failed to read {file} in Pod {}/{pod}: exit code {code}; the cause is above",
            cluster.namespace()
        )));
    }
    Ok(String::from_utf8_lossy(&content).into_owned())
}

/// Runs the preview, prints its output, and returns the number of changes.
async fn preview(cluster: &Cluster, pod: &str, local: Option<&Local>, options: &[String]) -> Result<u64, PluginError> {
    // The random marker ensures that no output line can imitate the summary.
    let marker = format!("{}:", Uuid::new_v4());
    let (directory, installs) =
        local.map_or((".", false), |local| (local.project.directory.as_str(), local.project.needs_install));
    let input = local.map(|local| local.archive.bytes.as_slice());
    let command = PodCommand::preview(&marker, directory, installs, options);
    let command = command.command_line(cluster, input.map_or(0, <[u8]>::len));
    let name = "pulumi preview";
    let process = Process { namespace: cluster.namespace(), pod, name, command, input };
    let print = |line: &[u8]| screen::write(printable_output(line).as_bytes());
    let mut summary = None;
    let read_error = |line: &[u8]| match line.strip_prefix(marker.as_bytes()) {
        Some(found) => {
            summary = Some(found.to_vec());
            Ok(())
        }
        None => print_error(line),
    };
    let code = exec::run(cluster, &process, print, read_error).await?;
    if code != 0 {
        return Err(PluginError::Failed(format!(
            "`{name}` failed in Pod {}/{pod}; the cause is above",
            cluster.namespace()
        )));
    }
    summary.as_deref().and_then(changes).ok_or_else(|| {
        PluginError::Failed(format!(
            "failed to count the changes: `{name}` in Pod {}/{pod} reported no summary; check the version of the Pulumi \
             CLI in the image",
            cluster.namespace()
        ))
    })
}

fn print_error(line: &[u8]) -> Result<(), PluginError> {
    write_error(&printable_output(line));
    Ok(())
}

/// Returns the preview options, which equal the options of the Stack's runs.
fn options(stack: &Stack, refresh: bool) -> Vec<String> {
    let spec = &stack.spec;
    let mut options = vec!["--diff", "--suppress-progress", "--non-interactive", "--color=never"];
    if refresh || spec.refresh.unwrap_or_default() {
        options.push("--refresh=true");
    }
    if !spec.targets.is_empty() && spec.target_dependents.unwrap_or_default() {
        options.push("--target-dependents=true");
    }
    let targets = spec.targets.iter().map(|urn| format!("--target={urn}"));
    let stack = std::iter::once(format!("--stack={}", spec.stack));
    options.into_iter().map(str::to_owned).chain(targets).chain(stack).collect()
}

/// Returns the result of a preview.
fn result(stack: &Stack, changes: u64) -> Result<String, PluginError> {
    let name = full_name(stack);
    match changes {
        0 => Ok(format!("Stack {name}: no changes")),
        1 => Err(PluginError::Changes(format!("Stack {name}: 1 resource would change"))),
        _ => Err(PluginError::Changes(format!("Stack {name}: {changes} resources would change"))),
    }
}

/// Returns the number of changed resources from the last preview event, or `None` if this event is not a summary.
fn changes(event: &[u8]) -> Option<u64> {
    let event: Value = serde_json::from_slice(event).ok()?;
    let summary = event.get("summaryEvent")?;
    let counts = summary.get("resourceChanges").and_then(Value::as_object);
    let changed = counts.into_iter().flatten().filter(|(operation, _)| !UNCHANGED.contains(&operation.as_str()));
    Some(changed.filter_map(|(_, count)| count.as_u64()).fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::fixtures::stack;
    use crate::plugin::reference_tests::assert_text;

    #[test]
    fn the_options_are_those_of_the_runs() {
        let common = ["--diff", "--suppress-progress", "--non-interactive", "--color=never"];
        let of = |spec: Value, refresh: bool| {
            let options = options(&stack("web", &spec, &json!({})), refresh);
            options.get(common.len()..).unwrap().to_vec()
        };
        assert_eq!(of(json!({}), false), ["--stack=dev"]);
        assert_eq!(of(json!({}), true), ["--refresh=true", "--stack=dev"]);
        assert_eq!(of(json!({ "refresh": true }), false), ["--refresh=true", "--stack=dev"]);
        let targeted = json!({ "targets": ["urn:pulumi:dev::*"], "targetDependents": true });
        assert_eq!(of(targeted, false), ["--target-dependents=true", "--target=urn:pulumi:dev::*", "--stack=dev"]);
    }

    #[test]
    fn changes_have_their_own_exit_code() {
        let stack = stack("web", &json!({}), &json!({}));
        assert_eq!(result(&stack, 0).unwrap(), "Stack apps/web: no changes");
        let changed = result(&stack, 3).unwrap_err();
        assert_eq!(
            (changed.exit_code(), changed.to_string().as_str()),
            (2, "Stack apps/web: 3 resources would change")
        );
        let one = result(&stack, 1).unwrap_err();
        assert_text(&format!("{}\n```\n", crate::plugin::message(&one)));
    }

    #[test]
    fn the_summary_counts_only_changes() {
        let of = |changes: Value| {
            super::changes(json!({ "summaryEvent": { "resourceChanges": changes } }).to_string().as_bytes())
        };
        assert_eq!(of(json!({ "same": 12, "read": 1 })), Some(0));
        assert_eq!(of(json!({ "same": 12, "create": 2, "replace": 1, "delete": 3 })), Some(6));
        assert_eq!(of(json!(null)), Some(0));
        for text in ["", "{}", "[]", "x"] {
            assert_eq!(changes(text.as_bytes()), None, "{text:?}");
        }
    }
}
