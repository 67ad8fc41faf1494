//! The kubectl plugin `kubectl pulumi`: parses the command line, runs the command, and returns its exit code.

#![forbid(unsafe_code)]

mod plugin;

use std::process::ExitCode;

use clap::Parser;

use crate::plugin::args::CommandLine;

fn main() -> ExitCode {
    if rustls::crypto::ring::default_provider().install_default().is_err() {
        eprintln!("✗ failed to install the TLS crypto provider: already installed");
        return ExitCode::FAILURE;
    }
    match plugin::run(CommandLine::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", plugin::message(&error));
            ExitCode::from(error.exit_code())
        }
    }
}
