//! Measures the unpacked size of the image.

use std::fs::File;
use std::io::Read;

use serde_json::Value;

use crate::table::Row;

const BUDGET: f64 = 30.0;

pub fn measure() -> Row {
    let path = std::env::var("BENCH_IMAGE").expect("BENCH_IMAGE is set to the archive of the controller's image");
    let layers = layers(&path);
    let bytes: u64 = layers.iter().map(|layer| unpacked_size(&path, layer)).sum();
    let megabytes = bytes as f64 / 1e6;
    Row::of("image, unpacked", format!("{BUDGET} MB"), format!("{megabytes:.1} MB"), Some(megabytes < BUDGET))
}

/// Returns the names of the layers in a docker-archive.
fn layers(path: &str) -> Vec<String> {
    let manifest: Value = find(
        path,
        |name| name == "manifest.json",
        |entry| {
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("the manifest is readable");
            serde_json::from_str(&text).expect("the manifest is JSON")
        },
    );
    let layers = manifest[0]["Layers"].as_array().expect("the manifest lists the layers");
    layers.iter().map(|layer| layer.as_str().expect("a layer's name").to_owned()).collect()
}

fn unpacked_size(path: &str, layer: &str) -> u64 {
    find(
        path,
        |name| name == layer,
        |entry| {
            let mut archive = tar::Archive::new(entry);
            let entries = archive.entries().expect("the layer is a tar archive");
            entries.map(|entry| entry.expect("an entry of the layer").size()).sum()
        },
    )
}

fn find<T>(path: &str, is_match: impl Fn(&str) -> bool, read: impl FnOnce(&mut dyn Read) -> T) -> T {
    let mut archive = tar::Archive::new(File::open(path).unwrap_or_else(|error| panic!("{path}: {error}")));
    for entry in archive.entries().expect("an image is a tar archive") {
        let mut entry = entry.expect("an entry of the image");
        let name = entry.path().expect("a name").to_string_lossy().into_owned();
        // A layer can be a link to another layer. The sum must not include the same layer twice.
        if entry.header().entry_type().is_file() && is_match(&name) {
            return read(&mut entry);
        }
    }
    panic!("{path} does not contain the entry")
}
