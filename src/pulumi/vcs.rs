//! Derives a repository's owner, name and kind from its URL. Pulumi Cloud uses the owner, name and kind to link stacks
//! to their repositories. The CLI cannot derive them, because a workspace contains no `.git` directory with the Git
//! remote URL.

/// Azure DevOps host.
const AZURE_DEVOPS: &str = "dev.azure.com";
/// Hosts for SSH access to Azure DevOps.
const AZURE_DEVOPS_SSH: [&str; 2] = ["ssh.dev.azure.com", "vs-ssh.visualstudio.com"];
/// Suffix of the host names that Azure DevOps used earlier. These host names start with the owner.
const VISUAL_STUDIO: &str = ".visualstudio.com";
/// Path component that precedes the repository name in Azure DevOps URLs.
const AZURE_REPOSITORIES: &str = "_git";

/// A repository on a version control server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repository {
    /// Organization or user that owns the repository.
    pub owner: String,
    /// Name of the repository. If the repository is in subgroups, for example in GitLab, the name is the whole path
    /// below the owner.
    pub name: String,
    /// Host of the server, such as `github.com`.
    pub kind: String,
}

/// Returns the repository to which a Git remote URL refers, or `None` if the URL contains no owner or no name. Parses
/// the URL in the same way as the CLI, but also supports `ssh://` URLs, because a GitRepository requires this form for
/// SSH.
pub fn repository(url: &str) -> Option<Repository> {
    let (host, path) = host_and_path(url.trim())?;
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    if AZURE_DEVOPS_SSH.contains(&host.as_str()) {
        // The path starts with the protocol version, such as `v3`.
        return of_azure_devops(path.split_once('/').map(|(_, path)| path)?);
    }
    if host == AZURE_DEVOPS {
        return of_azure_devops(path);
    }
    if let Some(owner) = host.strip_suffix(VISUAL_STUDIO) {
        return of(owner, path, AZURE_DEVOPS);
    }
    let (owner, name) = path.split_once('/')?;
    of(owner, name, &host)
}

/// Returns the repository for a path of the form `owner/project/_git/repository`. Adds `_git` if it is missing, in the
/// same way as the CLI.
fn of_azure_devops(path: &str) -> Option<Repository> {
    let (owner, path) = path.split_once('/')?;
    if path.split('/').any(|part| part == AZURE_REPOSITORIES) {
        return of(owner, path, AZURE_DEVOPS);
    }
    let (project, name) = path.split_once('/')?;
    of(owner, &format!("{project}/{AZURE_REPOSITORIES}/{name}"), AZURE_DEVOPS)
}

fn of(owner: &str, name: &str, kind: &str) -> Option<Repository> {
    let is_complete = [owner, name, kind].iter().all(|part| !part.is_empty());
    is_complete.then(|| Repository { owner: owner.to_owned(), name: name.to_owned(), kind: kind.to_owned() })
}

/// Returns the host and the path of a URL, or of the short form `user@host:path`. The host of an HTTP URL includes the
/// port.
fn host_and_path(url: &str) -> Option<(String, &str)> {
    let (scheme, (authority, path)) = match url.split_once("://") {
        Some((scheme, rest)) => (scheme, rest.split_once('/')?),
        None => ("ssh", url.split_once(':')?),
    };
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match scheme {
        "http" | "https" => host,
        "ssh" | "git+ssh" | "ssh+git" => host.split_once(':').map_or(host, |(host, _)| host),
        _ => return None,
    };
    Some((host.to_ascii_lowercase(), path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_name_and_kind_are_derived_from_the_url() {
        let rows = [
            ("https://github.com/acme/web", Some(("acme", "web", "github.com"))),
            ("https://github.com/acme/web.git", Some(("acme", "web", "github.com"))),
            ("https://me:word@GitHub.com/acme/web.git", Some(("acme", "web", "github.com"))),
            ("http://git.example.com:8080/acme/web.git", Some(("acme", "web", "git.example.com:8080"))),
            ("git@github.com:acme/web.git", Some(("acme", "web", "github.com"))),
            ("git@git.example.com:acme/web", Some(("acme", "web", "git.example.com"))),
            ("github.com:acme/web.git", Some(("acme", "web", "github.com"))),
            ("ssh://git@github.com/acme/web.git", Some(("acme", "web", "github.com"))),
            ("ssh://git@git.example.com:2222/acme/web", Some(("acme", "web", "git.example.com"))),
            ("https://gitlab.com/acme/infra/web.git", Some(("acme", "infra/web", "gitlab.com"))),
            ("git@gitlab.com:acme/infra/eu/web.git", Some(("acme", "infra/eu/web", "gitlab.com"))),
            ("https://bitbucket.org/acme/web.git", Some(("acme", "web", "bitbucket.org"))),
            ("https://dev.azure.com/acme/shop/_git/web", Some(("acme", "shop/_git/web", "dev.azure.com"))),
            ("https://acme@dev.azure.com/acme/shop/web", Some(("acme", "shop/_git/web", "dev.azure.com"))),
            ("git@ssh.dev.azure.com:v3/acme/shop/web", Some(("acme", "shop/_git/web", "dev.azure.com"))),
            ("acme@vs-ssh.visualstudio.com:v3/acme/shop/web", Some(("acme", "shop/_git/web", "dev.azure.com"))),
            ("https://acme.visualstudio.com/shop/_git/web", Some(("acme", "shop/_git/web", "dev.azure.com"))),
            ("https://dev.azure.com/acme/web", None),
            ("https://git.example.com/web.git", None),
            ("https://git.example.com//web", None),
            ("git@git.example.com:web.git", None),
            ("file:///srv/acme/web", None),
            ("https://github.com", None),
            ("web", None),
            ("", None),
        ];
        for (url, expected) in rows {
            let found = repository(url);
            let found = found.as_ref().map(|found| (found.owner.as_str(), found.name.as_str(), found.kind.as_str()));
            assert_eq!(found, expected, "{url}");
        }
    }
}
