//! The gRPC face of the control API: `berth.control.v1`, generated from `proto/berth_control.proto`, and its
//! conversions: answers from the JSON shapes of [`crate::api`], typed manifests to and from JSON ([`spec`]).

mod answer;
pub mod spec;

/// Generated messages, client and server.
pub mod v1 {
    #![allow(missing_docs, clippy::all, clippy::allow_attributes, unreachable_pub)]
    tonic::include_proto!("berth.control.v1");
}
