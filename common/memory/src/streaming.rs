//! Copying past the processor's caches, to where nobody looks for a while.
//!
//! A copy to memory that is in no cache first fetches what it is about to overwrite. A streaming store does not, and leaves in the caches what was there: it
//! takes half the time.

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// Copies past the caches; other threads see all of it once they see what this one does next.
///
/// # Panics
///
/// When the lengths differ.
#[cfg(target_arch = "x86_64")]
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    assert_eq!(to.len(), from.len(), "a copy has the length of what is copied");
    let head = to.as_ptr().align_offset(LINE_BYTES).min(to.len());
    let tail = head + (to.len() - head) / LINE_BYTES * LINE_BYTES;
    to[..head].copy_from_slice(&from[..head]);
    to[tail..].copy_from_slice(&from[tail..]);
    let lines = to[head..tail].chunks_exact_mut(LINE_BYTES).zip(from[head..tail].chunks_exact(LINE_BYTES));
    for (to, from) in lines {
        for word in 0..LINE_BYTES / 16 {
            // SAFETY: 16 bytes from there on are in the line, and need not be aligned.
            let value = unsafe { _mm_loadu_si128(from.as_ptr().cast::<__m128i>().wrapping_add(word)) };
            // SAFETY: as many bytes are in this line, which begins at a multiple of its length, and is borrowed alone.
            unsafe { _mm_stream_si128(to.as_mut_ptr().cast::<__m128i>().wrapping_add(word), value) };
        }
    }
    // Streaming stores are not ordered with others: neither with the release of a lock, nor with what this thread reads, until here.
    // SAFETY: every processor of this architecture has it.
    unsafe { _mm_sfence() };
}

/// Copies as usual: this processor's streaming stores are not known.
///
/// # Panics
///
/// When the lengths differ.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_alignment_exactly_what_is_asked_for_is_copied() {
        let from: Vec<u8> = (0..1000).map(|at| u8::try_from(at % 255 + 1).unwrap()).collect();
        for start in [0, 1, 15, 16, 63, 64, 65] {
            for len in [0, 1, 63, 64, 65, 127, 128, 129, 500, 511] {
                for offset in [0, 1, 7] {
                    let mut to = vec![0; 1000];
                    copy(&mut to[start..start + len], &from[offset..offset + len]);
                    assert_eq!(to[start..start + len], from[offset..offset + len], "{start} {len} {offset}");
                    assert!(to[..start].iter().chain(&to[start + len..]).all(|&byte| byte == 0), "{start} {len} {offset}");
                }
            }
        }
    }
}
