//! Tests which events reach the API and the notification-controller.

mod kubernetes;
mod notifications;
