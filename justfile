# The recipes of `.ci/run`, and the builds a person wants beside them. `just` alone lists them.

# A person's builds stay in the checkout, where the editor's are; `.ci/run` by itself builds in the cache.
export CARGO_TARGET_DIR := env("CARGO_TARGET_DIR", justfile_directory() / "target")

_list:
    @{{ just_executable() }} --list --unsorted

# everything that must pass, in CI's order
ci:
    .ci/run

# install what the other recipes need
tools:
    .ci/run tools

# check the formatting
fmt:
    .ci/run fmt

# unit, property and end-to-end tests
test:
    .ci/run test

# lints, warnings are errors
clippy:
    .ci/run clippy

# documentation, warnings are errors
doc:
    .ci/run doc

# licences, bans, sources, and advisories if the database can be reached
deny:
    .ci/run deny

# check with the oldest compiler we promise
msrv:
    .ci/run msrv

# compile the benchmarks
bench-build:
    .ci/run bench

# run the benchmarks; FILTER is a part of their names
bench FILTER="":
    cargo bench -p benches --locked -- {{ FILTER }}

# the whole of Adit on this machine, checked and ended
demo:
    .ci/run demo

# the same, serving until Ctrl-C
serve-demo:
    cargo run --release -p demo --locked

# every pairing with upstream's server and agent
interop:
    .ci/run interop

# every egress selector fixture by kube-apiserver's own loader and by ours
egress:
    .ci/run egress

# each fuzz target for a while; needs cargo-fuzz and a nightly compiler
fuzz SECONDS="60":
    ADIT_FUZZ_SECONDS={{ SECONDS }} .ci/run fuzz

# before a commit: format, then what is quick to check
pre-commit:
    cargo fmt --all
    .ci/run clippy test

# the binaries as images ship them
dist:
    cargo build --profile dist --locked -p proxy-server -p proxy-agent
