//! Tests the examples that need the image with the language runtimes.

use super::{Example, test};

pub static EXAMPLES: [Example; 4] = [
    Example::new("go", "network-go", 3).with_languages(),
    Example::new("python", "network-python", 3).with_languages(),
    Example::new("typescript", "network-typescript", 3).with_languages(),
    // This example is in the list because its init container needs Git.
    Example::new("workspace", "by-hand", 1).with_languages(),
];

#[test]
fn go() {
    test(&EXAMPLES, "go");
}

#[test]
fn python() {
    test(&EXAMPLES, "python");
}

#[test]
fn typescript() {
    test(&EXAMPLES, "typescript");
}

#[test]
fn workspace() {
    test(&EXAMPLES, "workspace");
}
