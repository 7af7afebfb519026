//! Stories and chaos.

mod chaos;
mod stories;
