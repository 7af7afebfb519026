//! The management of TensorFlow Serving: code generated from `proto/tensorflow-serving.proto`.

#![expect(missing_docs, reason = "generated; proto/tensorflow-serving.proto says what the fields mean")]

tonic::include_proto!("tensorflow.serving");
