//! What a tunnel does for each packet beside its bytes: find the connection, pick who sends, charge who holds.

use std::{hint::black_box, rc::Rc};

use benches::agent;
use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tunnel::{
    ledger::{ALLOWANCE, Account, DEFAULT_BUDGET, Ledger},
    mux::{ConnectionTable, MAX_DATA},
    packet::ConnectId,
    scheduler::Scheduler,
};

/// Steps through ids so that neither the cache nor the branch predictor knows the next one.
const STRIDE: i64 = 7919;

fn table(c: &mut Criterion) {
    let mut group = c.benchmark_group("table/get");
    for count in [10i64, 1_000, 100_000] {
        let mut table = ConnectionTable::default();
        for id in 1..=count {
            table.insert(ConnectId(id), Rc::new(id));
        }
        let mut at = 0;
        group.bench_with_input(BenchmarkId::from_parameter(count), &count, |b, &count| {
            b.iter(|| {
                at = (at + STRIDE) % count;
                black_box(table.get(ConnectId(black_box(at + 1))))
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("table/insert_and_remove");
    for count in [10i64, 1_000, 100_000] {
        let mut table = ConnectionTable::default();
        for id in 1..=count {
            table.insert(ConnectId(id), Rc::new(id));
        }
        let value = Rc::new(0);
        group.bench_with_input(BenchmarkId::from_parameter(count), &count, |b, &count| {
            b.iter(|| {
                table.insert(ConnectId(count + 1), value.clone());
                table.remove(ConnectId(count + 1))
            });
        });
    }
    group.finish();
}

fn scheduler(c: &mut Criterion) {
    let mut group = c.benchmark_group("scheduler/pick_and_done");
    for ready in [1usize, 64, 10_000] {
        let mut scheduler = Scheduler::default();
        for key in 0..ready {
            scheduler.push(key);
        }
        group.bench_with_input(BenchmarkId::from_parameter(ready), &ready, |b, _| {
            b.iter(|| {
                if let Some(turn) = scheduler.pick() {
                    black_box(turn.key);
                    scheduler.done(turn, MAX_DATA, true);
                }
            });
        });
    }
    group.finish();
}

fn ledger(c: &mut Criterion) {
    let ledger = Rc::new(Ledger::new(DEFAULT_BUDGET));
    let mut account = Account::new(ledger);
    let mut cost = ALLOWANCE;
    c.bench_function("ledger/charge", |b| {
        b.iter(|| {
            cost = (cost + MAX_DATA) % (8 * ALLOWANCE);
            account.set(black_box(cost));
            black_box(account.is_over())
        });
    });
}

/// From `send` on a connection to what is handed to HTTP/2.
fn batches(c: &mut Criterion) {
    let mut group = c.benchmark_group("mux/send_and_batch");
    for (connections, len) in [(1usize, MAX_DATA), (64, 64), (64, MAX_DATA)] {
        let (mux, connections_of_mux) = agent(connections);
        let payload = Bytes::from(vec![0x5a; len]);
        group.throughput(Throughput::Bytes((connections * len) as u64));
        group.bench_function(
            BenchmarkId::new(format!("{connections}_connections"), len),
            |b| {
                b.iter(|| {
                    for connection in &connections_of_mux {
                        connection.send(payload.clone());
                    }
                    while let Some(batch) = mux.next_batch() {
                        black_box(batch);
                    }
                });
            },
        );
    }
    group.finish();
}

criterion_group!(tunnel_state, table, scheduler, ledger, batches);
criterion_main!(tunnel_state);
