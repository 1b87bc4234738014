//! Tests of the whole: crashes at every act, and what is left of the data.

mod crash;
mod crashing_disk;
mod place;
