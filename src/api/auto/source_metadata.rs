//! Git metadata of a source.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::api::bounds;

/// Git metadata of a run's source. Commit authors and source owners can write any text into these fields.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SourceMetadata {
    /// URL of the Git repository, without a password. Absent if unknown.
    #[serde(default, rename = "repositoryURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub repository_url: Option<String>,
    /// Hash of the commit. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub head: Option<String>,
    /// Git reference of the commit, such as `refs/heads/main` or `refs/tags/v1`. A short name, such as `main`, if the
    /// kind of the reference is unknown. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub head_name: Option<String>,
    /// First line of the commit message. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub message: Option<String>,
    /// Name of the commit author. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub author: Option<String>,
    /// Email address of the commit author. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub author_email: Option<String>,
    /// Name of the committer. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub committer: Option<String>,
    /// Email address of the committer. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::WORD))]
    pub committer_email: Option<String>,
    /// Directory of the Pulumi project in the repository. `.` is the root of the repository. Absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = bounds::PATH))]
    pub directory: Option<String>,
}

impl SourceMetadata {
    /// Returns the metadata with only the first line of the message, and without control characters and empty strings.
    /// The function truncates each string to the maximum length in the schema.
    pub fn bounded(self) -> Self {
        let word = |text: Option<String>| one_line(&text?, bounds::WORD);
        let title = |message: String| message.trim().lines().next().map(str::to_owned);
        SourceMetadata {
            repository_url: word(self.repository_url),
            head: word(self.head),
            head_name: word(self.head_name),
            message: word(self.message.and_then(title)),
            author: word(self.author),
            author_email: word(self.author_email),
            committer: word(self.committer),
            committer_email: word(self.committer_email),
            directory: self.directory.and_then(|directory| one_line(&directory, bounds::PATH)),
        }
    }
}

/// Removes control characters from a string and truncates it to `max` bytes. Returns `None` if nothing remains.
fn one_line(text: &str, max: u32) -> Option<String> {
    let mut line: String = text.chars().filter(|character| !character.is_control()).collect();
    line.truncate(line.floor_char_boundary(usize::try_from(max).unwrap_or(usize::MAX)));
    Some(line.trim().to_owned()).filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_metadata_is_limited_to_short_lines_without_control_characters() {
        let long = "ä".repeat(2000);
        let cut = "ä".repeat(512);
        let rows = [
            ("", None),
            (" \u{1b}\0\n", None),
            ("Ada Lovelace", Some("Ada Lovelace")),
            ("Ada\0 \u{1b}[31mLovelace\r\n", Some("Ada [31mLovelace")),
            (long.as_str(), Some(cut.as_str())),
        ];
        for (text, expected) in rows {
            let bounded = SourceMetadata { author: Some(text.to_owned()), ..SourceMetadata::default() }.bounded();
            assert_eq!(bounded.author.as_deref(), expected, "{text:?}");
        }
        let directory = Some("d".repeat(5000));
        let bounded = SourceMetadata { directory, ..SourceMetadata::default() }.bounded();
        assert_eq!(bounded.directory.map(|directory| directory.len()), Some(4096));
        assert_eq!(SourceMetadata::default().bounded(), SourceMetadata::default());
    }

    #[test]
    fn a_commit_message_is_shortened_to_its_first_line() {
        let rows = [
            ("Add a bucket", Some("Add a bucket")),
            ("\n\nAdd a bucket\n\nIt stores logs.\n", Some("Add a bucket")),
            ("Add a bucket\r\nmore", Some("Add a bucket")),
            ("\n\n", None),
        ];
        for (message, expected) in rows {
            let bounded = SourceMetadata { message: Some(message.to_owned()), ..SourceMetadata::default() }.bounded();
            assert_eq!(bounded.message.as_deref(), expected, "{message:?}");
        }
    }
}
