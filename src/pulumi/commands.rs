//! Names the CLI command in an argument list. The name never contains values from the arguments, because they may be secret.

/// Commands with subcommands, and the names of the subcommands.
const GROUPS: [(&str, &str); 11] = [
    (
        "stack",
        "change-secrets-provider export graph history import init ls output rename rm select tag unselect webhook",
    ),
    ("config", "cp env get refresh rm rm-all set set-all"),
    ("state", "delete edit move protect rename repair taint unprotect untaint upgrade"),
    ("plugin", "install ls rm run"),
    ("policy", "disable enable group install ls new publish rm validate-config"),
    ("org", "get-default role search set-default team webhook"),
    ("env", "clone diff edit get init ls open rm rotate run set tag version"),
    ("package", "add delete gen-sdk get-mapping get-schema info pack-sdk publish"),
    ("schema", "check"),
    ("deployment", "run settings"),
    ("project", "ls new"),
];
/// Commands without subcommands.
const COMMANDS: &str = "about ai cancel completion console convert convert-trace destroy dn down help import install login \
                        logout logs new pre preview refresh replay-events template up update version watch whoami";
/// Commands that only print information about the CLI itself.
const HARMLESS: [&str; 3] = ["completion", "help", "version"];
const CLI: &str = "pulumi";

/// Returns the command, such as `pulumi config set`, or `None` if it only prints information about the CLI itself.
pub fn command_in_words<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let mut arguments = arguments.into_iter().peekable();
    // Only as the first argument: after an option, the word may be the name of a stack.
    if arguments.peek().is_some_and(|first| HARMLESS.contains(first)) {
        return None;
    }
    // The value of an option may equal a command name. In that case the returned name contains this known word, which is not
    // secret.
    let Some(first) = arguments.find(|word| group(word).is_some() || is_among(COMMANDS, word)) else {
        return Some(CLI.to_owned());
    };
    let second = group(first).and_then(|words| arguments.find(|word| is_among(words, word)));
    Some([CLI, first].into_iter().chain(second).collect::<Vec<_>>().join(" "))
}

fn group(word: &str) -> Option<&'static str> {
    GROUPS.iter().find(|(name, _)| *name == word).map(|(_, words)| *words)
}

fn is_among(words: &str, word: &str) -> bool {
    words.split_ascii_whitespace().any(|known| known == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_without_its_argument_values() {
        let table = [
            ("up", Some("pulumi up")),
            ("--non-interactive -C /share/workspace up --yes", Some("pulumi up")),
            ("--stack organization/web/dev import aws:s3/bucket:Bucket mine hunter2", Some("pulumi import")),
            ("config set --secret password hunter2", Some("pulumi config set")),
            ("config --secret=hunter2 set password hunter2", Some("pulumi config set")),
            ("config hunter2", Some("pulumi config")),
            ("stack", Some("pulumi stack")),
            ("stack --stack hunter2 ls", Some("pulumi stack ls")),
            ("hunter2 --config a=hunter2", Some("pulumi")),
            ("", Some("pulumi")),
            ("version", None),
            ("--color never version", Some("pulumi version")),
            ("--stack help up", Some("pulumi help")),
            ("help up", None),
        ];
        for (arguments, expected) in table {
            assert_eq!(command_in_words(arguments.split_whitespace()).as_deref(), expected, "{arguments}");
        }
    }
}
