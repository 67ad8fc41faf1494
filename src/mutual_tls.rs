//! SPIFFE mutual TLS for requests to the Flux controllers. This controller authenticates with the X.509-SVID that the
//! SPIFFE Workload API issues, and sends requests only to servers with an authorized SPIFFE ID. The flags have the same
//! names and values as the flags of the Flux controllers (Flux RFC-0014).

mod authorized_id;
mod client;
mod failure;
mod identity;
#[cfg(test)]
pub(crate) mod test_runtime;
#[cfg(test)]
mod tests;

pub use authorized_id::AuthorizedId;
pub use client::{Client, MutualTls, SendError, build};
pub use failure::{Failure, Peer};
pub use identity::{Identity, NoIdentity};
