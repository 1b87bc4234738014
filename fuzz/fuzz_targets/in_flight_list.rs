#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| llmlb::fuzz::in_flight_list(data));
