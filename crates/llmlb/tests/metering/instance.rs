//! Usage records name the server that served the request. (promise L9)

use testkit::api_server::Reports;

use crate::records;
use crate::requests::{chat, post};
use crate::stream::counting_backend;

#[test]
fn records_name_their_instance() {
    let sandbox = testkit::sandbox!();
    let backend = counting_backend(Reports::IfAsked);
    for (id, setting) in [("named", Some("eu-1.gpu_2")), ("default", None)] {
        let mut command = sandbox.command(&format!("serve -p 0 --backend {}", backend.mock.url()));
        command.envs(setting.map(|name| ("LLMLB_INSTANCE", name)));
        let server = sandbox.serve_with(&mut command);
        let answer = post(&server, id, "/v1/chat/completions", &chat("x", false));
        assert_eq!(answer.status(), 200);
        let record = records::one(&sandbox, id);
        let instance = record["instance"].as_str().unwrap();
        if let Some(name) = setting {
            assert_eq!(instance, name, "{record:#}");
        } else {
            let port = format!(":{}", server.address.port());
            assert!(instance.ends_with(&port), "{record:#}");
            assert!(instance.len() > port.len(), "{record:#}");
        }
    }
}
