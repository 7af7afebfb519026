//! Who is there, by SWIM.
