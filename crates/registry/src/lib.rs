//! The Git registry of models.
