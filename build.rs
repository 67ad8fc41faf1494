//! Build script, which generates the code for the protocol between the controller and the agent from
//! `src/rpc/protos/agent.proto`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=src/rpc/protos");
    let descriptors = protox::compile(["agent.proto"], ["src/rpc/protos"])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
