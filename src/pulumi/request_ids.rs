//! Removes request identifiers from the errors of cloud providers. They are of no use to users and make repeated errors look
//! different.

/// Labels that the AWS SDKs write before an identifier, in lower case.
const LABELS: [&str; 4] = ["requestid: ", "hostid: ", "request id: ", "host id: "];
const SEPARATOR: &str = ", ";

/// Returns the text without request identifiers.
pub fn remove(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((start, end)) = find(rest) {
        let (before, after) = (rest.get(..start).unwrap_or_default(), rest.get(end..).unwrap_or_default());
        rest = after.strip_prefix(SEPARATOR).unwrap_or(after);
        kept.push_str(before);
        if rest.len() == after.len() {
            // This identifier was the last item of its list.
            kept.truncate(kept.strip_suffix(SEPARATOR).map_or(kept.len(), str::len));
        }
    }
    kept.push_str(rest);
    kept
}

/// Returns the start and the end of the first identifier, including its label.
fn find(text: &str) -> Option<(usize, usize)> {
    // ASCII conversion keeps the byte positions of both texts equal.
    let small = text.to_ascii_lowercase();
    let (start, length) = LABELS.iter().filter_map(|label| Some((small.find(label)?, label.len()))).min()?;
    let value = text.get(start + length..)?;
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_+/=.".contains(c);
    Some((start, start + length + value.find(|c| !is_part(c)).unwrap_or(value.len())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn request_ids_are_removed_from_errors() {
        let rows = [
            (
                "operation error S3: PutObject, https response error StatusCode: 403, RequestID: 4J5V, HostID: a+b/c==, api error \
                 AccessDenied: Access Denied",
                "operation error S3: PutObject, https response error StatusCode: 403, api error AccessDenied: Access Denied",
            ),
            (
                "StatusCode: 301, RequestID: 4J5V, HostID: , api error PermanentRedirect",
                "StatusCode: 301, api error PermanentRedirect",
            ),
            (
                "AccessDenied: Access Denied\n\tstatus code: 403, request id: 4J5V, host id: a+b/c=",
                "AccessDenied: Access Denied\n\tstatus code: 403",
            ),
            ("failed (RequestID: 12-34)", "failed ()"),
            ("no identifier", "no identifier"),
            ("", ""),
        ];
        for (text, wanted) in rows {
            assert_eq!(remove(text), wanted);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in "(RequestID: |host id: |, |é|[a-z]|\\n){0,20}") {
            prop_assert!(find(&remove(&text)).is_none());
        }
    }
}
