//! Bodies of requests and answers.

mod broken;
pub(crate) mod memory;
pub(crate) mod overdue;
pub(crate) mod read;
pub(crate) mod relayed;
pub(crate) mod reply;
pub(crate) mod tapped;
pub(crate) mod timeout;
pub(crate) mod upload;
pub(crate) mod watched;
