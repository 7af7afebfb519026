//! The allocator of this process, and giving back to the system what it holds no longer needed.
#![expect(unsafe_code, reason = "mimalloc has no safe wrapper for collecting")]

/// Faster than the system's allocator where many threads allocate small things, which is what a gateway does.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives back pages that have been free for a second. The allocator does it itself only when something is allocated in
/// an unusual way, so what an apply of many models took for a moment would stay.
pub(crate) fn give_back() {
    // SAFETY: it may be called at any time on any thread; it touches free memory only.
    unsafe { libmimalloc_sys::mi_collect(false) };
}
