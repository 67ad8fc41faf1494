//! Policy packs of a run. The controller requests installed packs. In addition, the user can set environment variables
//! that select packs from the program's source.
//!
//! The Pulumi engine starts each directory only once. If a directory occurs several times, the last configuration
//! replaces the earlier configurations. A user could therefore disable a requested pack by repeating its directory with
//! another configuration, so the agent rejects such a run.

use std::io;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use crate::agent::durable;
use crate::agent::environment::Environment;
use crate::agent::journal::JournalRecord;
use crate::agent::layout::Layout;
use crate::agent::refusal::Refusal;
use crate::api::cli_options;
use crate::pulumi::arguments::{OperationKind, PolicyPack};
use crate::rpc::proto;

/// Maximum number of policy packs in a request, and in the user's environment variables.
const MAX_PACKS: usize = 20;
/// Characters that the CLI interprets in a list of directories. The CLI would read another directory than the agent.
const INTERPRETED: [char; 3] = ['"', '\n', '\r'];
/// Line breaks at the end of a list, which the agent and the CLI ignore. A value from a Secret or a ConfigMap often
/// ends with a line break.
const LINE_BREAKS: [char; 2] = ['\n', '\r'];
/// Content of the configuration file for a pack without a configuration.
const EMPTY: &str = "{}";

/// Policy packs that a run enforces. If the controller requests no packs, the list is empty, and the CLI itself reads
/// the user's environment variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunPolicies(Vec<Pack>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pack {
    /// Name of the policy pack in the Stack. Empty for a pack from the user's source.
    name: String,
    directory: PathBuf,
    config: Config,
}

impl Pack {
    /// Returns whether the controller requested the pack.
    fn is_installed(&self) -> bool {
        !self.name.is_empty()
    }
}

/// Configuration of a policy pack.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Config {
    /// JSON text, which the agent writes to a file.
    Text(String),
    /// Path of a file in the user's source.
    File(PathBuf),
}

/// Directory of a policy pack, as the engine identifies it, and without symbolic links.
#[derive(Debug)]
struct Location {
    /// Absolute path without `.` and `..`. Like the CLI, the agent does not resolve symbolic links for this path.
    path: PathBuf,
    /// Path without symbolic links, or `None` if the directory does not exist.
    target: Option<PathBuf>,
}

impl Location {
    /// Returns the location of a directory, which can be relative to the directory in which the CLI runs.
    fn of(directory: &Path, working_directory: &Path) -> Self {
        let mut path = PathBuf::new();
        for component in working_directory.join(directory).components() {
            match component {
                Component::ParentDir => {
                    path.pop();
                }
                Component::CurDir => {}
                other => path.push(other),
            }
        }
        Location { target: path.canonicalize().ok(), path }
    }

    /// Returns whether the engine regards the two directories as one directory.
    fn has_same_path(&self, other: &Location) -> bool {
        self.path == other.path
    }

    /// Returns whether the two paths without symbolic links are the same.
    fn has_same_target(&self, other: &Location) -> bool {
        self.target.is_some() && self.target == other.target
    }

    /// Returns whether the directory is `parent` or is below `parent`.
    fn is_in(&self, parent: &Location) -> bool {
        let is_in = |path: &PathBuf| {
            let mut parents = std::iter::once(&parent.path).chain(&parent.target);
            parents.any(|parent| path.starts_with(parent))
        };
        std::iter::once(&self.path).chain(&self.target).any(is_in)
    }
}

