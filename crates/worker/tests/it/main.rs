//! Tests of the worker's parts from outside.

mod agent;
mod batching;
mod onnx;
