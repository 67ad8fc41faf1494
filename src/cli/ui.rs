//! Flags of the web UI.

use std::path::PathBuf;

use clap::Args;

/// Flags of the web UI, which is part of the manager.
#[derive(Clone, Debug, Args)]
pub struct UiFlags {
    /// Address of the web UI. Users sign in with a token of the Kubernetes API. The UI does not encrypt the connection,
    /// so expose the UI only through an Ingress or a Gateway with TLS. `0` disables the UI.
    #[arg(long, default_value = "0", value_name = "HOST:PORT")]
    pub ui_addr: String,

    /// URL at which users open the web UI, such as `https://pulumi.example.com`. Required for the sign-in with OIDC.
    #[arg(long, default_value = "", value_name = "URL")]
    pub ui_url: String,

    /// OIDC issuer at which users of the web UI sign in. The API server must accept the ID tokens of this issuer for
    /// this client. Default: users sign in only with a token.
    #[arg(long, default_value = "", value_name = "URL")]
    pub ui_oidc_issuer: String,

    /// OIDC client ID of the web UI.
    #[arg(long, default_value = "", value_name = "ID")]
    pub ui_oidc_client_id: String,

    /// File that contains the web UI's OIDC client secret. Default: the client has no secret.
    #[arg(long, value_name = "FILE")]
    pub ui_oidc_client_secret_file: Option<PathBuf>,

    /// File that contains CA certificates in PEM format. For connections to the OIDC issuer, the web UI trusts these
    /// certificates in addition to the CA certificates in the controller's image.
    #[arg(long, value_name = "FILE")]
    pub ui_oidc_ca_file: Option<PathBuf>,

    /// Scopes that the web UI requests from the OIDC issuer.
    #[arg(long, value_delimiter = ',', default_value = "openid,email,profile", value_name = "SCOPES")]
    pub ui_oidc_scopes: Vec<String>,
}