impl RunPolicies {
    /// Returns the policy packs of an operation. `directory_of` returns the directory of an installed pack.
    ///
    /// Moves the user's packs from the environment to the result. Otherwise, the CLI would append these packs to the
    /// packs on the command line, and would fail because these packs have no configuration files.
    ///
    /// # Errors
    ///
    /// Returns an error if the user's packs contain an installed pack, or if a directory has two configurations.
    pub fn new(
        kind: OperationKind,
        requested: &[proto::PolicyPack],
        directory_of: impl Fn(&proto::Artifact) -> Option<PathBuf>,
        layout: &Layout,
        environment: &mut Environment,
    ) -> Result<Self, Refusal> {
        if requested.is_empty() || !kind.is_forward() {
            return Ok(RunPolicies::default());
        }
        if requested.len() > MAX_PACKS {
            return Err(Refusal::Invalid(format!("a run can have at most {MAX_PACKS} policy packs")));
        }
        let installed = requested.iter().map(|pack| -> Result<Pack, Refusal> {
            let artifact = pack.artifact.clone().unwrap_or_default();
            let directory = directory_of(&artifact).ok_or_else(|| {
                Refusal::Precondition(format!("policy pack {} ({}) is not installed", pack.name, artifact.digest))
            })?;
            Ok(Pack { name: pack.name.clone(), directory, config: Config::Text(config(pack)?) })
        });
        let mut packs = installed.collect::<Result<Vec<_>, Refusal>>()?;
        packs.extend(packs_of_user(environment, layout)?);
        check_distinct(&packs, layout)?;
        for variable in [cli_options::POLICY_PACK, cli_options::POLICY_PACK_CONFIG] {
            environment.variables.remove(std::ffi::OsStr::new(variable));
        }
        Ok(RunPolicies(packs))
    }

    /// Replaces the directories of policy packs in a CLI message with the pack names.
    pub fn name_packs(&self, message: String) -> String {
        let named = self.0.iter().filter(|pack| !pack.name.is_empty());
        named.fold(message, |message, pack| message.replace(&*pack.directory.to_string_lossy(), &pack.name))
    }

    /// Writes the configuration files, and returns the arguments for the packs on the command line.
    pub fn write(&self, record: &JournalRecord) -> io::Result<Vec<PolicyPack>> {
        let written =
            self.0.iter().enumerate().map(|(number, Pack { directory, config, .. })| -> io::Result<PolicyPack> {
                let config = match config {
                    Config::File(file) => file.clone(),
                    Config::Text(text) => {
                        let file = record.policy_config(number);
                        durable::write_atomically(&file, text.as_bytes())?;
                        file
                    }
                };
                Ok(PolicyPack { directory: directory.clone(), config })
            });
        written.collect()
    }
}

/// Returns the configuration of a pack, which must be a JSON object.
fn config(pack: &proto::PolicyPack) -> Result<String, Refusal> {
    if pack.config.is_empty() {
        return Ok(EMPTY.to_owned());
    }
    match serde_json::from_str::<Map<String, Value>>(&pack.config) {
        Ok(_) => Ok(pack.config.clone()),
        Err(_) => {
            Err(Refusal::Invalid(format!("the configuration of policy pack {} must be a JSON object", pack.name)))
        }
    }
}

/// Returns the packs that the user's environment variables select.
fn packs_of_user(environment: &Environment, layout: &Layout) -> Result<Vec<Pack>, Refusal> {
    let list = |variable: &str| -> Vec<PathBuf> {
        let list = environment.get(variable).map(|list| list.trim_end_matches(LINE_BREAKS));
        let list = list.filter(|list| !list.is_empty());
        list.map(|list| list.split(',').map(PathBuf::from).collect()).unwrap_or_default()
    };
    let (directories, configs) = (list(cli_options::POLICY_PACK), list(cli_options::POLICY_PACK_CONFIG));
    if !configs.is_empty() && configs.len() != directories.len() {
        return Err(Refusal::Invalid(format!(
            "{} must contain one file for each policy pack in {}",
            cli_options::POLICY_PACK_CONFIG,
            cli_options::POLICY_PACK
        )));
    }
    check_user_directories(&directories, layout)?;
    let configs = configs.into_iter().map(Config::File).map(Some).chain(std::iter::repeat(None));
    let pack = |(directory, config): (PathBuf, Option<Config>)| {
        let config = config.unwrap_or_else(|| Config::Text(EMPTY.to_owned()));
        Pack { name: String::new(), directory, config }
    };
    Ok(directories.into_iter().zip(configs).map(pack).collect())
}

