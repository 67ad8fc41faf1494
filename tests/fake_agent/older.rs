//! An agent of an earlier version: `older.proto` is the protocol as it was before runs could outlive everything. What that
//! version does not know is lost on the way, in what it is told and in what it answers.

use anyhow::Context as _;
use prost::Message;
use protox::prost_reflect::{DescriptorPool, DynamicMessage, Value};

/// Where the protocol of that version is, from the package's root.
const FOLDER: &str = "tests/fake_agent";
const FILE: &str = "older.proto";
/// How it calls itself.
pub(super) const VERSION: &str = "0.0.9";

pub(super) struct Older(DescriptorPool);

impl Older {
    pub(super) fn load() -> anyhow::Result<Older> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
        let set = protox::compile([FILE], [&folder]).with_context(|| format!("{FILE} cannot be compiled"))?;
        Ok(Older(DescriptorPool::from_file_descriptor_set(set).with_context(|| format!("{FILE} is not whole"))?))
    }

    /// A message as it is after it went through the older version. One that it does not know at all is left empty.
    pub(super) fn pass<M: Message + Default>(&self, name: &str, message: &M) -> anyhow::Result<M> {
        let Some(descriptor) = self.0.get_message_by_name(&format!("pulumi.controller.agent.v1.{name}")) else {
            return Ok(M::default());
        };
        let mut known = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())
            .with_context(|| format!("the older version cannot read {name}"))?;
        forget_what_is_unknown(&mut known);
        M::decode(known.encode_to_vec().as_slice())
            .with_context(|| format!("the older version's {name} cannot be read"))
    }
}

fn forget_what_is_unknown(message: &mut DynamicMessage) {
    message.take_unknown_fields().for_each(drop);
    for (_, value) in message.fields_mut() {
        match value {
            Value::Message(inner) => forget_what_is_unknown(inner),
            Value::List(items) => items.iter_mut().filter_map(Value::as_message_mut).for_each(forget_what_is_unknown),
            Value::Map(entries) => {
                entries.values_mut().filter_map(Value::as_message_mut).for_each(forget_what_is_unknown);
            }
            _ => {}
        }
    }
}
