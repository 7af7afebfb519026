//! The health checking protocol of gRPC: code generated from `proto/health.proto`.

#![expect(missing_docs, reason = "generated; proto/health.proto says what the fields mean")]

tonic::include_proto!("grpc.health.v1");
