//! Reads the objects in `tests/manifests`.

use std::path::Path;

use serde_json::Value;

/// Returns the file name and the content of every manifest in a directory.
pub fn read(folder: &str) -> Vec<(String, Value)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests").join(folder);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("cannot read {}: {error}", folder.display()));
    let mut manifests: Vec<(String, Value)> = files
        .map(|file| {
            let path = file.expect("a file of a folder").path();
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let object = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), object)
        })
        .collect();
    manifests.sort_by(|one, other| one.0.cmp(&other.0));
    assert!(!manifests.is_empty(), "no manifests in {}", folder.display());
    manifests
}

/// Returns whether `found` contains all fields and values of `written`. `found` can contain additional fields.
pub fn covers(found: &Value, written: &Value) -> bool {
    match (found, written) {
        (Value::Object(found), Value::Object(written)) => {
            written.iter().all(|(field, value)| found.get(field).is_some_and(|found| covers(found, value)))
        }
        (Value::Array(found), Value::Array(written)) => {
            found.len() == written.len() && found.iter().zip(written).all(|(found, written)| covers(found, written))
        }
        _ => found == written,
    }
}
