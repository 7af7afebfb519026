//! The gRPC face of the control API: `berth.control.v1`, generated from `proto/berth_control.proto`, and its
//! conversions: answers from the JSON shapes of [`crate::api`], typed manifests to and from JSON ([`spec`]).

mod answer;
mod node;
pub mod spec;

/// Generated messages, client and server.
pub mod v1 {
    #![expect(clippy::allow_attributes, clippy::too_many_lines, reason = "generated code")]

    tonic::include_proto!("berth.control.v1");
}
