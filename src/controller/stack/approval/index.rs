//! Cache of Approvals.

use kube::ResourceExt;

use crate::api::pulumi::Approval;
use crate::runtime::backoff::ObjectKey;
use crate::runtime::index::{IndexWriter, Indexed, indexed};

/// Index that maps the namespace and the name of a Stack to its Approvals.
pub type Approvals = Indexed<Approval, ObjectKey>;

/// Returns an empty store of Approvals and its writer.
pub fn approvals() -> (Approvals, IndexWriter<Approval, ObjectKey>) {
    indexed(|approval| vec![(approval.namespace().unwrap_or_default(), approval.spec.stack_ref.name.clone())])
}
