//! Parses the code blocks in an example's README.

/// A code block in a README.
#[derive(Debug, PartialEq, Eq)]
pub enum Block {
    /// `sh`: commands.
    Commands(String),
    /// `json` or `text`: the output of the previous commands.
    Output(String),
}

/// Returns the code blocks in a README in order. Panics if a block contains neither commands nor an output.
pub fn blocks(readme: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(&str, String)> = None;
    for line in readme.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => open = Some((kind, String::new())),
            (Some((_, text)), None) => text.push_str(&format!("{line}\n")),
            (Some(_), Some(_)) => match open.take().expect("the block is open") {
                ("sh", text) => blocks.push(Block::Commands(text)),
                ("json" | "text", text) => blocks.push(Block::Output(text)),
                (kind, text) => panic!("a block of the kind {kind:?} is neither run nor compared: {text}"),
            },
            (None, None) => assert!(!line.trim_start().starts_with("```"), "an indented block is not run: {line}"),
        }
    }
    assert!(open.is_none(), "the last block is not closed: {open:?}");
    blocks
}

#[test]
fn readme_blocks_are_parsed_in_order() {
    let readme = "text\n\n```sh\none\ntwo\n```\n\ntext\n\n```json\n{}\n```\n```text\nthree\n```\n";
    let expected = [
        Block::Commands("one\ntwo\n".to_owned()),
        Block::Output("{}\n".to_owned()),
        Block::Output("three\n".to_owned()),
    ];
    assert_eq!(blocks(readme), expected);
}

#[test]
#[should_panic(expected = "neither run nor compared")]
fn a_block_of_another_kind_is_rejected() {
    blocks("```yaml\na: b\n```\n");
}

#[test]
#[should_panic(expected = "an indented block is not run")]
fn an_indented_block_is_rejected() {
    blocks("1. text\n\n   ```sh\n   one\n   ```\n");
}
