//! Size limit of templates. The schema cannot enforce it because it does not define their fields.

use std::io::{self, Write};

use serde_json::Value;

/// Template that exceeds the size limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be at most {limit} bytes as JSON, but has {bytes} bytes")]
pub struct TooLarge {
    field: &'static str,
    bytes: usize,
    limit: usize,
}

/// Returns an error if the template has more than `limit` bytes as JSON.
pub fn check_size(field: &'static str, template: Option<&Value>, limit: usize) -> Result<(), TooLarge> {
    let bytes = template.map_or(0, size);
    if bytes > limit { Err(TooLarge { field, bytes, limit }) } else { Ok(()) }
}

/// Returns the number of bytes of a value as JSON, without storing the JSON.
fn size(value: &Value) -> usize {
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, value) {
        Ok(()) => counter.0,
        Err(_) => usize::MAX,
    }
}

struct Counter(usize);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.saturating_add(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_template_over_the_size_limit_is_rejected_by_name() {
        let template = json!({"spec": "ä"});
        assert_eq!(template.to_string().len(), 13);
        assert_eq!(check_size("podTemplate", Some(&template), 13), Ok(()));
        assert_eq!(check_size("podTemplate", None, 0), Ok(()));
        let error = check_size("podTemplate", Some(&template), 12).expect_err("too large").to_string();
        assert_eq!(error, "podTemplate must be at most 12 bytes as JSON, but has 13 bytes");
    }
}
