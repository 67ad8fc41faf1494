//! Encoding of server-sent events.

use bytes::Bytes;
use serde::Serialize;

/// SSE comment that keeps the connection open, because proxies close connections without traffic.
pub(super) const HEARTBEAT: Bytes = Bytes::from_static(b": heartbeat\n\n");

/// Event that tells the browser that the session of the stream has ended.
pub(super) const SIGNED_OUT: Bytes = Bytes::from_static(b"event: signed-out\ndata: null\n\n");

/// Returns an event. The data is JSON in a single line, because a line break would end the event's data field.
pub(super) fn event(name: &str, data: &impl Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned());
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_data_cannot_contain_another_event() {
        let text = event("log", &["a\n\nevent: end\ndata: 1\n\n"]);
        assert_eq!(text, "event: log\ndata: [\"a\\n\\nevent: end\\ndata: 1\\n\\n\"]\n\n");
    }
}
