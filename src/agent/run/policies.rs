//! Policy packs of a run. The controller requests installed packs. In addition, the user can set environment variables
//! that select packs from the program's source.

use std::io;
use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::agent::durable;
use crate::agent::environment::Environment;
use crate::agent::journal::JournalRecord;
use crate::agent::refusal::Refusal;
use crate::pulumi::arguments::{OperationKind, PolicyPack};
use crate::pulumi::cli;
use crate::rpc::proto;

/// Maximum number of policy packs in a request.
const MAX_PACKS: usize = 20;
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

/// Configuration of a policy pack.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Config {
    /// JSON text, which the agent writes to a file.
    Text(String),
    /// Path of a file in the user's source.
    File(PathBuf),
}

impl RunPolicies {
    /// Returns the policy packs of an operation. `directory_of` returns the directory of an installed pack.
    ///
    /// Moves the user's packs from the environment to the result. Otherwise, the CLI would append these packs to the
    /// packs on the command line, and would fail because these packs have no configuration files.
    pub fn new(
        kind: OperationKind,
        requested: &[proto::PolicyPack],
        directory_of: impl Fn(&proto::Artifact) -> Option<PathBuf>,
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
        packs.extend(packs_of_user(environment)?);
        for variable in [cli::POLICY_PACK, cli::POLICY_PACK_CONFIG] {
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
fn packs_of_user(environment: &Environment) -> Result<Vec<Pack>, Refusal> {
    let list = |variable: &str| -> Vec<PathBuf> {
        environment.get(variable).map(|list| list.split(',').map(PathBuf::from).collect()).unwrap_or_default()
    };
    let (directories, configs) = (list(cli::POLICY_PACK), list(cli::POLICY_PACK_CONFIG));
    if !configs.is_empty() && configs.len() != directories.len() {
        return Err(Refusal::Invalid(format!(
            "{} must contain one file for each policy pack in {}",
            cli::POLICY_PACK_CONFIG,
            cli::POLICY_PACK
        )));
    }
    let configs = configs.into_iter().map(Config::File).map(Some).chain(std::iter::repeat(None));
    let pack = |(directory, config): (PathBuf, Option<Config>)| {
        let config = config.unwrap_or_else(|| Config::Text(EMPTY.to_owned()));
        Pack { name: String::new(), directory, config }
    };
    Ok(directories.into_iter().zip(configs).map(pack).collect())
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
        let mut environment = environment(variables);
        let directory_of = |artifact: &proto::Artifact| {
            (artifact.digest != "missing").then(|| PathBuf::from(format!("/policies/{}", artifact.digest)))
        };
        let policies =
            RunPolicies::new(kind, packs, directory_of, &mut environment).map_err(|error| error.to_string())?;
        let packs = policies.0.into_iter().map(|pack| (pack.directory.display().to_string(), pack.config));
        Ok((packs.collect(), environment.variables.len()))
    }

    fn text(text: &str) -> Config {
        Config::Text(text.to_owned())
    }

    #[test]
    fn an_up_and_its_preview_enforce_all_packs() {
        let packs = [requested("a", ""), requested("b", "{\"all\":\"advisory\"}")];
        let expected =
            vec![("/policies/a".to_owned(), text("{}")), ("/policies/b".to_owned(), text("{\"all\":\"advisory\"}"))];
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
        let variables = [(cli::POLICY_PACK, "policy,other"), (cli::POLICY_PACK_CONFIG, "one.json,two.json")];
        let expected = vec![
            ("/policies/a".to_owned(), text("{}")),
            ("policy".to_owned(), Config::File("one.json".into())),
            ("other".to_owned(), Config::File("two.json".into())),
        ];
        assert_eq!(found(OperationKind::Up, &packs, &variables), Ok((expected, 0)));
        let expected = vec![("/policies/a".to_owned(), text("{}")), ("policy".to_owned(), text("{}"))];
        assert_eq!(found(OperationKind::Up, &packs, &[(cli::POLICY_PACK, "policy")]), Ok((expected, 0)));
        assert_eq!(found(OperationKind::Up, &[], &variables), Ok((vec![], 2)), "the CLI reads the variables");
    }

    #[test]
    fn a_run_with_unenforceable_policy_packs_is_rejected() {
        let up = |packs: &[proto::PolicyPack], variables: &[(&str, &str)]| {
            found(OperationKind::Up, packs, variables).expect_err("should be rejected")
        };
        assert!(up(&[requested("missing", "")], &[]).contains("house (missing) is not installed"));
        assert!(up(&[requested("a", "[1]")], &[]).contains("must be a JSON object"));
        assert!(up(&vec![requested("a", ""); 21], &[]).contains("at most 20"));
        let variables = [(cli::POLICY_PACK, "policy,other"), (cli::POLICY_PACK_CONFIG, "one.json")];
        assert!(up(&[requested("a", "")], &variables).contains("one file for each policy pack"));
    }
}
