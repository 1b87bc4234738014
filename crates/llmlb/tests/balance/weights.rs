//! How the work is shared. (L7)

use crate::backends::{ASK, CHAT, backend, count, ok, serve_file};
use crate::support::Place;

#[test]
fn a_backend_of_more_weight_gets_more_of_the_work() {
    let place = Place::new();
    let (heavy, light) = (backend(ok), backend(ok));
    let file = format!(
        "[[backend]]\nurl = \"{}\"\nweight = 9\n[[backend]]\nurl = \"{}\"\n",
        heavy.url(),
        light.url()
    );
    let server = serve_file(&place, &file);
    for _ in 0..500 {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
    let (heavy, light) = (count(&heavy), count(&light));
    assert_eq!(heavy + light, 500);
    assert!(heavy > 2 * light, "{heavy} to {light}");
    assert!(light > 0, "nobody is forgotten");
}

#[test]
fn backends_of_the_same_weight_share_the_work() {
    let place = Place::new();
    let backends = [(); 3].map(|()| backend(ok));
    let file: Vec<_> = backends
        .iter()
        .map(|one| format!("[[backend]]\nurl = \"{}\"\nweight = 7\n", one.url()))
        .collect();
    let server = serve_file(&place, &file.concat());
    for _ in 0..300 {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
    let counts = backends.each_ref().map(count);
    assert!(counts.iter().all(|one| *one > 30), "{counts:?}");
}
