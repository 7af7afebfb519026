//! Tests of the worker's parts from outside.

mod agent;
mod artifacts;
mod batching;
mod driver;
mod onnx;
