//! Stories and chaos.

mod chaos;
