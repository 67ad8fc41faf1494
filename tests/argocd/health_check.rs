//! Runs the health checks in `config/argocd` like Argo CD: with Lua 5.1, the base functions and the library `table`.

use std::path::{Path, PathBuf};

use mlua::{Lua, LuaOptions, StdLib, Table, Value as LuaValue};
use serde::Serialize;
use serde_json::Value;

/// Result of a health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    pub status: String,
    pub message: String,
}

impl Health {
    pub fn new(status: &str, message: &str) -> Self {
        Self { status: status.to_owned(), message: message.to_owned() }
    }
}

pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/argocd")
}

fn source(group: &str, kind: &str) -> String {
    let path = folder().join(group).join(kind).join("health.lua");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// Returns a Lua state with the libraries that Argo CD provides to all health checks.
pub fn restricted_lua() -> Lua {
    Lua::new_with(StdLib::TABLE, LuaOptions::new()).expect("a Lua state")
}

/// Runs the health check for the object's kind, and returns the result.
pub fn health(object: &impl Serialize) -> Health {
    let object = serde_json::to_value(object).expect("a JSON object");
    let field = |name: &str| object[name].as_str().unwrap_or_else(|| panic!("{name} is absent: {object}"));
    let group = field("apiVersion").split_once('/').expect("a group").0;
    let lua = restricted_lua();
    lua.globals().set("obj", to_lua(&lua, &object)).expect("a global variable");
    let script = lua.load(source(group, field("kind")));
    let result: Table = script.eval().unwrap_or_else(|error| panic!("{error}: {object}"));
    let mut fields: Vec<String> = result.pairs::<String, String>().map(|pair| pair.expect("a text field").0).collect();
    fields.sort();
    assert_eq!(fields, ["message", "status"], "{object}");
    let text = |name: &str| result.get::<String>(name).expect("a text field");
    Health { status: text("status"), message: text("message") }
}

/// Converts a JSON value to a Lua value. Omits fields with the value `null`, as Argo CD does.
fn to_lua(lua: &Lua, value: &Value) -> LuaValue {
    match value {
        Value::Null => LuaValue::Nil,
        Value::Bool(value) => LuaValue::Boolean(*value),
        Value::Number(value) => LuaValue::Number(value.as_f64().expect("a number")),
        Value::String(value) => LuaValue::String(lua.create_string(value).expect("a Lua string")),
        Value::Array(items) => {
            let items = items.iter().map(|item| to_lua(lua, item));
            LuaValue::Table(lua.create_sequence_from(items).expect("a Lua table"))
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| (name.as_str(), to_lua(lua, value)));
            LuaValue::Table(lua.create_table_from(fields).expect("a Lua table"))
        }
    }
}
