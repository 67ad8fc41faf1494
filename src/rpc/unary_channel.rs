//! Channel for calls with one reply message. The tonic library reads such a reply to the end. Without this channel, an
//! agent could keep the controller busy with an endless reply of empty messages.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::TryFutureExt;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::transport::{Channel, Error};
use tower::Service;

/// Size of a gRPC message prefix in bytes. The prefix contains a flag and the message length.
const PREFIX: usize = 5;
/// Maximum number of empty data frames in a reply.
const MAX_EMPTY_FRAMES: u32 = 16;

/// Channel that returns an error for a reply with more than one message.
#[derive(Clone, Debug)]
pub(super) struct UnaryChannel(pub Channel);

impl Service<Request<Body>> for UnaryChannel {
    type Response = Response<UnaryReply>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.call(request).map_ok(|response| response.map(UnaryReply::new)))
    }
}

/// Body of a reply with a single message.
#[derive(Debug)]
pub(super) struct UnaryReply {
    body: Body,
    message: Message,
}

impl UnaryReply {
    fn new(body: Body) -> Self {
        UnaryReply { body, message: Message::default() }
    }
}

impl HttpBody for UnaryReply {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
            && let Err(error) = self.message.receive(data)
        {
            return Poll::Ready(Some(Err(Status::internal(error))));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Received part of a gRPC message.
#[derive(Debug, Default)]
struct Message {
    prefix: Vec<u8>,
    /// Number of message bytes that remain, or `None` if the prefix is incomplete.
    left: Option<u64>,
    empty_frames: u32,
}

impl Message {
    fn receive(&mut self, mut data: &[u8]) -> Result<(), &'static str> {
        if data.is_empty() {
            self.empty_frames += 1;
            return if self.empty_frames > MAX_EMPTY_FRAMES {
                Err("the reply has too many empty frames")
            } else {
                Ok(())
            };
        }
        if self.left.is_none() {
            let (prefix, rest) = data.split_at(data.len().min(PREFIX - self.prefix.len()));
            self.prefix.extend_from_slice(prefix);
            data = rest;
            self.left = match *self.prefix.as_slice() {
                [_, a, b, c, d] => Some(u64::from(u32::from_be_bytes([a, b, c, d]))),
                _ => None,
            };
        }
        match (self.left, data.len() as u64) {
            (None, _) => Ok(()),
            (Some(left), received) if received > left => Err("the reply has more than one message"),
            (Some(left), received) => {
                self.left = Some(left - received);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::rpc::server_tls::tests::Serving;

    /// Body with an endless number of empty messages.
    struct Endless;

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 64 * 1024])))))
        }
    }

    #[tokio::test]
    async fn a_reply_with_endless_empty_messages_is_rejected_immediately() {
        let service = tower::service_fn(async |_: Request<Body>| {
            let response = Response::builder().header("content-type", "application/grpc").body(Body::new(Endless));
            Ok::<_, Infallible>(response.unwrap_or_default())
        });
        let serving = Serving::start_service(service).await;
        let client = serving.agents().connect(&serving.address()).await.expect("a connection");
        let begin = Instant::now();
        let error = client.status().await.expect_err("the reply has no end");
        assert!(error.message.contains("more than one message"), "{error}");
        assert!(begin.elapsed() < Duration::from_secs(5), "took {:?}", begin.elapsed());
    }

    #[test]
    fn a_reply_ends_after_its_first_message() {
        let receive = |chunks: &[&[u8]]| {
            let mut message = Message::default();
            chunks.iter().try_for_each(|chunk| message.receive(chunk))
        };
        let more = Err("the reply has more than one message");
        assert_eq!(receive(&[&[0, 0, 0, 0, 2, 1, 1]]), Ok(()));
        assert_eq!(receive(&[&[0, 0], &[0, 0, 2], &[1], &[1]]), Ok(()));
        assert_eq!(receive(&[&[0, 0, 0, 0, 0], &[]]), Ok(()));
        assert_eq!(receive(&[&[0, 0, 0, 0, 0, 0]]), more);
        assert_eq!(receive(&[&[0, 0, 0, 0, 1, 9], &[0]]), more);
        assert_eq!(receive(&[&[] as &[u8]; 16]), Ok(()));
        assert_eq!(receive(&[&[] as &[u8]; 17]), Err("the reply has too many empty frames"));
    }
}
