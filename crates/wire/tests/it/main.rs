//! What crosses process borders, from outside.

mod fleet;
