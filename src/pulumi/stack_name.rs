//! The name of a stack, as the CLI takes it.

/// The parts of the longest form: organization, project and stack.
const MOST_PARTS: usize = 3;

/// What is wrong with a name, if it has none of the forms that the CLI takes.
pub fn check(name: &str) -> Result<(), String> {
    let parts: Vec<&str> = name.split('/').collect();
    if parts.len() <= MOST_PARTS && parts.iter().all(|part| !part.trim().is_empty()) {
        return Ok(());
    }
    Err(format!(
        "{name:?} is not the name of a stack: give <stack>, <organization>/<stack> or <organization>/<project>/<stack>"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_of_three_forms() {
        for name in ["dev", "acme/dev", "acme/web/dev", "organization/web/dev"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in ["", " ", "a/b/c/d", "a//b", "/dev", "dev/"] {
            let error = check(name).expect_err(name);
            let forms = "<stack>, <organization>/<stack> or <organization>/<project>/<stack>";
            assert!(error.starts_with(&format!("{name:?} is not the name")) && error.ends_with(forms), "{error}");
        }
    }
}
