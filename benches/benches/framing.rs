//! Packets to bytes and back.

use std::hint::black_box;

use benches::{CONN, PAYLOADS, chunks, controls, data, read, reader, wire};
use bytes::BytesMut;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tunnel::codec;

fn encode(c: &mut Criterion) {
    let mut group = c.benchmark_group("encode/data_head");
    for len in PAYLOADS {
        // The payload itself is chained behind its head and costs nothing here, so the figure is flat by design.
        group.throughput(Throughput::Bytes(len as u64));
        let mut out = BytesMut::with_capacity(1 << 16);
        group.bench_with_input(BenchmarkId::from_parameter(len), &len, |b, &len| {
            b.iter(|| {
                out.clear();
                codec::put_data_head(&mut out, black_box(CONN), black_box(len));
                black_box(&out);
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("encode/data_copied");
    for len in PAYLOADS {
        group.throughput(Throughput::Bytes(len as u64));
        let packet = data(len);
        let mut out = BytesMut::with_capacity(1 << 17);
        group.bench_with_input(BenchmarkId::from_parameter(len), &packet, |b, packet| {
            b.iter(|| {
                out.clear();
                codec::put_packet(&mut out, black_box(packet));
                black_box(&out);
            });
        });
    }
    group.finish();

    let mut group = c.benchmark_group("encode/control");
    for (name, packet) in controls() {
        let mut out = BytesMut::with_capacity(1 << 10);
        group.bench_with_input(BenchmarkId::from_parameter(name), &packet, |b, packet| {
            b.iter(|| {
                out.clear();
                codec::put_packet(&mut out, black_box(packet));
                black_box(&out);
            });
        });
    }
    group.finish();
}

fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode/whole");
    for len in PAYLOADS {
        group.throughput(Throughput::Bytes(len as u64));
        let wire = [wire(&[data(len)])];
        let mut reader = reader();
        group.bench_with_input(BenchmarkId::from_parameter(len), &wire, |b, wire| {
            b.iter(|| read(&mut reader, black_box(wire)));
        });
    }
    group.finish();

    let mut group = c.benchmark_group("decode/split");
    for len in PAYLOADS {
        for count in [2, 4, 17] {
            group.throughput(Throughput::Bytes(len as u64));
            let pieces = chunks(&wire(&[data(len)]), count);
            let mut reader = reader();
            group.bench_with_input(
                BenchmarkId::new(format!("{count}_chunks"), len),
                &pieces,
                |b, pieces| {
                    b.iter(|| read(&mut reader, black_box(pieces)));
                },
            );
        }
    }
    group.finish();

    let mut group = c.benchmark_group("decode/coalesced");
    group.throughput(Throughput::Elements(64));
    let wire_of_64 = [wire(&vec![data(64); 64])];
    let mut small = reader();
    group.bench_function("64x64", |b| {
        b.iter(|| read(&mut small, black_box(&wire_of_64)))
    });
    group.finish();

    let mut group = c.benchmark_group("decode/control");
    for (name, packet) in controls() {
        let wire = [wire(&[packet])];
        let mut reader = reader();
        group.bench_with_input(BenchmarkId::from_parameter(name), &wire, |b, wire| {
            b.iter(|| read(&mut reader, black_box(wire)));
        });
    }
    group.finish();
}

criterion_group!(framing, encode, decode);
criterion_main!(framing);
