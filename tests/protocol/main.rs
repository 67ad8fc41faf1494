//! Tests the protocol between controllers and agents of different versions.
#![allow(clippy::panic, clippy::expect_used, clippy::unwrap_used, reason = "a missing prerequisite fails the test")]

mod compatibility;
#[path = "../fake_agent/mod.rs"]
mod fake_agent;
mod older_agent;

use std::path::Path;

use protox::prost_reflect::DescriptorPool;

use compatibility::incompatible_changes;

/// The committed descriptor set contains all released elements, because `make generate` only adds elements.
#[test]
fn no_element_of_the_released_protocol_is_removed_renumbered_or_retyped() {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rpc/protos");
    let released = std::fs::read(protos.join("agent.v1.binpb")).expect("released descriptor set");
    let released = DescriptorPool::decode(released.as_slice()).expect("valid released descriptor set");
    let today = protox::compile(["agent.proto"], [&protos]).expect("current protocol compiles");
    let today = DescriptorPool::from_file_descriptor_set(today).expect("valid current protocol");
    let broken = incompatible_changes(&released, &today);
    assert!(
        broken.is_empty(),
        "running agents and older controllers do not understand the changed protocol; keep the released elements and add \
         new elements instead:\n{}",
        broken.join("\n")
    );
}

/// The tests' older agent uses an older version of the protocol. The current protocol must extend this version.
#[test]
fn the_current_protocol_is_compatible_with_the_older_test_protocol() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let compile = |file: &str, folder: &str| {
        let set = protox::compile([file], [root.join(folder)]).expect("protocol compiles");
        DescriptorPool::from_file_descriptor_set(set).expect("valid protocol")
    };
    let older = compile("older.proto", "tests/fake_agent");
    assert_eq!(incompatible_changes(&older, &compile("agent.proto", "src/rpc/protos")), Vec::<String>::new());
}

const RELEASED: &str = r#"
syntax = "proto3";
package p;
service Agent { rpc Run(Request) returns (Reply); rpc Attach(Request) returns (stream Reply); }
message Request { string id = 1; repeated string words = 2; oneof part { string text = 3; uint32 number = 4; } }
message Reply { map<string, uint32> changes = 1; Outcome outcome = 2; Request request = 3; }
enum Outcome { OUTCOME_UNSPECIFIED = 0; OUTCOME_DONE = 1; }
"#;

fn pool(proto: &str) -> DescriptorPool {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("p.proto"), proto).expect("write the file");
    let set = protox::compile(["p.proto"], [folder.path()]).expect("example compiles");
    DescriptorPool::from_file_descriptor_set(set).expect("valid example")
}

#[test]
fn breaking_protocol_changes_are_reported_and_additions_are_not() {
    // Each example consists of a string in the protocol definition, its replacement, and the expected description of
    // the change.
    let examples = [
        ("string id = 1;", "string id = 1; string name = 9;", ""),
        ("OUTCOME_DONE = 1;", "OUTCOME_DONE = 1; OUTCOME_LOST = 2;", ""),
        ("message Request {", "message Other {} message Request {", ""),
        ("service Agent {", "service Agent { rpc More(Request) returns (Reply);", ""),
        ("string id = 1;", "", "p.Request: `string id = 1` was removed"),
        ("string id = 1;", "string id = 7;", "p.Request: `string id = 1` was removed"),
        ("string id = 1;", "bytes id = 1;", "`string id = 1` was changed to `bytes id = 1`"),
        ("string id = 1;", "string name = 1;", "`string id = 1` was changed to `string name = 1`"),
        ("string id = 1;", "repeated string id = 1;", "was changed to `repeated string id = 1`"),
        ("repeated string words", "string words", "`repeated string words = 2` was changed to `string words = 2`"),
        ("uint32 number = 4; }", "} uint32 number = 4;", "`oneof part uint32 number = 4` was changed to"),
        ("map<string, uint32>", "map<string, string>", "p.Reply.ChangesEntry: `uint32 value = 2` was changed to"),
        (
            "Request request = 3;",
            "Outcome request = 3;",
            "`p.Request request = 3` was changed to `p.Outcome request = 3`",
        ),
        ("OUTCOME_DONE = 1;", "OUTCOME_ENDED = 1;", "p.Outcome: 1 was OUTCOME_DONE and is now OUTCOME_ENDED"),
        ("OUTCOME_DONE = 1;", "OUTCOME_DONE = 2;", "p.Outcome: 1 was OUTCOME_DONE and is now not defined"),
        ("rpc Run(Request) returns (Reply);", "", "p.Agent: `rpc Run(p.Request) returns (p.Reply)` was removed"),
        ("rpc Run(Request)", "rpc Run(Reply)", "`rpc Run(p.Request) returns (p.Reply)` was removed"),
        ("returns (stream Reply)", "returns (Reply)", "`rpc Attach(p.Request) returns (stream p.Reply)` was removed"),
        ("service Agent", "service Other", "service p.Agent was removed"),
    ];
    let released = pool(RELEASED);
    assert_eq!(incompatible_changes(&released, &released), Vec::<String>::new());
    for (what, becomes, message) in examples {
        assert!(RELEASED.contains(what), "{what}");
        let found = incompatible_changes(&released, &pool(&RELEASED.replacen(what, becomes, 1))).join("\n");
        assert_eq!(found.is_empty(), message.is_empty(), "{what} → {becomes}: {found}");
        assert!(found.contains(message), "{what} → {becomes}: {found}");
    }
}
