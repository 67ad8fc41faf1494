//! Generated files are what their sources say. `REGENERATE=1 cargo test --test generated` writes them anew.

use std::path::Path;

use anyhow::{Context, Result};

/// Compares a file with what it shall be, or writes it when asked to.
fn expect_file(path: &Path, wanted: &str) -> Result<()> {
    if std::env::var_os("REGENERATE").is_some() {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        return std::fs::write(path, wanted).with_context(|| format!("cannot write {}", path.display()));
    }
    let found = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    anyhow::ensure!(found == wanted, "{} is out of date: run `make generate`", path.display());
    Ok(())
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_rpc_code_is_what_the_proto_says() -> Result<()> {
    let protos = root().join("src/rpc/protos");
    let descriptors = protox::compile(["agent.proto"], [&protos])?;
    let directory = tempfile::tempdir()?;
    tonic_prost_build::configure().out_dir(directory.path()).compile_fds(descriptors)?;
    let code = std::fs::read_to_string(directory.path().join("pulumi.controller.agent.v1.rs"))?;
    expect_file(&root().join("src/rpc/proto.rs"), &code)
}
