#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tenure::fuzz::lock_record(data));
