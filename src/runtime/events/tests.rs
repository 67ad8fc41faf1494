//! Tests of the events that reach the API and the notification-controller.

mod kubernetes;
mod notifications;
