//! Parser of the annotation `pulumi.com/resolve`, with which a user resolves a run: `<update>=retry|create|clear|abandon`.

/// Decision of a user about a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Start another run, and keep the state.
    Retry,
    /// Start another run, which creates the missing Pulumi stack again.
    Create,
    /// Remove the pending creates from the state, then start another run.
    Clear,
    /// Start no run until an input changes.
    Abandon,
}

/// A user's decision about the run of an Update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolution<'a> {
    pub update: &'a str,
    pub decision: Decision,
}

/// Maximum length of the annotation value in bytes. The value contains an object name and a decision. The
/// length is limited because the controller copies the value to the status.
const MAX_LENGTH: usize = 253 + "=abandon".len();

/// Parses the annotation value. The error is a message for the user.
pub fn parse(value: &str) -> Result<Resolution<'_>, &'static str> {
    const FORM: &str = "must have the form <update>=retry, <update>=create, <update>=clear or <update>=abandon";
    if value.len() > MAX_LENGTH {
        return Err("must be at most 261 bytes long");
    }
    let (update, word) = value.trim().split_once('=').ok_or(FORM)?;
    let decision = match word.trim() {
        "retry" => Decision::Retry,
        "create" => Decision::Create,
        "clear" => Decision::Clear,
        "abandon" => Decision::Abandon,
        _ => return Err(FORM),
    };
    match update.trim() {
        "" => Err(FORM),
        update => Ok(Resolution { update, decision }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolution_contains_an_update_and_a_decision() {
        let rows = [
            ("a=retry", Decision::Retry),
            ("a=create", Decision::Create),
            (" a = clear ", Decision::Clear),
            ("a=abandon", Decision::Abandon),
        ];
        for (text, decision) in rows {
            assert_eq!(parse(text), Ok(Resolution { update: "a", decision }), "{text}");
        }
        for text in ["", "retry", "a", "a=", "=retry", "a=yes", "a=Retry", "a=b=retry"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_resolution_that_is_too_long_is_rejected() {
        let value = |length: usize| format!("{}=abandon", "a".repeat(length));
        assert!(parse(&value(253)).is_ok());
        let message = format!("must be at most {MAX_LENGTH} bytes long");
        assert_eq!(parse(&value(254)), Err(message.as_str()));
        assert_eq!(parse(&format!("a=retry{}", " ".repeat(1 << 18))), Err(message.as_str()));
    }
}
