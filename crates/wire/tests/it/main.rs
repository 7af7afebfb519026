//! Tests of the data that crosses process borders.

mod fleet;
mod mutations;
