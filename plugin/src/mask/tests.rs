//! What is masked, and what is left.
use super::*;
use serde_json::json;

#[test]
fn the_values_of_a_secret_are_masked_wherever_they_occur() {
    let mut mask = Mask::default();
    let mut secret = json!({ "kind": "Secret", "metadata": { "name": "redis" }, "data": { "password": "aHVudGVyMnh5eg==" } });
    mask.learn(&secret);
    assert_eq!(mask.text("AUTH hunter2xyz failed"), "AUTH *** failed");
    assert_eq!(mask.text("data aHVudGVyMnh5eg=="), "data ***");
    mask.object(&mut secret);
    assert_eq!(
        secret,
        json!({ "kind": "Secret", "metadata": { "name": "redis" }, "data": { "password": "***" } })
    );
}

#[test]
fn what_looks_like_a_secret_is_masked_and_what_names_one_is_not() {
    let mut pod = json!({ "kind": "Pod", "spec": {
        "automountServiceAccountToken": false,
        "containers": [{ "env": [{ "name": "DB_PASSWORD", "value": "x" }, { "name": "MODE", "value": "fast" }] }],
        "volumes": [{ "secret": { "secretName": "redis" } }],
    }, "metadata": { "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "{\"x\":1}" } } });
    Mask::default().object(&mut pod);
    let env = &pod["spec"]["containers"][0]["env"];
    assert_eq!((&env[0]["value"], &env[1]["value"]), (&json!("***"), &json!("fast")));
    assert_eq!(pod["spec"]["volumes"][0]["secret"]["secretName"], "redis");
    assert_eq!(pod["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"], "***");
}

