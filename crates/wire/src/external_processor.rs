//! External processing of HTTP requests, by which Gateways ask an endpoint picker: code generated from
//! `proto/external-processor.proto`.

#![expect(missing_docs, reason = "generated; proto/external-processor.proto says what the fields mean")]

tonic::include_proto!("envoy.service.ext_proc.v3");
