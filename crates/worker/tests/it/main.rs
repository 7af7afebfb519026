//! Tests of the worker's parts from outside.

mod batching;
mod onnx;
