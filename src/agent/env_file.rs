//! Environment variables that init containers write for the CLI into the file named by `$PULUMI_ENV`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::refusal::Refusal;

/// Maximum size of the file in bytes. It is read before each run.
const MAX_SIZE: u64 = 1024 * 1024;

/// Returns the variables of a file in order; none if the file does not exist. An error names the line, but not its
/// content.
pub fn read(file: &Path) -> Result<Vec<(String, String)>, Refusal> {
    let what = || format!("failed to read environment variables from {}", file.display());
    let mut text = String::new();
    match File::open(file) {
        Ok(open) => open.take(MAX_SIZE + 1).read_to_string(&mut text).map_err(Refusal::system(what()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Refusal::system(what())(error)),
    };
    if text.len() as u64 > MAX_SIZE {
        return Err(Refusal::Invalid(format!("{}: the file exceeds {MAX_SIZE} bytes", what())));
    }
    let mut variables = Vec::new();
    for variable in dotenvy::from_read_iter(text.as_bytes()) {
        variables
            .push(variable.map_err(|error| Refusal::Invalid(format!("{}: {}", what(), parse_error(&error, &text))))?);
    }
    Ok(variables)
}

/// Describes a parse error without the line, which can contain a secret.
fn parse_error(error: &dotenvy::Error, text: &str) -> String {
    let dotenvy::Error::LineParse(line, _) = error else { return error.to_string() };
    let number = text.lines().position(|other| other.contains(line.trim())).map(|index| index + 1);
    let which = number.map_or_else(|| "a line".to_owned(), |number| format!("line {number}"));
    format!("{which} is not of the form NAME=value; enclose a value with spaces or quotes in single quotes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn env_file_lines_are_parsed_and_errors_show_only_the_line_number() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join(".env");
        assert_eq!(read(&file).unwrap(), []);
        std::fs::write(&file, "# a comment\nREGION=eu\nexport TOKEN='hunter 22 $x'\n\nEMPTY=\n").unwrap();
        let variables = read(&file).unwrap();
        let variables: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(variables, [("REGION", "eu"), ("TOKEN", "hunter 22 $x"), ("EMPTY", "")]);
        std::fs::write(&file, "REGION=eu\nTOKEN=hunter 22\n").unwrap();
        let refusal = read(&file).unwrap_err().to_string();
        assert!(refusal.contains("line 2") && !refusal.contains("hunter"), "{refusal}");
        std::fs::write(&file, "A=".to_owned() + &"x".repeat(1024 * 1024)).unwrap();
        assert!(read(&file).unwrap_err().to_string().contains("exceeds"));
    }
}
