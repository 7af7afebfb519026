//! Places of repositories against changed seeds: a short fuzz run, the same each time (`cargo xtask fuzz` for a long one).

#[path = "../../../../fuzz/mutator.rs"]
mod mutator;
#[path = "../../../../fuzz/properties/git_url.rs"]
mod properties;

#[test]
fn fuzz_git_url() {
    mutator::run("git_url", properties::git_url);
}
