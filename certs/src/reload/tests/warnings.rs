//! What is logged, and how often.

use super::*;

#[test]
fn warnings_are_given_once_a_change_and_once_a_level_of_expiry() {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let mut world = World::new();
        assert_eq!(warnings.take(), 0);
        world.write("tls.crt", "garbage");
        world.poll(5);
        assert_eq!(warnings.take(), 1);
        world.write("tls.crt", "other garbage");
        world.poll(5);
        assert_eq!(warnings.take(), 1);

        let leaf = Leaf::server(NAMES).valid(Validity::days(90));
        world.write_pair(&world.authority.issue(&leaf).unwrap());
        world.expect_reload();
        assert_eq!(warnings.take(), 0);
        let end = leaf.validity.not_after;
        for (days_left, expected) in [(31, 0), (30, 1), (29, 0), (6, 1), (2, 0), (1, 1), (-1, 1)] {
            world.watcher.poll_once(end.plus_days(-days_left));
            world.watcher.poll_once(end.plus_days(-days_left));
            assert_eq!(warnings.take(), expected, "{days_left} days left");
        }
    });
}

/// Counts what is logged at warn and above.
#[derive(Clone, Default)]
struct Warnings(Arc<std::sync::atomic::AtomicUsize>);

impl Warnings {
    fn take(&self) -> usize {
        self.0.swap(0, std::sync::atomic::Ordering::SeqCst)
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}
