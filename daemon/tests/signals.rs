//! Signals concern the whole process, so their test has one of its own.

use std::process::Command;
use std::time::Duration;

use daemon::signals::{Termination, Terminations};

fn send_to_self(signal: &str) {
    let sent = Command::new("sh")
        .args(["-c", &format!("kill -{signal} $PPID")])
        .status();
    assert!(
        sent.is_ok_and(|status| status.success()),
        "SIG{signal} not sent"
    );
}

#[tokio::test]
async fn interrupt_and_terminate_are_counted_together() {
    let mut signals = Terminations::install().unwrap();
    let deadline = Duration::from_secs(60);
    send_to_self("TERM");
    let first = tokio::time::timeout(deadline, signals.recv())
        .await
        .unwrap();
    assert_eq!(first, (Termination::Terminate, 1));
    send_to_self("INT");
    let second = tokio::time::timeout(deadline, signals.recv())
        .await
        .unwrap();
    assert_eq!(second, (Termination::Interrupt, 2));
}