#[test]
fn texts_lose_passwords_in_urls_tokens_and_settings() {
    let mask = Mask::default();
    let cases = [
        ("cannot reach redis://user:p%40ss@host:6379/0", "cannot reach redis://***@host:6379/0"),
        ("redis://user:pa,ss'word@host:6379, next", "redis://***@host:6379, next"),
        ("redis://user:pa/ss@host:6379", "redis://***@host:6379"),
        ("redis://a:6379,redis://u:p@b:6379", "redis://a:6379,redis://***@b:6379"),
        ("http://host/path?x=1", "http://host/path?x=1"),
        ("http://host:8080/@scope/name", "http://host:8080/@scope/name"),
        ("sentinels redis://a:1,b:2/0", "sentinels redis://a:1,b:2/0"),
        ("Authorization: Bearer abc.def", "Authorization: ***"),
        ("url with bearer abc, next", "url with bearer ***, next"),
        (r#"{"password":"abc","count":3}"#, r#"{"password":"***","count":3}"#),
        (r#"got {"password":"ab,cd","count":3}"#, r#"got {"password":"***","count":3}"#),
        (r#"got {"password":"a\"b","count":3}"#, r#"got {"password":"***","count":3}"#),
        (r#"body "{\"password\":\"ab,cd\",\"n\":1}""#, r#"body "{\"password\":\"***\",\"n\":1}""#),
        (r#"{"argv":["--password","x","--mode","y"]}"#, r#"{"argv":["--password","***","--mode","y"]}"#),
        (r#"ran ["--password","x y","--mode","z"]"#, r#"ran ["--password","***","--mode","z"]"#),
        ("redis-cli --pass hunter2 PING", "redis-cli --pass *** PING"),
        ("use --token or --mode x", "use --token *** --mode x"),
        (r#"with "secrets":["a","b"],"n":1"#, r#"with "secrets":***,"n":1"#),
        ("  password: abc", "  password: ***"),
        ("  password: correct horse, battery", "  password: ***"),
        ("- name: password: x y", "- name: password: *** y"),
        ("  token_file: /etc/token", "  token_file: /etc/token"),
        ("REDIS_PASSWORD=abc MODE=1", "REDIS_PASSWORD=*** MODE=1"),
        ("REDIS_PASSWORD=ab,cd, MODE=1", "REDIS_PASSWORD=***, MODE=1"),
        ("RAILS_MASTER_KEY=abc", "RAILS_MASTER_KEY=***"),
        ("ts: 2026-01-01T00:00:00Z", "ts: 2026-01-01T00:00:00Z"),
        ("rate_limit_key: jobqueue:rate_limit", "rate_limit_key: jobqueue:rate_limit"),
        ("key=jobqueue:high_priority waiting=3", "key=jobqueue:high_priority waiting=3"),
    ];
    for (text, masked) in cases {
        assert_eq!(mask.text(text), masked);
    }
}

#[test]
fn whatever_a_program_logs_its_settings_like_they_lose_their_values() {
    let mask = Mask::default();
    let cases = [
        // Ruby
        (r#"{"password"=>"hunter2", "n"=>1}"#, r#"{"password"=>"***", "n"=>1}"#),
        (r#"{:password=>"hunter2", :n=>1}"#, r#"{:password=>"***", :n=>1}"#),
        (r#"{password: "hunter2", n: 1}"#, r#"{password: "***", n: 1}"#),
        (r#"Parameters: {"user"=>{"password"=>"hunter2"}}"#, r#"Parameters: {"user"=>{"password"=>"***"}}"#),
        (r#"#<Client @token="hunter2", @n=1>"#, r#"#<Client @token="***", @n=1>"#),
        // Rust
        (r#"Config { password: "hunter2", n: 1 }"#, r#"Config { password: "***", n: 1 }"#),
        (r#"Config { password: Some("hunter2"), n: 1 }"#, "Config { password: ***, n: 1 }"),
        (r#"password: Some("hunter2")"#, "password: ***"),
        (r#"got token=Some(Secret("hun)ter2")) n=1"#, "got token=*** n=1"),
        (
            r#"headers: {"authorization": "Basic dTpwdw==", "n": "1"}"#,
            r#"headers: {"authorization": "***", "n": "1"}"#,
        ),
        (r#"[("authorization", "Basic abc"), ("n", "1")]"#, r#"[("authorization", "***"), ("n", "1")]"#),
        (
            "\x1b[2mINFO\x1b[0m \x1b[3mpassword\x1b[0m\x1b[2m=\x1b[0m\"hunter2\" \x1b[3mn\x1b[0m=1",
            "INFO password=\"***\" n=1",
        ),
        // Python
        ("{'password': 'hunter2', 'n': 1}", "{'password': '***', 'n': 1}"),
        ("login(password='hunter2', n=1)", "login(password='***', n=1)"),
        ("login(password=b'hunter2', n=1)", "login(password=***, n=1)"),
        ("Settings(password=SecretStr('hunter2'), n=1)", "Settings(password=***, n=1)"),
        // Go
        ("map[password:hunter2 n:1]", "map[password:*** n:1]"),
        ("{Password:hunter2 N:1}", "{Password:*** N:1}"),
        ("map[Authorization:[Basic abc] N:[1]]", "map[Authorization:*** N:[1]]"),
        (r#"password := "hunter2""#, r#"password := "***""#),
        // PHP, Java, Scala, JavaScript
        ("'password' => 'hunter2',", "'password' => '***',"),
        ("    [password] => hunter2", "    [password] => ***"),
        ("User{password=hunter2, n=1}", "User{password=***, n=1}"),
        ("Map(password -> hunter2, n -> 1)", "Map(password -> ***, n -> 1)"),
        ("{ password: 'hunter2', n: 1 }", "{ password: '***', n: 1 }"),
        ("<password>hunter2</password><n>1</n>", "<password>***</password><n>1</n>"),
        // HTTP
        ("> Authorization: Basic dXNlcjpwYXNz", "> Authorization: ***"),
        ("> authorization: Digest username=\"a\", response=\"b\"", "> authorization: ***"),
        ("curl -H 'Authorization: Basic abc' http://host", "curl -H 'Authorization: ***' http://host"),
        ("< Set-Cookie: session=abc; Path=/", "< Set-Cookie: ***"),
        ("sent Basic dXNlcjpwYXNz to it", "sent Basic *** to it"),
        ("the basic things", "the basic things"),
        ("GET /?token=hunter2&n=1 200", "GET /?token=*** 200"),
        // What stops at no quote or bracket in the middle.
        ("REDIS_PASSWORD=abc\"d MODE=1", "REDIS_PASSWORD=*** MODE=1"),
        ("x password=a}b n=1", "x password=*** n=1"),
        (r#"said "password=abc" and went"#, r#"said "password=***" and went"#),
        // Values on lines of their own.
        ("passwords:\n- a\n- b\nmode: fast", "passwords:\n- ***\n- ***\nmode: fast"),
        (
            "    password: Some(\n        \"hunter2\",\n    ),\n    n: 1",
            "    password: ***\n        \"***\n    ),\n    n: 1",
        ),
        // A Secret that is named, not told.
        ("secret \"redis-auth\" not found", "secret \"redis-auth\" not found"),
        ("secret_name: redis, mode: fast", "secret_name: redis, mode: fast"),
    ];
    for (text, masked) in cases {
        assert_eq!(mask.text(text), masked, "{text}");
    }
}

#[test]
fn headers_and_pairs_in_data_lose_their_values() {
    let mut value = json!({ "headers": [{ "key": "Authorization", "value": "Basic x" }], "raw": [["Cookie", "a=b"], ["Host", "c"]] });
    Mask::default().object(&mut value);
    assert_eq!(value["headers"][0]["value"], "***");
    assert_eq!(value["raw"], json!([["Cookie", "***"], ["Host", "c"]]));
}

#[test]
fn a_secret_of_several_lines_goes_whole() {
    let mask = Mask::default();
    let pem = "a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb";
    assert_eq!(mask.text(pem), "a\n***\nb");
    let yaml = "tls:\n  private_key: |\n    MIIE\n\n    xyz\n  mode: fast";
    assert_eq!(mask.text(yaml), "tls:\n  private_key: ***\n  mode: fast");
}

#[test]
fn names_that_tell_are_known_and_those_that_only_refer_are_not() {
    let telling = [
        "RAILS_MASTER_KEY",
        "ENCRYPTION_KEY",
        "encryptionKey",
        "PASSPHRASE",
        "REDISCLI_AUTH",
        "auth",
        "requirepass",
        "DB_PWD",
        "hmac_key",
        "x-api-key",
        "client.secret",
    ];
    for name in telling {
        assert!(is_telling(name), "{name}");
    }
    let harmless = [
        "key",
        "secretRef",
        "tokenSecretRef",
        "secretKeyRef",
        "secretName",
        "imagePullSecrets",
        "topologyKey",
        "rate_limit_key",
        "key_prefix",
        "heartbeat_key_pattern",
        "hmac_key_file",
        "key_file",
        "author",
        "passed",
        "passwordKey",
        "automountServiceAccountToken",
    ];
    for name in harmless {
        assert!(!is_telling(name), "{name}");
    }
}

#[test]
fn what_stands_below_a_telling_name_is_masked_but_for_what_it_refers_to() {
    let mut object = json!({
        "spec": {
            "redis": { "external": { "secretRef": { "name": "redis" } } },
            "volumes": [{ "secret": { "secretName": "redis", "items": [{ "key": "password", "path": "p" }] } }],
            "env": [{ "name": "X", "valueFrom": { "secretKeyRef": { "name": "redis", "key": "password" } } }],
            "command": ["redis-server", "--requirepass", "hunter2", "--port", "6379", "--token=abc"],
            "credentials": { "user": "bob", "codes": ["a", 7], "name": "of-bob" },
            "passwords": ["a", "b"],
            "pin_token": 1234,
        },
        "status": { "queues": [{ "name": "high", "key": "jobqueue:high_priority" }] },
    });
    let before = object.clone();
    Mask::default().object(&mut object);
    let spec = &object["spec"];
    for kept in ["/spec/redis", "/spec/volumes", "/spec/env", "/status"] {
        assert_eq!(object.pointer(kept), before.pointer(kept), "{kept}");
    }
    assert_eq!(
        spec["command"],
        json!(["redis-server", "--requirepass", "***", "--port", "6379", "--token=***"])
    );
    assert_eq!(spec["credentials"], json!({ "user": "***", "codes": ["***", "***"], "name": "of-bob" }));
    assert_eq!((&spec["passwords"], &spec["pin_token"]), (&json!(["***", "***"]), &json!("***")));
}
