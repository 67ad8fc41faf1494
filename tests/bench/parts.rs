//! Measures how long the agent needs to verify and unpack a source. The baselines are the tools `sha256sum` and `tar
//! -xzf`. Also measures the controller's index lookups for a push while few or many Stacks are idle. `make bench` reads
//! the medians that criterion writes.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a missing prerequisite ends the benchmark"
)]

mod lookups;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use pulumi_controller::artifact::{Algorithm, Digest, Limits, pack, unpack};
use tempfile::TempDir;

use lookups::AtRest;

/// Number of directories in the source. The source resembles a typical repository with dependencies, which contains
/// many small files, and some files of a few hundred kilobytes.
const FOLDERS: usize = 100;
/// Number of files in each directory.
const FILES_IN_FOLDER: usize = 12;
/// Size of the archive for the digest measurement, in bytes. With this size, the startup time of `sha256sum` is
/// negligible.
const DIGESTED: usize = 64 * 1024 * 1024;
/// Words from which the benchmark generates source code. The generated code compresses like real code.
const WORDS: [&str; 24] = [
    "const",
    "export",
    "function",
    "return",
    "import",
    "from",
    "pulumi",
    "resource",
    "name",
    "args",
    "string",
    "number",
    "undefined",
    "options",
    "provider",
    "output",
    "apply",
    "await",
    "async",
    "interface",
    "readonly",
    "this",
    "new",
    "length",
];

fn digests(criterion: &mut Criterion) {
    let folder = scratch();
    let file = folder.path().join("artifact.tar.gz");
    let mut random = fastrand::Rng::with_seed(1);
    fs::write(&file, std::iter::repeat_with(|| random.u8(..)).take(DIGESTED).collect::<Vec<_>>()).expect("a file");
    let mut group = criterion.benchmark_group("digest");
    group.sample_size(15).measurement_time(Duration::from_secs(6));
    group.bench_function("ours", |bencher| {
        bencher.iter(|| Digest::of_reader(Algorithm::Sha256, File::open(&file).expect("the file")).expect("a digest"));
    });
    group.bench_function("tool", |bencher| bencher.iter(|| run(Command::new("sha256sum").arg(&file))));
    group.finish();
}

fn archives(criterion: &mut Criterion) {
    let folder = scratch();
    let archive = make_archive(folder.path());
    let mut group = criterion.benchmark_group("unpack");
    group.sample_size(15).measurement_time(Duration::from_secs(6));
    // The measured time of the batches excludes the removal of the files.
    group.bench_function("ours", |bencher| {
        bencher.iter_batched(
            scratch,
            |into| {
                unpack(File::open(&archive).expect("the archive"), into.path(), &Limits::default()).expect("unpacked");
                into
            },
            BatchSize::PerIteration,
        );
    });
    group.bench_function("tool", |bencher| {
        bencher.iter_batched(
            scratch,
            |into| {
                run(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(into.path()));
                into
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

/// Returns a temporary directory, in memory if possible, because the speed of the disk must not affect the results.
fn scratch() -> TempDir {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
    tempfile::tempdir_in(place).expect("a temporary folder")
}

fn make_archive(folder: &Path) -> PathBuf {
    let tree = folder.join("tree");
    let mut random = fastrand::Rng::with_seed(2);
    for number in 0..FOLDERS {
        let place = tree.join(format!("packages/part-{}/node_modules/library-{number}/lib", number % 10));
        fs::create_dir_all(&place).expect("a folder");
        for file in 0..FILES_IN_FOLDER {
            let length = if file == 0 { random.usize(20_000..400_000) } else { random.usize(200..12_000) };
            fs::write(place.join(format!("file-{file}.js")), text(&mut random, length)).expect("a file");
        }
    }
    let archive = folder.join("tree.tar.gz");
    let packed = pack(&tree, File::create(&archive).expect("an archive")).expect("packed");
    println!("archive: {packed:?}, {} bytes compressed", fs::metadata(&archive).expect("the archive").len());
    fs::remove_dir_all(&tree).expect("the tree exists");
    archive
}

fn text(random: &mut fastrand::Rng, length: usize) -> String {
    let mut text = String::with_capacity(length + 16);
    while text.len() < length {
        text.push_str(WORDS[random.usize(..WORDS.len())]);
        match random.u8(..12) {
            0 => text.push_str(";\n"),
            1 => text.push_str(&format!(" = {:x};\n", random.u32(..))),
            _ => text.push(' '),
        }
    }
    text
}

fn run(command: &mut Command) {
    let status = command.stdout(Stdio::null()).status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?} ended with {status}");
}

fn lookups_of_a_push(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("lookups");
    group.sample_size(15).measurement_time(Duration::from_secs(3));
    for (name, count) in [("few", 100), ("many", 10_000)] {
        let mut at_rest = AtRest::new(count);
        group.bench_function(name, |bencher| bencher.iter(|| at_rest.push()));
    }
    group.finish();
}

criterion_group!(parts, digests, archives, lookups_of_a_push);
criterion_main!(parts);
