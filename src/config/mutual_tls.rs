//! Settings of SPIFFE mutual TLS.

use super::values::{ConfigError, invalid, unset};
use crate::cli::ManagerFlags;
use crate::mutual_tls::{AuthorizedId, Identity};

/// Settings of SPIFFE mutual TLS with the Flux controllers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MutualTlsConfig {
    /// Address of the SPIFFE Workload API.
    pub endpoint: String,
    /// SPIFFE IDs of the artifact servers. If the list is empty, the controller fetches artifacts without mutual TLS.
    pub artifact_servers: Vec<AuthorizedId>,
    /// SPIFFE IDs of the event servers. If the list is empty, the controller sends events without mutual TLS.
    pub event_servers: Vec<AuthorizedId>,
}

/// Returns the settings, or `None` if no flag authorizes a server.
pub(super) fn mutual_tls(flags: &ManagerFlags) -> Result<Option<MutualTlsConfig>, ConfigError> {
    let artifact_servers = ids("authorized-artifact-server-spiffe-id", &flags.authorized_artifact_server_spiffe_id)?;
    let event_servers = ids("authorized-event-server-spiffe-id", &flags.authorized_event_server_spiffe_id)?;
    if artifact_servers.is_empty() && event_servers.is_empty() {
        return Ok(None);
    }
    let (flag, endpoint) = ("spiffe-endpoint-socket", flags.spiffe_endpoint_socket.trim());
    if endpoint.is_empty() {
        return Err(unset(flag, "SPIFFE_ENDPOINT_SOCKET", "socket of the SPIFFE Workload API"));
    }
    let valid = "a URI such as unix:///spiffe-workload-api/spire-agent.sock";
    Identity::check_endpoint(endpoint).map_err(|why| invalid(flag, endpoint, format!("{valid}: {why}")))?;
    Ok(Some(MutualTlsConfig { endpoint: endpoint.to_owned(), artifact_servers, event_servers }))
}

fn ids(flag: &'static str, values: &[String]) -> Result<Vec<AuthorizedId>, ConfigError> {
    let valid = "a SPIFFE ID, a prefix that ends with /, or a trust domain such as spiffe://example.org";
    let parse = |value: &String| value.parse().map_err(|why| invalid(flag, value, format!("{valid}: {why}")));
    values.iter().map(parse).collect()
}
