//! Blocks loopback, link-local and unspecified addresses, for example the address of a cloud provider's metadata
//! service. Otherwise, a user who sets the URL of a repository or of an OIDC issuer could reach services at such
//! addresses with a URL, a DNS name or a redirect.

use std::io;
use std::net::{IpAddr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// Returns the reason why the URL is not allowed, or `None` if the URL's host is neither a blocked address nor the host
/// name of a proxy. `proxies` are the host names of the proxies.
///
/// [`Resolver`] allows all addresses for the host name of a proxy. With such a name, a URL that bypasses the proxies
/// could reach other ports of a proxy in the controller's pod.
pub fn refusal(url: &Url, proxies: &[String]) -> Option<String> {
    let address = match url.host()? {
        Host::Ipv4(address) => IpAddr::V4(address),
        Host::Ipv6(address) => IpAddr::V6(address),
        Host::Domain(name) => {
            return is_proxy(name, proxies)
                .then(|| format!("{name} is the host name of a proxy, which is not allowed"));
        }
    };
    is_local(address).then(|| refused(&address.to_string()))
}

fn is_proxy(name: &str, proxies: &[String]) -> bool {
    proxies.iter().any(|proxy| proxy.eq_ignore_ascii_case(name))
}

/// Resolves a host. Removes blocked addresses unless `local_addresses` is true. Fails if all addresses are blocked.
pub async fn resolve(host: &str, port: u16, local_addresses: bool) -> io::Result<Vec<SocketAddr>> {
    let found = tokio::net::lookup_host((host, port)).await?;
    let (allowed, local): (Vec<_>, Vec<_>) = found.partition(|address| local_addresses || !is_local(address.ip()));
    match allowed.is_empty() && !local.is_empty() {
        true => Err(io::Error::other(refused(host))),
        false => Ok(allowed),
    }
}

fn refused(host: &str) -> String {
    format!("{host} is a loopback, link-local or unspecified address, which is not allowed")
}

fn is_local(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local() || address.octets().starts_with(&[0]),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local() || address.is_unspecified(),
    }
}

/// A DNS resolver that removes blocked addresses from the results. The HTTP client uses this resolver.
#[derive(Debug)]
pub struct Resolver {
    /// Host names of proxies. A proxy may have any address, because the controller's administrator configures the
    /// proxies. [`refusal`] rejects URLs with these host names.
    pub proxies: Vec<String>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let local_addresses = is_proxy(name.as_str(), &self.proxies);
        Box::pin(async move {
            // The client replaces port 0 with the port of the URL.
            let found = resolve(name.as_str(), 0, local_addresses).await?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_rejected_in_every_notation() {
        let refused = [
            "http://127.0.0.1/app",
            "http://127.1/app",
            "http://2130706433/app",
            "http://0x7f.0.0.1:8080/app",
            "http://0.0.0.0/app",
            "http://169.254.169.254/app",
            "http://[::1]/app",
            "http://[::]/app",
            "http://[fe80::1]/app",
            "http://[::ffff:127.0.0.1]/app",
            "http://[::ffff:169.254.169.254]/app",
        ];
        for text in refused {
            let message = refusal(&Url::parse(text).unwrap(), &[]);
            assert!(
                message.is_some_and(|message| message.contains("unspecified address, which is not allowed")),
                "{text}"
            );
        }
        for text in
            ["https://example.com/app", "http://10.0.0.1/app", "http://192.0.2.1/app", "http://[2001:db8::1]/app"]
        {
            assert_eq!(refusal(&Url::parse(text).unwrap(), &[]), None, "{text}");
        }
    }

    #[test]
    fn the_host_name_of_a_proxy_is_rejected() {
        let proxies = ["localhost".to_owned(), "proxy.example.com".to_owned(), "10.0.0.1".to_owned()];
        let table = [
            ("http://localhost:8080/app", true),
            ("https://LOCALHOST/app", true),
            ("https://proxy.example.com/app", true),
            ("https://git.proxy.example.com/app", false),
            ("https://example.com/app", false),
            ("http://10.0.0.1/app", false),
        ];
        for (text, is_refused) in table {
            let message = refusal(&Url::parse(text).unwrap(), &proxies);
            assert_eq!(message.is_some(), is_refused, "{text}: {message:?}");
            assert!(message.is_none_or(|message| message.contains("is the host name of a proxy")), "{text}");
        }
    }

    #[tokio::test]
    async fn host_names_that_resolve_to_local_addresses_are_rejected() {
        for name in ["localhost", "127.0.0.1", "::1"] {
            let message = resolve(name, 22, false).await.expect_err(name).to_string();
            assert!(message.contains("unspecified address, which is not allowed"), "{name}: {message}");
        }
        assert!(!resolve("localhost", 22, true).await.unwrap().is_empty());
        assert_eq!(resolve("192.0.2.1", 22, false).await.unwrap(), ["192.0.2.1:22".parse::<SocketAddr>().unwrap()]);
    }
}
