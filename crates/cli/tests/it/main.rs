//! The binary as scripts use it, and the house rules.

mod commands;
mod config;
mod registry;
mod secrets;
mod tidy;
