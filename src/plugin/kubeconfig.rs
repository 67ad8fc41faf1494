//! Configuration of the client. The rules are those of kubectl, so that the plugin always uses the same cluster as
//! kubectl.

mod proxy;

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use http::Uri;
use kube::Config;
use kube::config::{AuthInfo, Cluster, Context, ExecAuthCluster, Kubeconfig, KubeconfigError};
use pulumi_controller::text::chain;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};

use crate::plugin::args::GlobalFlags;
use crate::plugin::error::PluginError;

/// Namespace of a context that sets no namespace.
const DEFAULT_NAMESPACE: &str = "default";

/// Returns the configuration from the kubeconfig or, in a pod without a kubeconfig, the configuration of the pod's
/// ServiceAccount. A kubeconfig that is invalid is an error, because the pod can run in another cluster than the one
/// that the user has selected.
///
/// # Errors
///
/// Returns an error if the kubeconfig is invalid, or if there is no configuration.
pub fn load(flags: &GlobalFlags) -> Result<Config, PluginError> {
    let failed = |error: KubeconfigError| PluginError::Connect(chain(&error));
    let variable = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let problem = match read(flags.kubeconfig.as_deref(), &variable).map_err(failed)? {
        Some(file) if flags.context.is_some() || file.current_context.is_some() => {
            return of_file(&file, flags.context.as_deref(), |name| std::env::var(name).ok());
        }
        Some(_) => "the kubeconfig sets no current context",
        None => "no kubeconfig exists",
    };
    let is_default = flags.kubeconfig.is_none() && flags.context.is_none();
    let in_cluster = is_default.then(Config::incluster).and_then(Result::ok);
    in_cluster.ok_or_else(|| PluginError::Connect(problem.to_owned()))
}

/// Returns the kubeconfig, or `None` if no file exists. `flag` is the path from the flag `--kubeconfig`, and `variable`
/// is the value of the variable `KUBECONFIG`, which can list several files.
fn read(flag: Option<&Path>, variable: &OsStr) -> Result<Option<Kubeconfig>, KubeconfigError> {
    if let Some(path) = flag {
        return Kubeconfig::read_from(path).map(|file| Some(normalized(file)));
    }
    let paths: Vec<PathBuf> = std::env::split_paths(variable).filter(|path| !path.as_os_str().is_empty()).collect();
    if paths.is_empty() {
        // Without the variable, kube-rs reads the file in the home directory.
        return existing(Kubeconfig::read());
    }
    let mut merged: Option<Kubeconfig> = None;
    for path in paths {
        let Some(file) = existing(Kubeconfig::read_from(path))? else { continue };
        merged = Some(match merged {
            Some(merged) => merged.merge(file)?,
            None => file,
        });
    }
    Ok(merged)
}

