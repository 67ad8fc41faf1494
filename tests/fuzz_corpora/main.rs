//! Runs the fuzz target functions with the inputs from their corpora. These tests require only the stable compiler.
//! `make fuzz` starts from the same corpora, and requires a nightly compiler. `REGENERATE=1 cargo test --test
//! fuzz_corpora` rewrites the seeds. The corpora contain the seeds and the inputs that the fuzzer has found.
#![allow(clippy::expect_used, clippy::panic, reason = "a missing prerequisite fails the test")]

#[path = "../fuzz/bodies.rs"]
mod bodies;
mod seeds;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pulumi_controller::artifact::Limits;

use crate::seeds::Expected;

fn corpora() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus")
}

#[test]
fn every_corpus_file_satisfies_the_invariants() {
    for (target, body) in bodies::BODIES {
        let folder = corpora().join(target);
        let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("reading {}: {error}", folder.display()));
        let mut count = 0;
        for file in files.flatten() {
            let bytes = std::fs::read(file.path()).expect("readable corpus file");
            // If the function panics, the last printed file is the cause.
            println!("{}", file.path().display());
            body(&bytes);
            count += 1;
        }
        assert!(count > 0, "{} is empty", folder.display());
    }
}

#[test]
fn the_committed_seeds_match_their_generator() {
    let regenerate = std::env::var_os("REGENERATE").is_some();
    for (target, seeds) in seeds::all() {
        let folder = corpora().join(target);
        if regenerate {
            std::fs::create_dir_all(&folder).expect("create the folder");
        }
        for (name, bytes) in seeds {
            let file = folder.join(name);
            if regenerate {
                std::fs::write(&file, &bytes).expect("write the seed");
            }
            let found = std::fs::read(&file).unwrap_or_else(|error| panic!("reading {}: {error}", file.display()));
            assert!(
                found == bytes,
                "{} is out of date: run `REGENERATE=1 cargo test --test fuzz_corpora`",
                file.display()
            );
        }
    }
}

/// The test uses the agent's limits.
#[test]
fn each_hostile_archive_is_rejected_with_the_expected_error() {
    let archives: BTreeMap<_, _> = seeds::archives().into_iter().map(|a| (a.name, a)).collect();
    assert!(archives.len() > 20);
    for (name, archive) in archives {
        let result = bodies::unpacked(&bodies::compress(&archive.tar), &Limits::default());
        match (archive.expected, result) {
            (Expected::Taken, Ok(_)) => {}
            (Expected::Refused(words), Err(error)) => {
                let message = error.to_string();
                assert!(
                    words.iter().all(|word| message.contains(word)),
                    "{name}: {message:?} does not contain {words:?}"
                );
            }
            (Expected::Taken, Err(error)) => panic!("{name} is rejected: {error}"),
            (Expected::Refused(_), Ok(_)) => panic!("{name} is accepted"),
        }
    }
}
