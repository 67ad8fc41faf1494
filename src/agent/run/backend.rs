//! The state backend that the Pulumi CLI uses in a run.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use serde::Deserialize;

use crate::agent::environment::Environment;
use crate::pulumi::backend::{self, API_VARIABLE, PULUMI_CLOUD, URL_VARIABLE};
use crate::pulumi::project::Project;

/// Maximum size of the credentials file, in bytes.
const MAX_CREDENTIALS: u64 = 1 << 20;

/// The part of the CLI's credentials file that names the backend of the last login.
#[derive(Deserialize)]
struct Credentials {
    #[serde(default)]
    current: String,
}

/// Returns the URL without credentials, in the CLI's order of precedence: environment, project file, last login, Pulumi
/// Cloud.
pub fn url(environment: &Environment, project: Option<&Project>) -> Option<String> {
    let of_project = || project.and_then(|project| project.backend_url.clone());
    let url = variable(environment, URL_VARIABLE)
        .or_else(of_project)
        .or_else(|| last_login(environment))
        .or_else(|| variable(environment, API_VARIABLE));
    backend::without_credentials(url.as_deref().unwrap_or(PULUMI_CLOUD))
}

fn last_login(environment: &Environment) -> Option<String> {
    let home = variable(environment, "PULUMI_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(variable(environment, "HOME")?).join(".pulumi")))?;
    let mut text = String::new();
    File::open(home.join("credentials.json")).ok()?.take(MAX_CREDENTIALS).read_to_string(&mut text).ok()?;
    let Credentials { current } = serde_json::from_str(&text).ok()?;
    Some(current).filter(|url| !url.is_empty())
}

fn variable(environment: &Environment, name: &str) -> Option<String> {
    let value = environment.variables.get(OsStr::new(name))?.to_str()?;
    Some(value.to_owned()).filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_matches_the_choice_of_the_cli() {
        let home = tempfile::tempdir().unwrap();
        let home_path = home.path().to_str().unwrap();
        let project = Project { backend_url: Some("s3://project".to_owned()), ..Project::default() };
        let url = |variables: &[(&str, &str)], project: Option<&Project>| {
            let mut environment = Environment::default();
            environment.variables.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
            super::url(&environment, project).unwrap()
        };
        assert_eq!(url(&[], None), PULUMI_CLOUD);
        assert_eq!(url(&[("PULUMI_HOME", home_path)], None), PULUMI_CLOUD, "no login");
        assert_eq!(url(&[("PULUMI_API", "https://pulumi.example.com")], None), "https://pulumi.example.com");
        std::fs::write(home.path().join("credentials.json"), r#"{"current": "s3://login?region=x&sig=y"}"#).unwrap();
        assert_eq!(url(&[("PULUMI_HOME", home_path)], None), "s3://login?region=x");
        std::fs::create_dir(home.path().join(".pulumi")).unwrap();
        std::fs::rename(home.path().join("credentials.json"), home.path().join(".pulumi/credentials.json")).unwrap();
        assert_eq!(url(&[("HOME", home_path)], None), "s3://login?region=x");
        assert_eq!(url(&[("HOME", home_path)], Some(&project)), "s3://project");
        let variables = [("HOME", home_path), ("PULUMI_BACKEND_URL", "s3://variable")];
        assert_eq!(url(&variables, Some(&project)), "s3://variable");
        assert_eq!(url(&[("HOME", home_path), ("PULUMI_BACKEND_URL", "")], Some(&project)), "s3://project");
    }
}
