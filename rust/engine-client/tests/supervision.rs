//! Real child processes: the scripted engine as a program, killed and started again.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use limits::ErrorKind;
use metrics::Metrics;
use proa_engine_client::{
    ClientConfig, EngineClient, EngineCommand, EngineRequest, EngineState, Output,
};
use wire::ShutdownMode;

/// The scripted engine's program, built on first use beside this test's own.
fn mock_program() -> PathBuf {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let built = Command::new(cargo)
        .args(["build", "-q", "-p", "proa-mock-engine"])
        .status()
        .expect("cargo runs");
    assert!(built.success());
    let test = std::env::current_exe().unwrap();
    test.parent()
        .unwrap()
        .parent()
        .unwrap()
        .join("proa-mock-engine")
}

fn start(play: &str, config: ClientConfig) -> EngineClient {
    let command = EngineCommand {
        program: mock_program().into(),
        arguments: vec!["--config-fd".into(), "3".into()],
        environment: vec![("PROA_TEST_MOCK".into(), play.into())],
        document: r#"{"connect":"{connect}","parent_pid":"{parent_pid}"}"#.to_owned(),
    };
    let metrics = Arc::new(Metrics::new("proa", "m", "0", "mock").unwrap());
    let config = ClientConfig {
        command: Some(command),
        heartbeat: Duration::from_millis(200),
        ..config
    };
    EngineClient::start(config, metrics).unwrap()
}

async fn reach(client: &EngineClient, wanted: impl Fn(&EngineState) -> bool) {
    let mut watch = client.watch();
    let reached = watch.wait_for(|status| wanted(&status.state));
    tokio::time::timeout(Duration::from_secs(30), reached)
        .await
        .expect("the state is reached")
        .unwrap();
}

fn request(max_tokens: u32) -> EngineRequest {
    EngineRequest::new(Arc::from([5_u32, 6]), max_tokens)
}

fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test]
async fn a_killed_engine_ends_every_stream_with_engine_lost_and_comes_back() {
    let client = start(r#"{"step_delay_us":2000}"#, ClientConfig::default());
    reach(&client, |state| *state == EngineState::Ready).await;
    let mut streams = client
        .submit_all((0..16).map(|_| request(100_000)).collect())
        .unwrap();
    for stream in &mut streams {
        assert!(matches!(stream.next().await, Some(Output::Tokens(_))));
    }
    let pid = client.status().pid;
    assert!(
        Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
    for stream in &mut streams {
        let ended = loop {
            match tokio::time::timeout(Duration::from_secs(10), stream.next())
                .await
                .expect("an end in time")
            {
                Some(Output::End(ended)) => break ended,
                Some(_) => {}
                None => panic!("a stream without an end"),
            }
        };
        assert_eq!(
            ended.error.map(|error| error.kind),
            Some(ErrorKind::EngineLost)
        );
    }
    let error = client.submit(request(1)).unwrap_err();
    assert_eq!(error.code, "engine_restarting");
    reach(&client, |state| *state == EngineState::Ready).await;
    assert_ne!(client.status().pid, pid);
    assert!(!is_alive(pid));
    let mut stream = client.submit(request(2)).unwrap();
    assert!(matches!(stream.next().await, Some(Output::Tokens(_))));
    let second = client.status().pid;
    client
        .shutdown(ShutdownMode::Now, Duration::from_secs(2))
        .await;
    assert!(!is_alive(second));
}

#[tokio::test]
async fn an_engine_that_keeps_dying_is_given_up_with_70() {
    let client = start(
        r#"{"die_at_step":1}"#,
        ClientConfig {
            max_restarts: 1,
            ..ClientConfig::default()
        },
    );
    for _ in 0..2 {
        reach(&client, |state| *state == EngineState::Ready).await;
        let mut stream = client.submit(request(3)).unwrap();
        let Some(Output::End(ended)) = stream.next().await else {
            panic!("an end")
        };
        assert_eq!(
            ended.error.map(|error| error.kind),
            Some(ErrorKind::EngineLost)
        );
        reach(&client, |state| *state != EngineState::Ready).await;
    }
    reach(&client, |state| matches!(state, EngineState::Failed(_))).await;
    let EngineState::Failed(fatal) = client.status().state else {
        panic!("failed")
    };
    assert_eq!(fatal.exit_code(), 70);
}

#[tokio::test]
async fn a_hung_engine_is_replaced() {
    let play = r#"{"step_delay_us":1000,"freeze_at_step":3,"freeze_ms":60000}"#;
    let client = start(
        play,
        ClientConfig {
            watchdog: Duration::from_millis(900),
            ..ClientConfig::default()
        },
    );
    reach(&client, |state| *state == EngineState::Ready).await;
    let pid = client.status().pid;
    let mut stream = client.submit(request(1000)).unwrap();
    let ended = loop {
        match tokio::time::timeout(Duration::from_secs(20), stream.next())
            .await
            .expect("an end in time")
        {
            Some(Output::End(ended)) => break ended,
            other => assert!(other.is_some()),
        }
    };
    assert_eq!(
        ended.error.map(|error| error.kind),
        Some(ErrorKind::EngineLost)
    );
    reach(&client, |state| *state == EngineState::Ready).await;
    assert!(!is_alive(pid));
    client
        .shutdown(ShutdownMode::Now, Duration::from_secs(1))
        .await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_refused_not_retried() {
    let command = EngineCommand {
        program: "/no/such/program".into(),
        arguments: Vec::new(),
        environment: Vec::new(),
        document: "{}".to_owned(),
    };
    let metrics = Arc::new(Metrics::new("proa", "m", "0", "mock").unwrap());
    let client = EngineClient::start(
        ClientConfig {
            command: Some(command),
            ..ClientConfig::default()
        },
        metrics,
    )
    .unwrap();
    reach(&client, |state| matches!(state, EngineState::Failed(_))).await;
    let EngineState::Failed(fatal) = client.status().state else {
        panic!("failed")
    };
    assert_eq!(fatal.exit_code(), 2);
    assert!(fatal.message().contains("/no/such/program"));
}
