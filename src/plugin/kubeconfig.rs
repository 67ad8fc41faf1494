//! Configuration of the client. The rules are those of kubectl, so that the plugin always uses the same cluster as
//! kubectl.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::Uri;
use http::uri::InvalidUri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use pulumi_controller::text::chain;

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
pub async fn load(flags: &GlobalFlags) -> Result<Config, PluginError> {
    let failed = |error: KubeconfigError| PluginError::Connect(chain(&error));
    let variable = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let problem = match read(flags.kubeconfig.as_deref(), &variable).map_err(failed)? {
        Some(file) if flags.context.is_some() || file.current_context.is_some() => {
            return of_file(file, flags.context.clone()).await.map_err(failed);
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

async fn of_file(file: Kubeconfig, context: Option<String>) -> Result<Config, KubeconfigError> {
    let own_proxy = own_proxy(&file, context.as_deref());
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(file, &options).await?;
    // kube-rs compares NO_PROXY with the host of the proxy, and not with the host of the API server.
    let proxy = proxy(&config.cluster_url, own_proxy, |name| std::env::var(name).ok());
    config.proxy_url = proxy.map_err(KubeconfigError::ParseProxyUrl)?;
    if config.default_namespace.is_empty() {
        config.default_namespace = DEFAULT_NAMESPACE.to_owned();
    }
    Ok(config)
}

/// Returns the proxy that the kubeconfig sets for the cluster of the context.
fn own_proxy(file: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let context = context.or(file.current_context.as_deref())?;
    let context = file.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    let cluster = file.clusters.iter().find(|named| named.name == context.cluster)?.cluster.as_ref()?;
    cluster.proxy_url.clone().filter(|url| !url.is_empty())
}

/// Returns the proxy for an API server: the proxy in the kubeconfig or, unless `NO_PROXY` excludes the API server, the
/// proxy in the environment variables. `variable` returns the value of a variable.
fn proxy(
    server: &Uri,
    own: Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, InvalidUri> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let either = |name: &str| set(name).or_else(|| set(&name.to_lowercase()));
    let of_environment = || {
        let url = either(if server.scheme_str() == Some("https") { "HTTPS_PROXY" } else { "HTTP_PROXY" })?;
        let matcher = Matcher::builder().all(&url).no(either("NO_PROXY").unwrap_or_default()).build();
        (!is_local(server) && matcher.intercept(server).is_some()).then_some(url)
    };
    let url = own.or_else(of_environment);
    let with_scheme = |url: String| if url.contains("://") { url } else { format!("http://{url}") };
    url.map(|url| with_scheme(url).parse()).transpose()
}

/// Returns whether the server is on this computer. kubectl connects to such a server without the proxy in the variables.
fn is_local(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
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

    #[tokio::test]
    async fn a_missing_context_is_an_error_and_an_empty_namespace_is_the_default() {
        let parsed = || Kubeconfig::from_yaml(&file("a")).unwrap();
        let config = of_file(parsed(), None).await.unwrap();
        assert_eq!((config.cluster_url.host(), config.default_namespace.as_str()), (Some("a.example.com"), "default"));
        assert!(of_file(parsed(), Some("b".to_owned())).await.is_err());
    }

    #[test]
    fn the_proxy_of_the_environment_is_used_unless_it_is_excluded() {
        let of = |server: &'static str, own: Option<&str>, variables: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = variables.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            proxy(&Uri::from_static(server), own.map(str::to_owned), variable).unwrap().map(|url| url.to_string())
        };
        let server = "https://a.example.com:6443";
        let https = ("HTTPS_PROXY", "http://proxy:3128");
        let found = Some("http://proxy:3128/".to_owned());
        assert_eq!(of(server, None, &[]), None);
        assert_eq!(of(server, None, &[https]), found);
        assert_eq!(of(server, None, &[("HTTPS_PROXY", ""), ("https_proxy", "proxy:3128")]), found);
        assert_eq!(of(server, None, &[("HTTP_PROXY", "http://proxy:3128")]), None, "another scheme");
        assert_eq!(of(server, None, &[https, ("NO_PROXY", "b.example.com,.proxy")]), found);
        assert_eq!(of(server, None, &[https, ("NO_PROXY", "localhost,.example.com")]), None);
        assert_eq!(of("https://10.1.2.3", None, &[https, ("no_proxy", "10.0.0.0/8")]), None);
        for local in ["https://127.0.0.1:6443", "https://localhost:6443", "https://[::1]:6443"] {
            assert_eq!(of(local, None, &[https]), None, "{local}");
        }
        let own = of(server, Some("socks5://127.0.0.1:1080"), &[https, ("NO_PROXY", "*,127.0.0.1")]);
        assert_eq!(own.as_deref(), Some("socks5://127.0.0.1:1080/"), "NO_PROXY does not apply to the kubeconfig");
    }

    #[test]
    fn the_proxy_of_the_kubeconfig_is_that_of_the_selected_context() {
        let text = "current-context: a\ncontexts:\n- name: a\n  context: {cluster: one}\n- name: b\n  context: {cluster: two}\n\
                    clusters:\n- name: one\n  cluster: {server: 'https://a'}\n- name: two\n  cluster: {server: 'https://b', \
                    proxy-url: 'http://proxy:3128'}\n";
        let file = Kubeconfig::from_yaml(text).unwrap();
        assert_eq!(own_proxy(&file, None), None);
        assert_eq!(own_proxy(&file, Some("b")).as_deref(), Some("http://proxy:3128"));
        assert_eq!(own_proxy(&file, Some("c")), None);
    }
}
