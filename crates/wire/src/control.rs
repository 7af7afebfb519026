//! The gRPC face of the control API: `berth.control.v1`, generated from `proto/berth_control.proto`.
