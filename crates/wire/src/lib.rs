//! Data that crosses process borders: generated protobuf code, the JSON shapes of the control API, the Open Inference
//! Protocol, and the one mapping from error class to HTTP and gRPC status.
//!
//! ```text
//!                               api       (control API: the stable JSON shapes)
//!                               access    (who asks, and what they may do)
//! proto/inference.proto     ──▶ oip       (Open Inference Protocol)
//! proto/health.proto        ──▶ health    (gRPC's health checks)
//! proto/etcd.proto          ──▶ etcd      (what is said to etcd)
//! proto/external-processor.proto ──▶ external_processor (what Gateways ask an endpoint picker)
//! proto/fleet.proto         ──▶ fleet     (streams between the controller and the nodes)
//! proto/model-runtime.proto ──▶ mmesh     (what is said to model servers)
//!                               status    (spec::Class → HTTP and gRPC)
//!                               bounded_status (how long the text of an error may be)
//!                               guard     (which requests come from web pages of other sites)
//!                               request_id (the name of one request, wherever it comes to)
//!                               grpc_timeout (the time that a call over gRPC may take)
//!                               header_list (how many headers of an answer are passed on)
//!                               byte_budget (how many bytes messages may hold together)
//! ```
//!
//! Nothing here serves, calls or waits: `control::api` and `mesh` do.

pub mod access;
pub mod api;
pub mod bounded_status;
pub mod byte_budget;
#[expect(clippy::allow_attributes, clippy::too_many_lines, reason = "generated code")]
pub mod etcd;
#[expect(clippy::allow_attributes, reason = "generated code")]
pub mod external_processor;
pub mod fleet;
pub mod grpc_timeout;
pub mod guard;
pub mod header_list;
#[expect(clippy::allow_attributes, clippy::too_many_lines, reason = "generated code")]
pub mod health;
#[expect(clippy::allow_attributes, clippy::too_many_lines, reason = "generated code")]
pub mod mmesh;
#[expect(clippy::allow_attributes, clippy::too_many_lines, reason = "generated code")]
pub mod oip;
pub mod request_id;
pub mod status;
#[expect(clippy::allow_attributes, clippy::too_many_lines, reason = "generated code")]
pub mod tensorflow_serving;

/// Descriptions of the services that clients call (`google.protobuf.FileDescriptorSet`), for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors"));
