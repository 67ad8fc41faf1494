//! What the CLI prints for people.

/// The address of the update that the CLI printed on stdout, if it did.
pub fn permalink(stdout: &str) -> Option<String> {
    todo!()
}

/// Takes the engine's colour tags (`<{%reset%}>`) out of a text.
pub fn without_colours(text: &str) -> String {
    todo!()
}
