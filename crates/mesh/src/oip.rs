//! The Open Inference Protocol, decoded to and encoded from the nouns of `spec`. Pure: no sockets, no clock, no tokio.
//!
//! ```text
//! REST body ──content::decompress──▶ Layout::of ──▶ decode ──▶ Decoded { request, form, options }
//!                                      json · binary · raw          │ request → a model → InferResponse
//! REST answer ◀──content::compress── Encoded ◀── encode(response, form)
//!
//! ModelInferRequest ──▶ grpc::decode ──▶ Decoded        grpc::encode(response, form) ──▶ ModelInferResponse
//! with raw tensors only: grpc::raw_message::{read, framed}, without an intermediate message
//! ```
//!
//! [`describe`] builds what is told about servers and models: metadata, configuration, statistics, the index.
//!
//! # What is accepted where the protocol leaves a choice
//!
//! * `data` may be flat or nested; nested data must be rectangular, and must not agree with `shape` beyond the number of
//!   elements (clients leave out batch dimensions of 1).
//! * Keys come in any order; unknown ones are skipped, `null` for an optional one counts as absent, a key given twice
//!   is an error, as are tensors of one name.
//! * Integers are accepted for floats; floats for integers where they are whole (`3.0`); 0 and 1 for BOOL. What does
//!   not fit the datatype is an error, never wrapped, rounded to infinity or cut.
//! * `NaN`, `Infinity` and `-Infinity` are accepted and written for floating-point tensors, as Python's `json`,
//!   Triton and its clients do, because every other choice loses them. They are not JSON: a client whose parser is strict asks
//!   for binary outputs. `null` is not an element.
//! * FP16 and BF16 are numbers in JSON.
//! * Sequences are refused as unsupported. Tensors in shared memory are named here ([`Decoded::shared`]) and read elsewhere.

mod answer;
mod classification;
pub mod content;
mod decoded;
pub mod describe;
mod element;
pub mod grpc;
mod input;
mod json;
mod layout;
mod number;
mod parameter;
pub mod plain;
mod raw;
mod request;
mod seen;
mod shared;
mod tensor_data;

pub use answer::{Encoded, effort, encode, error_body, with_request_id};
pub use decoded::{AnswerForm, Decoded, Options};
pub use layout::{HEADER_LENGTH, Layout};
pub use request::decode;
pub use shared::{Range, Region};
