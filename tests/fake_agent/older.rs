//! Emulates an agent of an older version. `older.proto` defines the protocol of the older version. The emulation
//! removes fields that the older protocol lacks from requests and responses.

use anyhow::Context as _;
use prost::Message;
use protox::prost_reflect::{DescriptorPool, DynamicMessage, Value};

/// Directory of the older protocol, relative to the package root.
const FOLDER: &str = "tests/fake_agent";
const FILE: &str = "older.proto";
/// Version that the older agent reports.
pub(super) const VERSION: &str = "0.0.9";

pub(super) struct Older(DescriptorPool);

impl Older {
    pub(super) fn load() -> anyhow::Result<Older> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
        let set = protox::compile([FILE], [&folder]).with_context(|| format!("{FILE} cannot be compiled"))?;
        Ok(Older(DescriptorPool::from_file_descriptor_set(set).with_context(|| format!("{FILE} is incomplete"))?))
    }

    /// Returns the message without the fields that are missing in the older version. If the older version does not have
    /// this type of message, the function returns an empty message.
    pub(super) fn pass<M: Message + Default>(&self, name: &str, message: &M) -> anyhow::Result<M> {
        let Some(descriptor) = self.0.get_message_by_name(&format!("pulumi.controller.agent.v1.{name}")) else {
            return Ok(M::default());
        };
        let mut known = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice())
            .with_context(|| format!("the older version cannot read {name}"))?;
        remove_unknown_fields(&mut known);
        M::decode(known.encode_to_vec().as_slice())
            .with_context(|| format!("the older version's {name} cannot be read"))
    }
}

fn remove_unknown_fields(message: &mut DynamicMessage) {
    message.take_unknown_fields().for_each(drop);
    for (_, value) in message.fields_mut() {
        match value {
            Value::Message(inner) => remove_unknown_fields(inner),
            Value::List(items) => items.iter_mut().filter_map(Value::as_message_mut).for_each(remove_unknown_fields),
            Value::Map(entries) => {
                entries.values_mut().filter_map(Value::as_message_mut).for_each(remove_unknown_fields);
            }
            _ => {}
        }
    }
}
