//! Entry point of the kubectl plugin `kubectl pulumi`, which parses the command line, runs the command, and returns its
//! exit code.

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
    let line = match CommandLine::try_parse() {
        Ok(line) => line,
        Err(error) => {
            // A write error is ignored, because there is no other place to report the error.
            let _ = error.print();
            let words: Vec<_> = std::env::args_os().collect();
            return ExitCode::from(plugin::args::exit_code(&error, &words));
        }
    };
    match plugin::run(line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            plugin::report(&error);
            ExitCode::from(error.exit_code())
        }
    }
}