/// Returns an error if the user's packs contain an installed pack.
fn check_user_directories(directories: &[PathBuf], layout: &Layout) -> Result<(), Refusal> {
    let variable = cli_options::POLICY_PACK;
    if directories.len() > MAX_PACKS {
        return Err(Refusal::Invalid(format!("{variable} must contain at most {MAX_PACKS} policy packs")));
    }
    if directories.iter().any(|directory| directory.to_string_lossy().contains(INTERPRETED)) {
        return Err(Refusal::Invalid(format!("{variable} must not contain quotation marks or line breaks")));
    }
    let (program, installed) = (layout.program(), layout.policy_packs());
    let parent = Location::of(&installed, &program);
    match directories.iter().any(|directory| Location::of(directory, &program).is_in(&parent)) {
        true => Err(Refusal::Invalid(format!(
            "{variable} must not contain a directory in {}, which contains the policy packs from spec.policyPacks and \
             --policy-packs",
            installed.display()
        ))),
        false => Ok(()),
    }
}

/// Returns an error if two packs have the same directory, but different configurations.
///
/// Packs with the same directory and the same configuration are valid, because two sources in `--policy-packs` can
/// contain the same archive. The engine identifies a directory by its path. The user can therefore select a directory
/// twice with different configurations, once through a symbolic link. If one of the two packs is installed, the
/// function also compares the paths without symbolic links.
fn check_distinct(packs: &[Pack], layout: &Layout) -> Result<(), Refusal> {
    let program = layout.program();
    let mut earlier: Vec<(&Pack, Location)> = Vec::new();
    for pack in packs {
        let location = Location::of(&pack.directory, &program);
        let is_same = |other: &Pack, at: &Location| {
            let is_any_installed = pack.is_installed() || other.is_installed();
            at.has_same_path(&location) || (is_any_installed && at.has_same_target(&location))
        };
        let found = earlier.iter().find(|(other, at)| other.config != pack.config && is_same(other, at));
        if let Some((other, _)) = found {
            return Err(Refusal::Invalid(format!(
                "{} and {} have the same directory, but different configurations",
                description(other),
                description(pack)
            )));
        }
        earlier.push((pack, location));
    }
    Ok(())
}

