//! Bodies of requests and answers.

pub(crate) mod memory;
pub(crate) mod read;
pub(crate) mod relayed;
pub(crate) mod reply;
pub(crate) mod timeout;
pub(crate) mod upload;
