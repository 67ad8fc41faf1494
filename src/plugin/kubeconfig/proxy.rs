//! Proxy for the connection to the API server. The rules are those of Go, and therefore of kubectl.

use std::net::IpAddr;

use http::Uri;
use http::uri::InvalidUri;
use ipnet::IpNet;

/// Returns the proxy for an API server: the proxy in the kubeconfig or, unless `NO_PROXY` excludes the API server, the
/// proxy in the environment variables. `variable` returns the value of a variable.
///
/// # Errors
///
/// Returns an error if the URL of the proxy is invalid.
pub fn of(
    server: &Uri,
    own: Option<&str>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, InvalidUri> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    let either = |name: &str| set(name).or_else(|| set(&name.to_lowercase()));
    let of_environment = || {
        let url = either(if server.scheme_str() == Some("https") { "HTTPS_PROXY" } else { "HTTP_PROXY" })?;
        let excluded = either("NO_PROXY").unwrap_or_default();
        (!is_local(server) && !is_excluded(server, &excluded)).then_some(url)
    };
    let url = own.filter(|url| !url.is_empty()).map(str::to_owned).or_else(of_environment);
    let with_scheme = |url: String| if url.contains("://") { url } else { format!("http://{url}") };
    url.map(|url| with_scheme(url).parse()).transpose()
}

/// Returns the host name or the IP address of a server.
fn host(server: &Uri) -> String {
    server.host().unwrap_or_default().trim_matches(['[', ']']).to_lowercase()
}

/// Returns whether the server is on this computer. kubectl connects to such a server without the proxy in the variables.
fn is_local(server: &Uri) -> bool {
    let host = host(server);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Returns whether the list in `NO_PROXY` excludes a server. Each entry is `*`, an IP address, a network or a domain. An
/// address or a domain can have a port.
fn is_excluded(server: &Uri, list: &str) -> bool {
    let host = host(server);
    let address: Option<IpAddr> = host.parse().ok();
    let default_port = if server.scheme_str() == Some("https") { 443 } else { 80 };
    let port = server.port_u16().unwrap_or(default_port).to_string();
    list.split(',').map(|entry| entry.trim().to_lowercase()).filter(|entry| !entry.is_empty()).any(|entry| {
        let (name, own_port) = split_port(&entry);
        let is_host = match address {
            Some(address) => is_address(address, name),
            None => is_domain(&host, name),
        };
        entry == "*" || (is_host && own_port.is_none_or(|own| own == port))
    })
}

/// Splits an entry into the host and the port. An IPv6 address with a port is in brackets.
fn split_port(entry: &str) -> (&str, Option<&str>) {
    match entry.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host.trim_matches(['[', ']']), Some(port).filter(|port| !port.is_empty()))
        }
        _ => (entry, None),
    }
}

/// Returns whether an entry is this address or a network that contains the address.
fn is_address(address: IpAddr, entry: &str) -> bool {
    entry.parse::<IpAddr>().is_ok_and(|own| own == address)
        || entry.parse::<IpNet>().is_ok_and(|network| network.contains(&address))
}

/// Returns whether a host belongs to a domain. `example.com` contains the host with this name and all hosts below,
/// `.example.com` and `*.example.com` contain only the hosts below.
fn is_domain(host: &str, entry: &str) -> bool {
    let is_below = |domain: &str| host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    match entry.strip_prefix("*.").or_else(|| entry.strip_prefix('.')) {
        Some(domain) => is_below(domain),
        None => host == entry || is_below(entry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(server: &'static str, own: Option<&str>, variables: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        of(&Uri::from_static(server), own, variable).unwrap().map(|url| url.to_string())
    }

    const SERVER: &str = "https://a.example.com:6443";
    const HTTPS: (&str, &str) = ("HTTPS_PROXY", "http://proxy:3128");

    #[test]
    fn the_proxy_of_the_environment_is_that_of_the_scheme_and_not_for_local_servers() {
        let proxy = Some("http://proxy:3128/".to_owned());
        assert_eq!(found(SERVER, None, &[]), None);
        assert_eq!(found(SERVER, None, &[HTTPS]), proxy);
        assert_eq!(found(SERVER, Some(""), &[("HTTPS_PROXY", ""), ("https_proxy", "proxy:3128")]), proxy);
        assert_eq!(found(SERVER, None, &[("HTTP_PROXY", "http://proxy:3128")]), None, "another scheme");
        for local in ["https://127.0.0.1:6443", "https://localhost:6443", "https://[::1]:6443"] {
            assert_eq!(found(local, None, &[HTTPS]), None, "{local}");
        }
        let own = found(SERVER, Some("socks5://127.0.0.1:1080"), &[HTTPS, ("NO_PROXY", "*,127.0.0.1")]);
        assert_eq!(own.as_deref(), Some("socks5://127.0.0.1:1080/"), "NO_PROXY does not apply to the kubeconfig");
    }

    #[test]
    fn no_proxy_excludes_servers_as_in_kubectl() {
        let rows = [
            (SERVER, "b.example.com,.proxy", false),
            (SERVER, "localhost,.example.com", true),
            (SERVER, "localhost, Example.com", true),
            (SERVER, "*.example.com", true),
            (SERVER, "xample.com", false),
            (SERVER, ".a.example.com,*.a.example.com", false),
            (SERVER, "a.example.com:6443", true),
            (SERVER, "a.example.com:443,example.com:443", false),
            (SERVER, "localhost,*", true),
            (SERVER, ",localhost,,", false),
            (SERVER, "<local>,/,a.example.com,", true),
            ("https://a.example.com", "example.com:443", true),
            ("https://10.1.2.3", "10.0.0.0/8", true),
            ("https://10.1.2.3", "11.0.0.0/8,10.1.2", false),
            ("https://10.1.2.3:6443", "10.1.2.3:6443", true),
            ("https://10.1.2.3:6443", "10.1.2.3:443", false),
            ("https://10.1.2.3", "*", true),
            ("https://[fd00::1]:6443", "fd00::/8", true),
            ("https://[fd00::1]:6443", "fd00::1", true),
            ("https://[fd00::1]:6443", "[fd00::1]:6443", true),
            ("https://[fd00::1]:6443", "[fd00::1]:443", false),
        ];
        for (server, list, is_excluded) in rows {
            for name in ["NO_PROXY", "no_proxy"] {
                assert_eq!(found(server, None, &[HTTPS, (name, list)]).is_none(), is_excluded, "{server} {list}");
            }
        }
    }
}
