//! Requests in plain JSON, without datatypes and shapes: the values take both from the model's signature.
//!
//! * [`predict`]: KServe's first protocol, `{"instances": […]}`.
//! * [`generate`]: Triton's generate extension, `{"text_input": "…"}`.

pub mod generate;
pub mod predict;
mod value;
