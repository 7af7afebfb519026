//! The file format.
