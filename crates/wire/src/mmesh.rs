//! The services of package `mmesh`, which ModelMesh defined: code generated from `proto/model-runtime.proto` and
//! `proto/model-mesh.proto`.

#![expect(missing_docs, reason = "generated; the files in proto/ say what the fields mean")]

tonic::include_proto!("mmesh");
