#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| llmlb::fuzz::keys_file(data));
