//! Detects incompatible changes to the protocol, because agents and controllers of different versions must
//! interoperate. All functions are pure.

use protox::prost_reflect::{
    DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor, ServiceDescriptor,
};

/// Returns a description of each element in `released` that is missing or different in `today`. Additions are
/// compatible.
pub fn incompatible_changes(released: &DescriptorPool, today: &DescriptorPool) -> Vec<String> {
    let mut broken = Vec::new();
    for message in released.all_messages() {
        match today.get_message_by_name(message.full_name()) {
            Some(now) => fields(&message, &now, &mut broken),
            None => broken.push(format!("message {} was removed", message.full_name())),
        }
    }
    for values in released.all_enums() {
        match today.get_enum_by_name(values.full_name()) {
            Some(now) => enum_values(&values, &now, &mut broken),
            None => broken.push(format!("enum {} was removed", values.full_name())),
        }
    }
    for service in released.services() {
        match today.get_service_by_name(service.full_name()) {
            Some(now) => methods(&service, &now, &mut broken),
            None => broken.push(format!("service {} was removed", service.full_name())),
        }
    }
    broken
}

fn fields(message: &MessageDescriptor, now: &MessageDescriptor, broken: &mut Vec<String>) {
    for field in message.fields() {
        let was = declaration(&field);
        match now.get_field(field.number()) {
            None => broken.push(format!("{}: `{was}` was removed", message.full_name())),
            Some(other) if declaration(&other) != was => {
                broken.push(format!("{}: `{was}` was changed to `{}`", message.full_name(), declaration(&other)));
            }
            Some(_) => {}
        }
    }
}

/// Returns the declaration of a field. Every change to this declaration is an incompatible change to the protocol.
fn declaration(field: &FieldDescriptor) -> String {
    let presence = match () {
        () if field.is_list() => "repeated ".to_owned(),
        () => field.containing_oneof().map(|oneof| format!("oneof {} ", oneof.name())).unwrap_or_default(),
    };
    let kind = match field.kind() {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(values) => values.full_name().to_owned(),
        scalar => format!("{scalar:?}"),
    };
    format!("{presence}{kind} {} = {}", field.name(), field.number())
}

fn enum_values(values: &EnumDescriptor, now: &EnumDescriptor, broken: &mut Vec<String>) {
    for value in values.values() {
        let found = now.get_value(value.number()).map(|found| found.name().to_owned());
        if found.as_deref() != Some(value.name()) {
            let now = found.unwrap_or_else(|| "not defined".to_owned());
            broken.push(format!("{}: {} was {} and is now {now}", values.full_name(), value.number(), value.name()));
        }
    }
}

fn methods(service: &ServiceDescriptor, now: &ServiceDescriptor, broken: &mut Vec<String>) {
    let signatures =
        |service: &ServiceDescriptor| -> Vec<String> { service.methods().map(|m| signature(&m)).collect() };
    let current = signatures(now);
    for was in signatures(service).into_iter().filter(|was| !current.contains(was)) {
        broken.push(format!("{}: `{was}` was removed", service.full_name()));
    }
}

fn signature(method: &protox::prost_reflect::MethodDescriptor) -> String {
    let stream = |streams: bool| if streams { "stream " } else { "" };
    format!(
        "rpc {}({}{}) returns ({}{})",
        method.name(),
        stream(method.is_client_streaming()),
        method.input().full_name(),
        stream(method.is_server_streaming()),
        method.output().full_name()
    )
}