/// Describes a pack in an error. Does not contain the user's directory, because its variable can come from a Secret.
fn description(pack: &Pack) -> String {
    match pack.name.as_str() {
        "" => format!("a policy pack in {}", cli_options::POLICY_PACK),
        name => format!("policy pack {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(digest: &str, config: &str) -> proto::PolicyPack {
        let artifact = Some(proto::Artifact { digest: digest.to_owned(), directory: String::new() });
        proto::PolicyPack { name: "house".to_owned(), artifact, config: config.to_owned() }
    }

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let mut environment = Environment::default();
        for (name, value) in variables {
            environment.variables.insert(name.into(), value.into());
        }
        environment
    }

    fn found(
        kind: OperationKind,
        packs: &[proto::PolicyPack],
        variables: &[(&str, &str)],
    ) -> Result<(Vec<(String, Config)>, usize), String> {
        found_in(&Layout::new("/nowhere"), kind, packs, variables)
    }

    fn found_in(
        layout: &Layout,
        kind: OperationKind,
        packs: &[proto::PolicyPack],
        variables: &[(&str, &str)],
    ) -> Result<(Vec<(String, Config)>, usize), String> {
        let mut environment = environment(variables);
        let directory_of = |artifact: &proto::Artifact| {
            (artifact.digest != "missing").then(|| layout.policy_packs().join(&artifact.digest))
        };
        let policies =
            RunPolicies::new(kind, packs, directory_of, layout, &mut environment).map_err(|error| error.to_string())?;
        let packs = policies.0.into_iter().map(|pack| (pack.directory.display().to_string(), pack.config));
        Ok((packs.collect(), environment.variables.len()))
    }

    fn text(text: &str) -> Config {
        Config::Text(text.to_owned())
    }

    #[test]
    fn an_up_and_its_preview_enforce_all_packs() {
        let packs = [requested("a", ""), requested("b", "{\"all\":\"advisory\"}")];
        let expected = vec![
            ("/nowhere/policies/a".to_owned(), text("{}")),
            ("/nowhere/policies/b".to_owned(), text("{\"all\":\"advisory\"}")),
        ];
        for kind in [OperationKind::Up, OperationKind::Preview] {
            assert_eq!(found(kind, &packs, &[]), Ok((expected.clone(), 0)));
        }
        let missing = [requested("missing", "")];
        for kind in [OperationKind::Destroy, OperationKind::Refresh, OperationKind::PreviewDestroy] {
            assert_eq!(found(kind, &missing, &[]), Ok((vec![], 0)), "{kind:?}");
        }
    }

    #[test]
    fn the_packs_of_the_user_follow_the_requested_packs() {
        let packs = [requested("a", "")];
        let variables =
            [(cli_options::POLICY_PACK, "policy,other"), (cli_options::POLICY_PACK_CONFIG, "one.json,two.json")];
        let expected = vec![
            ("/nowhere/policies/a".to_owned(), text("{}")),
            ("policy".to_owned(), Config::File("one.json".into())),
            ("other".to_owned(), Config::File("two.json".into())),
        ];
        assert_eq!(found(OperationKind::Up, &packs, &variables), Ok((expected, 0)));
        let expected = vec![("/nowhere/policies/a".to_owned(), text("{}")), ("policy".to_owned(), text("{}"))];
        assert_eq!(found(OperationKind::Up, &packs, &[(cli_options::POLICY_PACK, "policy")]), Ok((expected, 0)));
        assert_eq!(found(OperationKind::Up, &[], &variables), Ok((vec![], 2)), "the CLI reads the variables");
    }

    #[test]
    fn line_breaks_at_the_end_of_the_variables_of_the_user_are_ignored() {
        let installed = ("/nowhere/policies/a".to_owned(), text("{}"));
        let configured = ("policy".to_owned(), Config::File("one.json".into()));
        let plain = ("policy".to_owned(), text("{}"));
        let rows = [
            ("policy\n", "one.json\n", vec![installed.clone(), configured.clone()]),
            ("policy\r\n", "one.json\r\n", vec![installed.clone(), configured.clone()]),
            ("policy\n\n", "one.json", vec![installed.clone(), configured]),
            ("policy", "\n", vec![installed.clone(), plain]),
            ("\n", "\r\n", vec![installed]),
        ];
        for (directory, config, expected) in rows {
            let variables = [(cli_options::POLICY_PACK, directory), (cli_options::POLICY_PACK_CONFIG, config)];
            let found = found(OperationKind::Up, &[requested("a", "")], &variables);
            assert_eq!(found, Ok((expected, 0)), "{directory:?} {config:?}");
        }
    }

    #[test]
    fn a_run_with_unenforceable_policy_packs_is_rejected() {
        let up = |packs: &[proto::PolicyPack], variables: &[(&str, &str)]| {
            found(OperationKind::Up, packs, variables).expect_err("should be rejected")
        };
        assert!(up(&[requested("missing", "")], &[]).contains("house (missing) is not installed"));
        assert!(up(&[requested("a", "[1]")], &[]).contains("must be a JSON object"));
        assert!(up(&vec![requested("a", ""); 21], &[]).contains("at most 20"));
        let variables = [(cli_options::POLICY_PACK, "policy,other"), (cli_options::POLICY_PACK_CONFIG, "one.json")];
        assert!(up(&[requested("a", "")], &variables).contains("one file for each policy pack"));
        let many = vec!["policy"; 21].join(",");
        assert!(
            up(&[requested("a", "")], &[(cli_options::POLICY_PACK, many.as_str())]).contains("at most 20 policy packs")
        );
    }

    #[test]
    fn the_variables_of_the_user_cannot_configure_an_installed_pack() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::new(root.path());
        let (source, installed) = (layout.source(), layout.policy_packs().join("a"));
        std::fs::create_dir_all(source.join("policy")).unwrap();
        std::fs::create_dir_all(installed.join("tree/base")).unwrap();
        std::fs::create_dir_all(root.path().join("far/away")).unwrap();
        std::os::unix::fs::symlink(&source, layout.workspace()).unwrap();
        std::os::unix::fs::symlink(&installed, source.join("link")).unwrap();
        std::os::unix::fs::symlink(root.path().join("far/away"), source.join("far")).unwrap();
        let absolute = installed.display().to_string();
        let rows = [
            (absolute.clone(), Some("must not contain a directory in")),
            (format!("{absolute}/tree/base"), Some("must not contain a directory in")),
            (format!("{absolute}/missing"), Some("must not contain a directory in")),
            (format!("policy,{absolute}/tree"), Some("must not contain a directory in")),
            ("../policies/a".to_owned(), Some("must not contain a directory in")),
            ("./policy/../../policies/./a/".to_owned(), Some("must not contain a directory in")),
            ("link".to_owned(), Some("must not contain a directory in")),
            ("link/tree/base".to_owned(), Some("must not contain a directory in")),
            // The kernel would resolve the symbolic link before `..`, but the CLI removes both.
            ("far/../../policies/a".to_owned(), Some("must not contain a directory in")),
            (format!("\"{absolute}\""), Some("must not contain quotation marks or line breaks")),
            (format!("{absolute}\nx"), Some("must not contain quotation marks or line breaks")),
            (format!("\r\n{absolute}"), Some("must not contain quotation marks or line breaks")),
            (format!("policy\n{absolute}\n"), Some("must not contain quotation marks or line breaks")),
            (format!("{absolute}\r\n"), Some("must not contain a directory in")),
            ("policy".to_owned(), None),
            ("missing".to_owned(), None),
            ("../policies-of-users".to_owned(), None),
        ];
        for (value, expected) in rows {
            let variables = [(cli_options::POLICY_PACK, value.as_str())];
            let result = found_in(&layout, OperationKind::Up, &[requested("a", "")], &variables);
            match expected {
                Some(message) => assert!(result.as_ref().is_err_and(|e| e.contains(message)), "{value:?}: {result:?}"),
                None => assert!(result.is_ok(), "{value:?}: {result:?}"),
            }
        }
    }

    #[test]
    fn a_directory_has_only_one_configuration() {
        let disabled = "{\"all\":\"disabled\"}";
        let named = |name: &str, config: &str| proto::PolicyPack { name: name.to_owned(), ..requested("a", config) };
        let of_user =
            [(cli_options::POLICY_PACK, "policy,./policy"), (cli_options::POLICY_PACK_CONFIG, "one.json,two.json")];
        let up = |packs: &[proto::PolicyPack], variables: &[(&str, &str)]| {
            found(OperationKind::Up, packs, variables).map(|(packs, _)| packs.len())
        };
        assert_eq!(
            up(&[named("cluster/house", ""), named("own", disabled)], &[]),
            Err("policy pack cluster/house and policy pack own have the same directory, but different configurations"
                .to_owned())
        );
        assert_eq!(up(&[named("cluster/house", ""), named("cluster/mirror", "{}")], &[]), Ok(2));
        let error = up(&[requested("a", "")], &of_user).expect_err("should be rejected");
        assert!(error.contains("a policy pack in PULUMI_OPTION_POLICY_PACK have the same directory"), "{error}");
        assert_eq!(up(&[requested("a", "")], &[(cli_options::POLICY_PACK, "policy,policy")]), Ok(3));
    }

    #[test]
    fn only_installed_packs_are_compared_without_symbolic_links() {
        let root = tempfile::tempdir().unwrap();
        let layout = Layout::new(root.path());
        let (source, installed) = (layout.source(), layout.policy_packs());
        std::fs::create_dir_all(source.join("policy")).unwrap();
        std::fs::create_dir_all(installed.join("a")).unwrap();
        std::os::unix::fs::symlink(&source, layout.workspace()).unwrap();
        std::os::unix::fs::symlink("policy", source.join("strict")).unwrap();
        std::os::unix::fs::symlink("a", installed.join("b")).unwrap();
        let disabled = "{\"all\":\"disabled\"}";
        let configs = (cli_options::POLICY_PACK_CONFIG, "one.json,two.json");
        let same = "have the same directory, but different configurations";
        let rows: [(Vec<proto::PolicyPack>, &str, Option<&str>); 5] = [
            (vec![requested("a", "")], "policy,strict", None),
            (vec![requested("a", "")], "policy,./policy", Some(same)),
            (vec![requested("a", "")], "strict,../source/strict", None),
            (vec![requested("a", ""), requested("b", disabled)], "policy,strict", Some(same)),
            (vec![requested("a", ""), requested("b", "")], "policy,strict", None),
        ];
        for (packs, directories, expected) in rows {
            let variables = [(cli_options::POLICY_PACK, directories), configs];
            let error = found_in(&layout, OperationKind::Up, &packs, &variables).err().unwrap_or_default();
            match expected {
                Some(message) => assert!(error.contains(message), "{directories}: {error}"),
                None => assert_eq!(error, "", "{directories}"),
            }
        }
    }
}