/// Returns the file, or `None` if the file does not exist. kubectl ignores such a file in the variable `KUBECONFIG`.
fn existing(read: Result<Kubeconfig, KubeconfigError>) -> Result<Option<Kubeconfig>, KubeconfigError> {
    match read {
        Ok(file) => Ok(Some(normalized(file))),
        Err(KubeconfigError::FindPath) => Ok(None),
        Err(KubeconfigError::ReadConfig(error, _)) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// `kubectl config unset current-context` leaves an empty name.
fn normalized(file: Kubeconfig) -> Kubeconfig {
    let current_context = file.current_context.filter(|name| !name.is_empty());
    Kubeconfig { current_context, ..file }
}

/// Returns the configuration for a context or, without a name, for the current context. `variable` returns the value of an
/// environment variable.
///
/// The corresponding function of kube-rs also reads the variables of the proxy, and fails if it cannot parse `NO_PROXY`,
/// for example a list that ends with a comma.
fn of_file(
    file: &Kubeconfig,
    context: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Config, PluginError> {
    let failed = |error: KubeconfigError| PluginError::Connect(chain(&error));
    let (context, cluster) = selected(file, context).map_err(failed)?;
    let server = cluster.server.as_deref().ok_or(KubeconfigError::MissingClusterUrl).map_err(failed)?;
    let server = server.parse::<Uri>().map_err(KubeconfigError::ParseClusterUrl).map_err(failed)?;
    let proxy = proxy::of(&server, cluster.proxy_url.as_deref(), variable);
    let connection = ExecAuthCluster::try_from(cluster).map_err(failed)?;
    let mut config = Config::new(server);
    config.proxy_url = proxy.map_err(KubeconfigError::ParseProxyUrl).map_err(failed)?;
    config.root_cert = connection.certificate_authority_data.as_deref().map(certificates).transpose()?;
    config.accept_invalid_certs = cluster.insecure_skip_tls_verify.unwrap_or_default();
    config.disable_compression = cluster.disable_compression.unwrap_or_default();
    config.tls_server_name = cluster.tls_server_name.clone();
    config.auth_info = credentials(file, context, connection);
    let namespace = context.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    config.default_namespace = namespace.unwrap_or(DEFAULT_NAMESPACE).to_owned();
    Ok(config)
}

/// Returns a context and its cluster.
fn selected<'f>(file: &'f Kubeconfig, context: Option<&str>) -> Result<(&'f Context, &'f Cluster), KubeconfigError> {
    let name = context.or(file.current_context.as_deref()).ok_or(KubeconfigError::CurrentContextNotSet)?;
    let context = file.contexts.iter().find(|named| named.name == name).and_then(|named| named.context.as_ref());
    let context = context.ok_or_else(|| KubeconfigError::LoadContext(name.to_owned()))?;
    let cluster = file.clusters.iter().find(|named| named.name == context.cluster);
    let cluster = cluster.and_then(|named| named.cluster.as_ref());
    Ok((context, cluster.ok_or_else(|| KubeconfigError::LoadClusterOfContext(context.cluster.clone()))?))
}

/// Returns the credentials of a context. As in kubectl, a user that does not exist has no credentials.
fn credentials(file: &Kubeconfig, context: &Context, cluster: ExecAuthCluster) -> AuthInfo {
    let user = file.auth_infos.iter().find(|named| Some(&named.name) == context.user.as_ref());
    let mut credentials = user.and_then(|named| named.auth_info.clone()).unwrap_or_default();
    if let Some(exec) = credentials.exec.as_mut().filter(|exec| exec.provide_cluster_info) {
        exec.cluster = Some(cluster);
    }
    credentials
}

fn certificates(text: &[u8]) -> Result<Vec<Vec<u8>>, PluginError> {
    let found = CertificateDer::pem_slice_iter(text).map(|found| found.map(|certificate| certificate.to_vec()));
    found.collect::<Result<_, pem::Error>>().map_err(|error| {
        PluginError::Connect(format!("the certificate authority in the kubeconfig is invalid: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> String {
        format!(
            "current-context: {name}\ncontexts:\n- name: {name}\n  context: {{cluster: {name}, namespace: \"\"}}\n\
             clusters:\n- name: {name}\n  cluster: {{server: 'https://{name}.example.com:6443'}}\n"
        )
    }

    #[test]
    fn files_that_do_not_exist_are_ignored_and_invalid_files_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let files = [("a", file("a")), ("b", file("b")), ("empty", "current-context: ''\n".to_owned())];
        for (name, text) in files.into_iter().chain([("invalid", "contexts: [".to_owned())]) {
            std::fs::write(path(name), text).unwrap();
        }
        let current = |names: &[&str]| {
            let variable = std::env::join_paths(names.iter().map(|name| path(name))).unwrap();
            read(None, &variable).map(|file| file.map(|file| file.current_context))
        };
        assert_eq!(current(&["missing"]).unwrap(), None);
        assert_eq!(current(&["missing", "b", "a"]).unwrap(), Some(Some("b".to_owned())));
        assert_eq!(current(&["empty"]).unwrap(), Some(None));
        assert_eq!(current(&["empty", "a"]).unwrap(), Some(Some("a".to_owned())));
        assert!(current(&["a", "invalid"]).is_err());
        assert!(read(Some(&path("missing")), OsStr::new("")).is_err(), "the flag names the file");
    }

    #[test]
    fn a_missing_context_is_an_error_and_an_empty_namespace_is_the_default() {
        let parsed = Kubeconfig::from_yaml(&file("a")).unwrap();
        let config = of_file(&parsed, None, |_| None).unwrap();
        assert_eq!((config.cluster_url.host(), config.default_namespace.as_str()), (Some("a.example.com"), "default"));
        assert!(of_file(&parsed, Some("b"), |_| None).is_err());
    }

    #[test]
    fn the_configuration_is_that_of_the_selected_context() {
        let text = "current-context: a\ncontexts:\n- name: a\n  context: {cluster: one}\n- name: b\n  context: {cluster: two, \
                    user: exec, namespace: apps}\nclusters:\n- name: one\n  cluster: {server: 'https://a'}\n- name: two\n  \
                    cluster: {server: 'https://b', proxy-url: 'http://proxy:3128', tls-server-name: c, \
                    insecure-skip-tls-verify: true}\nusers:\n- name: exec\n  user: {exec: {command: login, \
                    provideClusterInfo: true}}\n";
        let parsed = Kubeconfig::from_yaml(text).unwrap();
        let one = of_file(&parsed, None, |_| None).unwrap();
        assert_eq!((one.proxy_url, one.root_cert, one.tls_server_name), (None, None, None));
        assert!(!one.accept_invalid_certs && one.auth_info.exec.is_none());
        let two = of_file(&parsed, Some("b"), |_| None).unwrap();
        assert_eq!(two.proxy_url.and_then(|url| url.port_u16()), Some(3128));
        assert_eq!((two.tls_server_name.as_deref(), two.default_namespace.as_str()), (Some("c"), "apps"));
        assert!(two.accept_invalid_certs);
        let cluster = two.auth_info.exec.and_then(|exec| exec.cluster);
        assert_eq!(cluster.and_then(|cluster| cluster.server).as_deref(), Some("https://b"));
    }

    #[test]
    fn the_certificates_of_the_cluster_are_read() {
        let section = "-----BEGIN CERTIFICATE-----\nAQID\n-----END CERTIFICATE-----\n";
        assert_eq!(certificates(format!("{section}\n{section}").as_bytes()).unwrap(), [[1, 2, 3], [1, 2, 3]]);
        assert!(certificates(b"-----BEGIN CERTIFICATE-----\n?\n-----END CERTIFICATE-----\n").is_err());
    }
}
