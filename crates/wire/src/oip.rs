//! The Open Inference Protocol over gRPC: code generated from `proto/inference.proto`.
//!
//! The JSON form has no types here: `mesh::oip` reads and writes it without intermediate ones.

#![expect(missing_docs, reason = "generated; proto/inference.proto says what the fields mean")]

tonic::include_proto!("inference");
