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
    start_with(play, config, &[])
}

fn start_with(play: &str, config: ClientConfig, words: &[&str]) -> EngineClient {
    let arguments = ["--config-fd", "3"].iter().chain(words);
    let command = EngineCommand {
        program: mock_program().into(),
        arguments: arguments.map(|word| word.into()).collect(),
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

async fn end_of(stream: &mut proa_engine_client::OutputStream) -> proa_engine_client::Ended {
    loop {
        match tokio::time::timeout(Duration::from_secs(20), stream.next())
            .await
            .expect("an end in time")
        {
            Some(Output::End(ended)) => return *ended,
            other => assert!(other.is_some(), "a stream without an end"),
        }
    }
}

#[tokio::test]
async fn a_step_that_never_ends_is_a_hang_in_spite_of_its_heartbeats() {
    let play = r#"{"step_delay_us":1000,"long_step":3,"long_step_ms":60000}"#;
    let config = ClientConfig {
        watchdog: Duration::from_millis(900),
        ..ClientConfig::default()
    };
    let client = start(play, config);
    reach(&client, |state| *state == EngineState::Ready).await;
    let pid = client.status().pid;
    let mut stream = client.submit(request(1000)).unwrap();
    let ended = end_of(&mut stream).await;
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
async fn a_failing_step_ends_streams_and_open_calls_at_once() {
    let client = start(
        r#"{"step_delay_us":1000,"fail_at_step":5}"#,
        ClientConfig::default(),
    );
    reach(&client, |state| *state == EngineState::Ready).await;
    let mut streams = client
        .submit_all((0..4).map(|_| request(1000)).collect())
        .unwrap();
    for stream in &mut streams {
        let ended = end_of(stream).await;
        assert_eq!(
            ended.error.map(|error| error.kind),
            Some(ErrorKind::EngineLost)
        );
    }
    reach(&client, |state| *state == EngineState::Ready).await;
    assert_eq!(client.status().starts, 2);
    client
        .shutdown(ShutdownMode::Now, Duration::from_secs(1))
        .await;
}

#[tokio::test]
async fn an_open_call_ends_with_its_engine() {
    let play = r#"{"step_delay_us":1000,"freeze_at_step":3,"freeze_ms":60000}"#;
    let client = start(play, ClientConfig::default());
    reach(&client, |state| *state == EngineState::Ready).await;
    let pid = client.status().pid;
    let mut stream = client.submit(request(1000)).unwrap();
    reach(&client, |state| *state == EngineState::Stale).await;
    let caller = client.clone();
    let call = tokio::spawn(async move { caller.utility("is_paused", wire::Map::default()).await });
    tokio::task::yield_now().await; // the call is on its way before the kill
    assert!(
        Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()
            .unwrap()
            .success()
    );
    let error = call.await.unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::EngineLost);
    end_of(&mut stream).await;
    client
        .shutdown(ShutdownMode::Now, Duration::from_secs(1))
        .await;
}

#[tokio::test]
async fn a_refused_start_is_exit_2_with_the_engines_own_line() {
    let client = start(
        r#"{"refuses_start":"no such kernel: fast"}"#,
        ClientConfig::default(),
    );
    reach(&client, |state| matches!(state, EngineState::Failed(_))).await;
    let EngineState::Failed(fatal) = client.status().state else {
        panic!("failed")
    };
    assert_eq!(
        (fatal.exit_code(), fatal.message()),
        (2, "no such kernel: fast")
    );
    assert_eq!(client.status().starts, 1);
}

/// Whether a process with this word among its arguments lives.
fn is_any_alive(word: &str) -> bool {
    let lines = std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| {
        line.split(|byte| *byte == 0)
            .any(|arg| arg == word.as_bytes())
    })
}

#[tokio::test]
async fn a_shutdown_at_any_moment_of_the_start_leaves_no_child() {
    mock_program();
    for round in 0..8_u32 {
        let word = format!("--round={}-{round}", std::process::id());
        let client = start_with("{}", ClientConfig::default(), &[&word]);
        for _ in 0..round * 20 {
            tokio::task::yield_now().await; // later and later in the start
        }
        client
            .shutdown(ShutdownMode::Now, Duration::from_secs(1))
            .await;
        let gone = async {
            while is_any_alive(&word) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), gone)
            .await
            .expect("no child is left");
    }
}
